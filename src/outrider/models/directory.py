"""Directories: OpenVINO IR as exported, with what its JSON files say, or safetensors to export first."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.models.base import MANIFEST, MODEL_FILES, TOKENIZER_FILES, Manifest, Progress
from outrider.models.store import read_manifest


def has_ir(directory: Path) -> bool:
    """Whether the directory holds an OpenVINO model."""
    return (directory / MODEL_FILES[0]).is_file()


def describe(directory: Path, name: str, source: str) -> Manifest:
    """Build a manifest from an export's own JSON files, or read ours.

    Raises:
        ModelError: a file is missing that the engine cannot do without; the message says which and how to get it.
    """
    if (directory / MANIFEST).is_file():
        return read_manifest(directory)
    for file in (*MODEL_FILES, *TOKENIZER_FILES):
        if not (directory / file).is_file():
            raise ModelError(
                f"{directory} has no {file}; export it with `optimum-cli export openvino` (tokenizer included)"
            )
    config = _json(directory / "config.json")
    generation = _json(directory / "generation_config.json")
    context = config.get("max_position_embeddings")
    if not isinstance(context, int):
        raise ModelError(f"{directory}/config.json does not say max_position_embeddings; add it")
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    if eos is None:
        raise ModelError(f"neither generation_config.json nor config.json in {directory} says eos_token_id; add it")
    return Manifest(
        name=name,
        source=source,
        architecture=str(config.get("model_type", "unknown")),
        weights=str(config.get("dtype") or config.get("torch_dtype") or "IR"),
        parameters=0,
        context_length=context,
        eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        special_ids=_special_ids(directory),
    )


def _special_ids(directory: Path) -> tuple[int, ...]:
    added = _json(directory / "tokenizer.json").get("added_tokens", [])
    decoder = _json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
    ids = {entry["id"] for entry in added if entry.get("special")}
    ids |= {int(token) for token, entry in decoder.items() if entry.get("special")}
    return tuple(sorted(ids))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def export(source: Path, target: Path, progress: Progress, *, name: str, origin: str) -> Manifest:
    """Export a directory with safetensors to OpenVINO IR with its tokenizer, weights as F16; describe the result.

    Raises:
        ModelError: the `[hf]` extra is missing, or the exporter does not know the architecture.
    """
    if importlib.util.find_spec("optimum") is None:
        raise ModelError(f"{source} holds safetensors; exporting them needs the hf extra: pip install 'outrider[hf]'")
    from optimum.exporters.openvino import main_export  # torch comes with it, so only when it is needed
    from optimum.intel import OVConfig

    progress("export to OpenVINO IR", 0, 0)
    try:
        main_export(
            str(source),
            output=target,
            task="text-generation-with-past",
            ov_config=OVConfig(dtype="fp16"),
            convert_tokenizer=True,
            local_files_only=True,
        )
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the exporter cannot convert {source}: {reason}") from None
    progress("export to OpenVINO IR", 1, 1)
    return describe(target, name, origin).model_copy(update={"weights": "F16"})
