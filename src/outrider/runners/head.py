"""A draft head on OpenVINO: two small graphs without a KV cache, written from plain arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from outrider.errors import ModelError
from outrider.models.head import START, STEP
from outrider.runners.openvino import default_threads
from outrider.runners.weights import in_bytes, kept

EPSILON = np.float32(1e-6)


def _norm(x: Any) -> Any:
    square = ops.reduce_mean(ops.multiply(x, x), ops.constant([-1], dtype=np.int64), keep_dims=True)
    return ops.divide(x, ops.sqrt(ops.add(square, ops.constant(EPSILON))))


def _times(x: Any, matrix: NDArray[np.float32], bits: int) -> Any:
    """x times the matrix transposed."""
    return ops.matmul(x, kept(matrix, bits), False, True)


def _gated(x: Any, weights: Mapping[str, NDArray[np.float32]], name: str, bits: int) -> Any:
    inner = weights[f"{name}.weight"].shape[0] // 2
    a = _times(x, weights[f"{name}.weight"][:inner], bits)
    b = _times(x, weights[f"{name}.weight"][inner:], bits)
    return _times(ops.multiply(ops.swish(a), b), weights[f"{name}_out.weight"], bits)


def write_head(weights: Mapping[str, NDArray[np.float32]], parts: int, directory: Path, *, bits: int = 16) -> None:
    """Write the graphs of a trained head.

    Args:
        weights: its arrays by name, as `train.head.Head.weights` gives them.
        parts: hidden states side by side in the target's states.
        directory: gets two graphs; must exist.
        bits: 16 keeps weights as halves, 8 as bytes.
    """
    width = weights["out.weight"].shape[1]
    states = ops.parameter([-1, parts * width], np.float32, name="states")
    by_part = _norm(ops.reshape(states, ops.constant([0, parts, width], dtype=np.int64), True))
    flat = ops.reshape(by_part, ops.constant([0, parts * width], dtype=np.int64), True)
    started = _times(flat, weights["start.weight"], bits)
    ov.save_model(ov.Model([ops.result(started)], [states], "head_start"), directory / f"{START}.xml", False)

    tokens = ops.parameter([-1], np.int64, name="tokens")
    state = ops.parameter([-1, width], np.float32, name="state")
    embeddings = weights["embed.weight"]
    embeddings = embeddings / np.sqrt(np.square(embeddings).mean(1, keepdims=True) + EPSILON)
    whole, scale = in_bytes(embeddings)  # a table is read a row at a time: bytes cost no accuracy
    table = ops.constant(whole)
    axis = ops.constant(0, dtype=np.int64)
    rows = ops.multiply(
        ops.convert(ops.gather(table, tokens, axis), np.float32),
        ops.gather(ops.constant(scale), tokens, axis),
    )
    mixed = ops.add(state, _gated(ops.concat([_norm(state), _norm(rows)], 1), weights, "mix", bits))
    after = ops.add(mixed, _gated(_norm(mixed), weights, "deepen", bits))
    said = ops.multiply(_norm(after), ops.constant(weights["gain"][None]))
    logits = _times(said, weights["out.weight"], bits)
    ov.save_model(
        ov.Model([ops.result(logits), ops.result(after)], [tokens, state], "head_step"),
        directory / f"{STEP}.xml",
        False,
    )


class OpenVINOHead:
    """Runs a head's graphs. Used from one thread only.

    Args:
        directory: what `write_head` wrote.
        threads: CPU threads; by default one per physical core.

    Raises:
        ModelError: the files cannot be read.
    """

    def __init__(self, directory: Path, *, threads: int | None = None) -> None:
        core = ov.Core()
        config = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads or default_threads(),
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        try:
            self._start, self._step = (
                core.compile_model(directory / f"{part}.xml", "CPU", config).create_infer_request()
                for part in (START, STEP)
            )
        except RuntimeError as error:
            raise ModelError(f"{directory} holds no draft head that loads: {str(error).splitlines()[-1]}") from None
        self._infer_seconds = 0.0

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the head's own passes so far."""
        return self._infer_seconds

    def start(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `proposers.draft_head.HeadRunner`."""
        started = time.perf_counter()
        self._start.set_input_tensor(ov.Tensor(np.ascontiguousarray(states)))
        self._start.infer()
        found: NDArray[np.float32] = self._start.get_output_tensor(0).data.copy()
        self._infer_seconds += time.perf_counter() - started
        return found

    def step(
        self, tokens: NDArray[np.int64], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See `proposers.draft_head.HeadRunner`."""
        started = time.perf_counter()
        self._step.set_input_tensor(0, ov.Tensor(tokens))
        self._step.set_input_tensor(1, ov.Tensor(state))
        self._step.infer()
        logits: NDArray[np.float32] = self._step.get_output_tensor(0).data
        after: NDArray[np.float32] = self._step.get_output_tensor(1).data.copy()
        self._infer_seconds += time.perf_counter() - started
        return logits, after
