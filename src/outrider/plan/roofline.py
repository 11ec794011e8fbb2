"""What passes take, from data sheets or from measurements: prefill, decode, verification, drafting.

A pass reads every weight and the KV cache of its sequences once and computes for each of its tokens; it takes as long
as the slower of the two (Williams et al. 2009), with what starting kernels and summing over devices take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.errors import InvalidRequest
from outrider.plan.hardware import GIB, Accelerator, ModelShape, Precision


class PassCost(Protocol):
    """What a pass of one model takes."""

    def seconds(self, sequences: int, tokens_each: float, context_tokens: float) -> float:
        """Seconds of a pass.

        Args:
            sequences: in the batch.
            tokens_each: of each sequence in the pass; 1 is plain decoding.
            context_tokens: of each sequence before it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a pass spends its time, in seconds."""

    memory: float
    compute: float
    overhead: float

    @property
    def total(self) -> float:
        """Seconds of the pass."""
        return max(self.memory, self.compute) + self.overhead

    @property
    def compute_bound(self) -> bool:
        """Whether more tokens take more time."""
        return self.compute > self.memory


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on devices that split it among them."""

    model: ModelShape
    accelerator: Accelerator
    precision: Precision = "f16"
    tensor_parallel: int = 1
    kv_bytes_per_number: float = 2.0
    memory_efficiency: float = 0.8
    """Share of the bandwidth that passes reach."""
    compute_efficiency: float = 0.6
    """Share of the peak rate that passes reach."""
    seconds_per_layer: float = 5e-6
    """To start a layer's kernels."""
    seconds_per_exchange: float = 8e-6
    """To start an exchange between devices, of which a layer has two."""

    def parts(self, sequences: int, tokens_each: float, context_tokens: float) -> Parts:
        """See `PassCost.seconds`."""
        model, device, ways = self.model, self.accelerator, self.tensor_parallel
        tokens = sequences * tokens_each
        kv = sequences * (context_tokens + tokens_each) * model.kv_bytes_per_token(self.kv_bytes_per_number)
        read = (model.weight_bytes(self.precision) + kv) / ways
        attended = 4 * model.layers * model.heads * model.head_dim * (context_tokens + tokens_each / 2)
        operations = tokens * (2 * model.parameters + attended) / ways
        exchanged = 0.0
        if ways > 1:
            size = tokens * model.hidden * 2.0 * 2 * (ways - 1) / ways
            exchanged = 2 * model.layers * (self.seconds_per_exchange + size / (device.link_gb_per_s * 1e9))
        return Parts(
            memory=read / (device.bandwidth_gb_per_s * 1e9 * self.memory_efficiency),
            compute=operations / (device.tflops(self.precision) * 1e12 * self.compute_efficiency),
            overhead=model.layers * self.seconds_per_layer + exchanged,
        )

    def seconds(self, sequences: int, tokens_each: float, context_tokens: float) -> float:
        """See `PassCost`."""
        return self.parts(sequences, tokens_each, context_tokens).total


class Point(BaseModel):
    """One measured pass."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    batch: int = Field(ge=1)
    window: int = Field(ge=0)
    """Draft tokens of each sequence in the pass."""
    context_tokens: float = Field(ge=0)
    seconds: float = Field(gt=0)


class Calibrated:
    """What passes take, fitted to measurements: a line in sequences, tokens and context for plain decoding, another
    for passes with drafts, both with what is left of the measurements between them.

    Plain passes and passes with drafts run other kernels, so nothing is said of one from the other. Beyond the
    measured batches and windows the lines go on.

    Args:
        points: measured.

    Raises:
        InvalidRequest: too few points.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        plain = [point for point in points if point.window == 0]
        drafted = [point for point in points if point.window > 0]
        if len(plain) < 2 or len(drafted) < 3:
            raise InvalidRequest(
                f"calibration needs 2 plain passes and 3 with drafts at least; there are {len(plain)} and "
                f"{len(drafted)}"
            )
        self._lines = {
            kind: _fit([(_features(p.batch, p.window + 1, p.context_tokens), p.seconds) for p in own])
            for kind, own in ((False, plain), (True, drafted))
        }
        self._left = [
            (
                math.log2(p.batch),
                float(p.window),
                math.log(p.seconds / self._line(p.batch, p.window + 1, p.context_tokens)),
            )
            for p in points
        ]

    def _line(self, sequences: int, tokens_each: float, context_tokens: float) -> float:
        features = _features(sequences, tokens_each, context_tokens)
        return max(1e-9, float(features @ self._lines[tokens_each > 1]))

    def seconds(self, sequences: int, tokens_each: float, context_tokens: float) -> float:
        """See `PassCost`."""
        line = self._line(sequences, tokens_each, context_tokens)
        place = math.log2(sequences), tokens_each - 1
        kind = tokens_each > 1
        top = bottom = 0.0
        for batch, window, left in self._left:
            if (window > 0) == kind:
                distance = (batch - place[0]) ** 2 + (window - place[1]) ** 2
                weight = 1.0 / (distance + 1e-3) ** 2
                top += weight * left
                bottom += weight
        return line * math.exp(top / bottom)


def _features(sequences: int, tokens_each: float, context_tokens: float) -> np.ndarray:
    tokens = sequences * tokens_each
    return np.array([1.0, sequences, tokens, tokens * context_tokens / 1000.0])


def _fit(rows: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Coefficients of none below 0 with the least relative error (coordinate descent)."""
    a = np.array([features / seconds for features, seconds in rows])
    b = np.ones(len(rows))
    x = np.zeros(a.shape[1])
    for _ in range(2000):
        for column in range(a.shape[1]):
            own = a[:, column]
            left = b - a @ x + own * x[column]
            x[column] = max(0.0, float(own @ left) / float(own @ own))
    return x


class CalibrationError(BaseModel):
    """How far a calibrated prediction is from points that it was not fitted to."""

    batch: int
    window: int
    measured_seconds: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_seconds / self.measured_seconds - 1.0


def held_out_errors(points: Sequence[Point]) -> list[CalibrationError]:
    """Predict each point from all the others."""
    found = []
    for number, point in enumerate(points):
        others = [*points[:number], *points[number + 1 :]]
        cost = Calibrated(others)
        found.append(
            CalibrationError(
                batch=point.batch,
                window=point.window,
                measured_seconds=point.seconds,
                predicted_seconds=cost.seconds(point.batch, point.window + 1, point.context_tokens),
            )
        )
    return found


def read_points(path: Path) -> list[Point]:
    """Measured passes: JSON with a list under `points`, as `benchmarks/grid.py` writes it.

    Raises:
        InvalidRequest: the file is missing or has another form.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [Point.model_validate(entry) for entry in found["points"]]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise InvalidRequest(
            f'{path} has no measured passes ({str(error).splitlines()[0]}); it should hold {{"points": [{{"batch", '
            '"window", "context_tokens", "seconds"}, ...]}'
        ) from None


def memory_budget_bytes(accelerator: Accelerator, devices: int, utilisation: float) -> float:
    """Memory that weights and KV cache may take."""
    return accelerator.memory_gib * GIB * devices * utilisation
