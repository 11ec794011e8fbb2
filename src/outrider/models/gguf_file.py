"""GGUF files: read what they say of themselves, rewrite their weights as F16, convert them to OpenVINO IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import openvino_genai

from outrider.errors import ModelError, near_misses
from outrider.models.base import Manifest, Progress

SUPPORTED = ("llama", "qwen2", "qwen3")
"""Architectures that OpenVINO GenAI's GGUF reader builds a graph for."""

_CONTROL_TOKEN = 3
_FILE_TYPES = {"F16": 1, "Q8_0": 7}


def _open(path: Path) -> Any:
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ModelError(f"{path} is not a whole GGUF file: {error}") from None


def inspect(path: Path, name: str, source: str) -> Manifest:
    """Read a GGUF header: a manifest of the model that the file is.

    Raises:
        ModelError: not a GGUF file, an architecture that is not supported, or a field that is missing.
    """
    reader = _open(path)

    def field(key: str, default: Any = None) -> Any:
        found = reader.get_field(key)
        if found is not None:
            return found.contents()
        if default is None:
            raise ModelError(f"{path} has no {key!r}; it is not a language model that Outrider can run")
        return default

    architecture = field("general.architecture")
    if architecture not in SUPPORTED:
        raise ModelError(
            f"{path} has architecture {architecture!r}; GGUF files of {', '.join(SUPPORTED)} are supported."
            f"{near_misses(architecture, SUPPORTED)} Export others to OpenVINO IR and give the directory"
        )
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1)
    eos = {field("tokenizer.ggml.eos_token_id"), field("tokenizer.ggml.eot_token_id", -1)} - {-1}
    token_types: Sequence[int] = field("tokenizer.ggml.token_type", [])
    return Manifest(
        name=name,
        source=source,
        architecture=architecture,
        weights=kinds.most_common(1)[0][0],
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        context_length=field(f"{architecture}.context_length"),
        eos_ids=tuple(sorted(eos)),
        special_ids=tuple(i for i, kind in enumerate(token_types) if kind == _CONTROL_TOKEN),
    )


def rewrite(source: Path, target: Path, progress: Progress, kind: str = "F16") -> None:
    """Write a GGUF with the same text and metadata and every quantised matrix as F16 or Q8_0.

    A dequantised matrix costs memory and buys the cost curve that speculation lives on: several tokens in one pass
    for little more than one.
    """
    reader = _open(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.quantization_version"):
            continue
        if key == "general.file_type":
            writer.add_file_type(_FILE_TYPES[kind])
            continue
        value = field.types[0]
        inner = field.types[-1] if value == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), value, sub_type=inner)
    total = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors, start=1):
        data = np.array(tensor.data)
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            data = gguf.dequantize(data, tensor.tensor_type).astype(np.float16)
        wanted = None
        if kind == "Q8_0" and data.dtype == np.float16:
            wanted = gguf.GGMLQuantizationType.Q8_0
            data = gguf.quantize(data.astype(np.float32), wanted)
        writer.add_tensor(tensor.name, data, raw_dtype=wanted)
        progress(f"rewrite as {kind}", done, total)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(path: Path, progress: Progress) -> None:
    """Write OpenVINO IR and tokenizer beside a GGUF file.

    Raises:
        ModelError: OpenVINO GenAI cannot read it.
    """
    progress("convert to OpenVINO IR", 0, 0)
    try:
        openvino_genai.LLMPipeline(str(path), "CPU", enable_save_ov_model=True)
    except (RuntimeError, IndexError, ValueError) as error:  # whatever its reader stumbles over first
        reason = str(error).strip().splitlines()[-1]
        raise ModelError(f"OpenVINO GenAI cannot convert {path}: {reason}") from None
    progress("convert to OpenVINO IR", 1, 1)
