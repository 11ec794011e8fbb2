"""Accelerators and models as numbers: memory, bandwidth, peak rates, prices; layers, heads, weights.

The figures were put down from memory of makers' data sheets (dense rates, without sparsity) with round on-demand
prices, and the CPU rows are rough guesses. Check the row that you plan with, or give your own with a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import InvalidRequest, near_misses
from outrider.params import explain

GIB = 2**30
Precision = Literal["f32", "f16", "f8", "i8", "i4"]
BYTES_PER_WEIGHT: dict[Precision, float] = {"f32": 4.0, "f16": 2.0, "f8": 1.0, "i8": 1.0, "i4": 0.5}


class Accelerator(BaseModel):
    """One device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    memory_gib: float = Field(gt=0)
    bandwidth_gb_per_s: float = Field(gt=0)
    """Of its memory."""
    f16_tflops: float = Field(gt=0)
    """Dense rate at 16 bits; narrower weights that are widened first compute at this rate too."""
    f8_tflops: float | None = None
    """Dense rate at 8 bits where the device has one."""
    link_gb_per_s: float = Field(default=64.0, gt=0)
    """To its neighbours, one way."""
    dollars_per_hour: float = Field(default=0.0, ge=0)

    def tflops(self, precision: Precision) -> float:
        """Peak rate for weights of this precision."""
        return self.f8_tflops or self.f16_tflops if precision in ("f8", "i8") else self.f16_tflops


def _device(
    name: str, memory: float, bandwidth: float, f16: float, f8: float | None, link: float, dollars: float
) -> Accelerator:
    return Accelerator(
        name=name,
        memory_gib=memory,
        bandwidth_gb_per_s=bandwidth,
        f16_tflops=f16,
        f8_tflops=f8,
        link_gb_per_s=link,
        dollars_per_hour=dollars,
    )


ACCELERATORS = {
    device.name: device
    for device in (
        _device("a10g", 24, 600, 70, None, 32, 1.0),
        _device("l4", 24, 300, 121, 242, 32, 0.8),
        _device("l40s", 48, 864, 362, 733, 32, 1.9),
        _device("rtx4090", 24, 1008, 165, 330, 32, 0.5),
        _device("a100-40", 40, 1555, 312, None, 300, 1.5),
        _device("a100-80", 80, 2039, 312, None, 300, 2.0),
        _device("h100", 80, 3350, 989, 1979, 450, 3.0),
        _device("h200", 141, 4800, 989, 1979, 450, 3.8),
        _device("b200", 180, 8000, 2250, 4500, 900, 6.0),
        _device("mi300x", 192, 5300, 1307, 2614, 448, 3.5),
        _device("epyc-2-cores", 24, 20, 0.15, None, 10, 0.1),
        _device("xeon-32-cores", 256, 300, 12, None, 30, 1.6),
    )
}


class ModelShape(BaseModel):
    """What a pass through a decoder costs depends on these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    parameters: int = Field(gt=0)
    """That a token goes through: of a mixture of experts the active ones."""
    stored_parameters: int = Field(gt=0)
    """That lie in memory."""
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)

    def kv_bytes_per_token(self, bytes_per_number: float = 2.0) -> float:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_number

    def weight_bytes(self, precision: Precision) -> float:
        """Memory of the weights."""
        return self.stored_parameters * BYTES_PER_WEIGHT[precision]


def from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read a Hugging Face `config.json` of a dense decoder with gated MLPs (Llama, Qwen, Mistral and their kin).

    Raises:
        InvalidRequest: names the field that is missing.
    """
    try:
        hidden, layers, heads = (int(config[k]) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        inner, vocabulary = int(config["intermediate_size"]), int(config["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}: config.json has no usable {error}; give --target-parameters instead") from None
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    experts, used = int(config.get("num_local_experts") or 1), int(config.get("num_experts_per_tok") or 1)
    one_mlp = 3 * hidden * inner
    embeddings = vocabulary * hidden
    tied = bool(config.get("tie_word_embeddings", False))
    # embeddings are looked up, not multiplied: a pass goes through the projection only
    return ModelShape(
        name=name,
        parameters=layers * (attention + used * one_mlp) + embeddings,
        stored_parameters=layers * (attention + experts * one_mlp) + embeddings * (1 if tied else 2),
        layers=layers,
        hidden=hidden,
        kv_heads=kv_heads,
        heads=heads,
        head_dim=head_dim,
    )


def from_parameters(name: str, parameters: float) -> ModelShape:
    """A decoder of so many parameters, proportioned as the Llama family: heads of 128, 8 of them for keys."""
    layers = max(2, round(2.6 * (parameters / 1e9) ** 0.33 * 8)) if parameters < 2e11 else 126
    hidden = max(128, round((parameters / (12 * layers)) ** 0.5 / 128) * 128)
    heads = max(1, hidden // 128)
    return ModelShape(
        name=name,
        parameters=int(parameters),
        stored_parameters=int(parameters),
        layers=layers,
        hidden=hidden,
        kv_heads=min(8, heads),
        heads=heads,
        head_dim=min(128, hidden),
    )


_LLAMA = {"hidden_act": "silu"}
KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "intermediate_size": 11008, "vocab_size": 32000},
    "llama-2-70b": {**_LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000},
    "llama-3-8b": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256},
    "llama-3-70b": {**_LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256},
    "llama-3.2-1b": {**_LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
                     "tie_word_embeddings": True},
    "qwen2.5-7b": {**_LLAMA, "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                   "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
    "qwen2.5-0.5b": {**_LLAMA, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
                     "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                     "tie_word_embeddings": True},
    "smollm2-135m": {**_LLAMA, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
                     "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152,
                     "tie_word_embeddings": True},
}  # fmt: skip
"""Public dimensions of models that people ask about."""


def find_shape(text: str) -> ModelShape:
    """A model by what the user typed: a known name, `70B`, a `config.json`, or a directory that has one.

    Raises:
        InvalidRequest: none of these.
    """
    if text in KNOWN_CONFIGS:
        return from_config(text, KNOWN_CONFIGS[text])
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            return from_config(path.parent.name or text, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise InvalidRequest(f"{path} is not JSON: {error}") from None
    number, unit = text[:-1], text[-1:].lower()
    try:
        return from_parameters(text, float(number) * {"b": 1e9, "m": 1e6}[unit])
    except (KeyError, ValueError):
        raise InvalidRequest(
            f"model {text!r} is not known.{near_misses(text, KNOWN_CONFIGS)} Give a config.json, a size as 70B, or "
            f"one of {', '.join(KNOWN_CONFIGS)}"
        ) from None


def find_accelerator(name: str, file: Path | None = None) -> Accelerator:
    """A device of the table, or of a file with a list of devices in the table's fields, which goes first.

    Raises:
        InvalidRequest: it is in neither, or the file is broken.
    """
    table = dict(ACCELERATORS)
    if file is not None:
        try:
            for entry in json.loads(file.read_text(encoding="utf-8")):
                device = Accelerator.model_validate(entry)
                table[device.name] = device
        except ValidationError as error:
            raise InvalidRequest(f"{file}: {explain(error, list(Accelerator.model_fields))}") from None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(f"{file} is no list of accelerators: {error}") from None
    if name not in table:
        raise InvalidRequest(
            f"accelerator {name!r} is not known.{near_misses(name, table)} Known: {', '.join(table)}; or give a file"
        )
    return table[name]
