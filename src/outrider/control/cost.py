"""What a pass costs: measured by width and sequences at load, corrected by every pass.

The curve is not monotone (other kernels serve other widths), so it is kept by width and never fitted to a formula.
Attention over the context adds to it in proportion to the sum of the tokens' contexts. A batch in which every sequence
just decodes takes other kernels than one in which any sequence has several tokens; each has its own numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from outrider.control.base import Load
from outrider.runners.base import Runner, Segment

CALIBRATED_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
CALIBRATED_BATCHES = (2, 4, 8)
_ROUNDS = 2
_BATCH_CONTEXT = 200
_BATCH_WINDOW = 4
_LONG_CONTEXT = 1024
_WRITTEN = 256
# How far one pass moves the estimates: the machine's speed of the moment fast, the shape of the curve slowly.
_SPEED_STEP = 0.1
_SHAPE_STEP = 0.03
_BATCH_STEP = 0.1
# A pass this many times slower or faster than expected says more about the machine's neighbours than about the width.
_OUTLIER = 1.5


class CostModel:
    """Seconds of a pass by its load, relative costs first of all: the speed of the moment cancels out of them.

    Args:
        curve: seconds by width of one sequence's pass at a short context, at least for width 1.
        attention: seconds for each token of context that each token of the pass attends to.
        plain: seconds by number of sequences when each has one token.
        mixing: by number of sequences, the seconds that a pass costs above the curve at its width, when some sequence
            in it has several tokens.
    """

    def __init__(
        self,
        curve: dict[int, float],
        attention: float = 0.0,
        plain: dict[int, float] | None = None,
        mixing: dict[int, float] | None = None,
    ) -> None:
        self._curve = dict(sorted(curve.items()))
        self._attention = attention
        self._plain = dict(plain or {})
        self._mixing = dict(mixing or {})
        self._seen: dict[tuple[int, bool], int] = {}
        self._speed = 1.0

    def seconds(self, load: Load) -> float:
        """Expected seconds of a pass."""
        return self._speed * (self._base(load) + self._attention * load.attention)

    def _base(self, load: Load) -> float:
        if load.sequences <= 1:
            return _at(self._curve, load.width)
        if load.width > load.sequences:
            return max(self._curve[1], _at(self._curve, load.width) + self._mixing_at(load.sequences))
        return self._plain_at(load.sequences)

    def _plain_at(self, sequences: int) -> float:
        return _at({1: self._curve[1], **self._plain}, sequences) if self._plain else _at(self._curve, sequences)

    def _mixing_at(self, sequences: int) -> float:
        return _at({1: 0.0, **self._mixing}, sequences)

    def observe(self, load: Load, seconds: float) -> None:
        """Correct the speed of the moment, and what is known of passes like this one."""
        ratio = seconds / self.seconds(load)
        ratio = min(max(ratio, 1.0 / _OUTLIER), _OUTLIER)
        if load.sequences <= 1:
            if load.width in self._curve:
                self._curve[load.width] *= ratio**_SHAPE_STEP
        else:
            missed = self._step(load) * (ratio - 1.0) * self.seconds(load) / self._speed
            if load.width > load.sequences:
                self._mixing[load.sequences] = self._mixing_at(load.sequences) + missed
            else:
                self._plain[load.sequences] = self._plain_at(load.sequences) + missed
        self._speed *= ratio**_SPEED_STEP

    def _step(self, load: Load) -> float:
        """How far this pass moves what is known of its kind: the first ones far, since calibration only saw a few."""
        kind = (load.sequences, load.width > load.sequences)
        seen = self._seen[kind] = self._seen.get(kind, 1) + 1
        return max(_BATCH_STEP, 1.0 / seen)

    def curve(self) -> dict[int, float]:
        """Seconds by width of one sequence's pass at a short context, as known now."""
        return {width: self._speed * seconds for width, seconds in self._curve.items()}


def _at(table: dict[int, float], key: int) -> float:
    """The table at a key: measured, between its neighbours, or along the last slope."""
    if key in table:
        return table[key]
    keys = sorted(table)
    if key < keys[0]:
        return table[keys[0]]
    for below, above in pairwise(keys):
        if below < key < above:
            share = (key - below) / (above - below)
            return table[below] + share * (table[above] - table[below])
    last = keys[-1]
    first = keys[max(0, len(keys) - 4)]
    slope = max(0.0, (table[last] - table[first]) / (last - first)) if last > first else 0.0
    return table[last] + slope * (key - last)


def calibrate(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CostModel:
    """Measure a runner that serves nobody yet; takes some fifty passes. Its KV cache is overwritten.

    The fastest of a few passes counts: what disturbs a pass only ever slows it.
    """
    info = runner.info
    # a few blocks, written once, stand in for a long context: what is in them does not matter
    written = list(range(min(info.num_blocks, -(-_WRITTEN // info.block_size))))
    room = min(info.context_length, _LONG_CONTEXT)
    blocks = (written * -(-room // (len(written) * info.block_size)))[: -(-room // info.block_size)]

    def seconds(*segments: tuple[int, int]) -> float:
        """Of a pass with segments of (width, start)."""
        batch = [Segment([0] * width, start, blocks, width) for width, start in segments]
        started = clock()
        runner.forward(batch)
        return clock() - started

    count = min(room, len(written) * info.block_size)
    runner.forward([Segment([0] * count, 0, blocks, 0)])
    widths: Sequence[int] = [width for width in CALIBRATED_WIDTHS if width <= room]
    near = min(_BATCH_WINDOW, widths[-1])
    far = room - near
    behind = min(_BATCH_CONTEXT, far - 1) if far > 1 else 0
    times: dict[tuple[tuple[int, int], ...], list[float]] = {((width, 0),): [] for width in widths}
    times[((near, far),)] = []
    for batch in CALIBRATED_BATCHES:
        times[((1, behind),) * batch] = []
        times[((1 + near, behind), *((1, behind),) * (batch - 1))] = []
    for number in range(1 + _ROUNDS):  # round by round, so that a slow moment does not fall on one kind of pass alone
        for segments, found in times.items():
            taken = seconds(*segments)
            if number > 0:  # kernels are compiled in the first round
                found.append(taken)
    curve = {width: min(times[((width, 0),)]) for width in widths}
    attention = max(0.0, min(times[((near, far),)]) - curve[near]) / (near * far) if far else 0.0
    plain, mixing = {}, {}
    for batch in CALIBRATED_BATCHES:
        alone = min(times[((1, behind),) * batch])
        mixed = min(times[((1 + near, behind), *((1, behind),) * (batch - 1))])
        width = batch + near
        plain[batch] = max(0.5 * alone, alone - attention * batch * behind)
        mixing[batch] = max(0.5 * mixed, mixed - attention * width * behind) - _at(curve, width)
    return CostModel(curve, attention, plain, mixing)
