"""Hugging Face repositories: OpenVINO IR taken as it is, safetensors exported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors

from outrider.errors import ModelError
from outrider.models import directory as directories
from outrider.models.base import Manifest, Progress

_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_IR = ["openvino_*", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]
_SAFETENSORS = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def parse(name: str) -> tuple[str, str | None]:
    """Split `hf:org/name[@revision]`.

    Raises:
        ModelError: it is not of that form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ModelError(f"{name!r} is not a repository; write hf:org/name or hf:org/name@revision")
    return match["repository"], match["revision"]


def fetch(name: str, target: Path, progress: Progress) -> Manifest:
    """Download a repository into `target`, as IR with its tokenizer.

    Raises:
        ModelError: no network, no such repository or revision, no access, or nothing in it that can be run.
    """
    repository, revision = parse(name)
    huggingface_hub.logging.set_verbosity_error()  # its retries would bury our one line
    try:
        files = huggingface_hub.list_repo_files(repository, revision=revision)
        has_ir = "openvino_model.xml" in files
        if not has_ir and not any(file.endswith(".safetensors") for file in files):
            raise ModelError(
                f"{name} holds neither openvino_model.xml nor safetensors; a .gguf file can be given by path"
            )
        download = target if has_ir else target / "source"
        progress("download", 0, 0)
        huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            local_dir=download,
            allow_patterns=_IR if has_ir else _SAFETENSORS,
        )
    except hub_errors.GatedRepoError:
        raise ModelError(f"{name} needs its owner's consent; accept its terms on the hub and set HF_TOKEN") from None
    except hub_errors.RevisionNotFoundError:
        raise ModelError(f"{repository} has no revision {revision!r}; check it on the hub") from None
    except hub_errors.RepositoryNotFoundError:
        raise ModelError(
            f"the hub has no repository {repository!r} that you may read; check it, or set HF_TOKEN"
        ) from None
    except (hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _unreachable(name, error) from None
    except Exception as error:  # the hub's HTTP client has its own family, which is not ours to depend on
        if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            raise
        raise _unreachable(name, error) from None
    progress("download", 1, 1)
    origin = f"huggingface.co/{repository}" + (f"@{revision}" if revision else "")
    if download == target:
        shutil.rmtree(target / ".cache", ignore_errors=True)
        return directories.describe(target, name, origin)
    manifest = directories.export(download, target, progress, name=name, origin=origin)
    shutil.rmtree(download)
    return manifest


def _unreachable(name: str, error: Exception) -> ModelError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelError(f"no network: the hub cannot be reached for {name} ({reason}); once pulled, it works offline")
