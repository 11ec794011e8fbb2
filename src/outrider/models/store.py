"""The cache of pulled models: atomic, verified, used offline."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
from pydantic import ValidationError

from outrider.errors import ModelError
from outrider.models.base import MANIFEST, MODEL_FILES, TOKENIZER_FILES, FileRecord, Manifest, ModelFiles

_PARTIAL = ".partial-"


def home() -> Path:
    """`OUTRIDER_HOME`, or the platform's cache directory."""
    chosen = os.environ.get("OUTRIDER_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("outrider"))


def sha256_of(path: Path) -> str:
    """Hash of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Read `outrider.json`.

    Raises:
        ModelError: it is missing or broken.
    """
    path = directory / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path} cannot be read ({reason}); delete {directory} and pull again") from None


class Store:
    """Models under `root`/models, one directory each, that appear whole or not at all."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or home()) / "models"

    def find(self, slug: str) -> ModelFiles | None:
        """The model if it is here with all its files at their recorded sizes, else None.

        Raises:
            ModelError: it is here but damaged.
        """
        directory = self.root / slug
        if not directory.is_dir():
            return None
        manifest = read_manifest(directory)
        for name, record in manifest.files.items():
            path = directory / name
            if not path.is_file() or path.stat().st_size != record.size:
                raise ModelError(f"{path} is missing or cut short; delete {directory} and pull again")
        return ModelFiles(directory, manifest)

    def verify(self, model: ModelFiles) -> None:
        """Compare every file with its recorded hash.

        Raises:
            ModelError: names the file that differs.
        """
        for name, record in model.manifest.files.items():
            found = sha256_of(model.directory / name)
            if found != record.sha256:
                raise ModelError(
                    f"{model.directory / name} has sha256 {found}, not {record.sha256}; "
                    f"delete {model.directory} and pull again"
                )

    def all(self) -> Iterator[ModelFiles]:
        """Every whole model here, by name."""
        if self.root.is_dir():
            for directory in sorted(self.root.iterdir()):
                if not directory.name.startswith(".") and (directory / MANIFEST).is_file():
                    yield ModelFiles(directory, read_manifest(directory))

    def install(self, slug: str, build: Callable[[Path], Manifest]) -> ModelFiles:
        """Let `build` fill an empty directory, then put it in place in one rename.

        An interrupted build leaves a `.partial-` directory that the next install of the same model removes;
        two at once are fine, and the first to finish wins.

        Raises:
            ModelError: the disk is full or not writable, or `build` left a file out.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._sweep(slug)
            partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{slug}-{os.getpid()}-", dir=self.root))
        except OSError as error:
            raise disk_error(error, self.root) from None
        try:
            partial.chmod(0o755)  # mkdtemp is for secrets; a cache may be shared
            manifest = build(partial)
            self._seal(partial, manifest)
            try:
                partial.rename(self.root / slug)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        except OSError as error:
            raise disk_error(error, self.root) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        model = self.find(slug)
        if model is None:
            raise ModelError(f"{self.root / slug} vanished while it was installed; pull again")
        return model

    def _seal(self, partial: Path, manifest: Manifest) -> None:
        for name in (*MODEL_FILES, *TOKENIZER_FILES):
            if not (partial / name).is_file():
                raise ModelError(f"the conversion of {manifest.name} wrote no {name}")
        files = {
            path.name: FileRecord(size=path.stat().st_size, sha256=sha256_of(path))
            for path in sorted(partial.iterdir())
            if path.is_file()
        }
        text = manifest.model_copy(update={"files": files}).model_dump_json(indent=2)
        (partial / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _sweep(self, slug: str) -> None:
        """Remove what killed pulls of this model left behind; the name says which process made it."""
        for stale in self.root.glob(f"{_PARTIAL}{slug}-*"):
            owner = stale.name.removeprefix(f"{_PARTIAL}{slug}-").split("-")[0]
            if not (owner.isdecimal() and _alive(int(owner))):
                shutil.rmtree(stale, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def disk_error(error: OSError, where: Path) -> ModelError:
    """One line for what a disk can refuse."""
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(_existing(where)).free
        return ModelError(
            f"the disk of {where} is full ({free >> 20} MiB free); free some or set OUTRIDER_HOME elsewhere"
        )
    return ModelError(f"cannot write {where}: {error.strerror or error}; set OUTRIDER_HOME to a writable place")


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
