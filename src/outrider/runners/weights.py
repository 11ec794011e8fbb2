"""How matrices are kept in graphs that Outrider writes: as halves, or as bytes with a scale for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from openvino import opset13 as ops


def kept(matrix: NDArray[np.float32], bits: int) -> Any:
    """A part of a graph that gives this matrix, shape [rows, columns], as nearly as so many bits can."""
    if bits == 16:
        return ops.convert(ops.constant(matrix.astype(np.float16)), np.float32)
    whole, scale = in_bytes(matrix)
    return ops.multiply(ops.convert(ops.constant(whole), np.float32), ops.constant(scale))


def in_bytes(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Whole numbers of a matrix, shape [rows, columns], and what each row's are worth, shape [rows, 1]."""
    scale = np.maximum(np.abs(matrix).max(1, keepdims=True), 1e-12) / 127
    return np.rint(matrix / scale).astype(np.int8), scale.astype(np.float32)
