"""What a pass costs: measured by width at load, corrected by every pass.

The curve is not monotone (other kernels serve other widths), so it is kept by width and never fitted to a formula.
Attention over the context adds to it in proportion to the sum of the tokens' contexts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from outrider.control.base import Load
from outrider.runners.base import Runner, Segment

CALIBRATED_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
_PASSES_PER_WIDTH = 3
_LONG_CONTEXT = 1024
_WRITTEN = 256
# How far one pass moves the estimates: the machine's speed of the moment fast, the shape of the curve slowly.
_SPEED_STEP = 0.1
_SHAPE_STEP = 0.03
# A pass this many times slower or faster than expected says more about the machine's neighbours than about the width.
_OUTLIER = 1.5


class CostModel:
    """Seconds of a pass by its load, relative costs first of all: the speed of the moment cancels out of them.

    Args:
        curve: seconds by width at a short context, at least for width 1.
        attention: seconds for each token of context that each token of the pass attends to.
    """

    def __init__(self, curve: dict[int, float], attention: float = 0.0) -> None:
        self._curve = dict(sorted(curve.items()))
        self._attention = attention
        self._speed = 1.0

    def seconds(self, load: Load) -> float:
        """Expected seconds of a pass."""
        return self._speed * (self._at(load.width) + self._attention * load.attention)

    def _at(self, width: int) -> float:
        """The curve at a width: measured, between its neighbours, or along the last slope."""
        curve = self._curve
        if width in curve:
            return curve[width]
        widths = list(curve)
        if width < widths[0]:
            return curve[widths[0]]
        for below, above in pairwise(widths):
            if below < width < above:
                share = (width - below) / (above - below)
                return curve[below] + share * (curve[above] - curve[below])
        last = widths[-1]
        first = widths[max(0, len(widths) - 4)]
        slope = max(0.0, (curve[last] - curve[first]) / (last - first)) if last > first else 0.0
        return curve[last] + slope * (width - last)

    def observe(self, load: Load, seconds: float) -> None:
        """Correct the speed of the moment and the curve at this width by one pass."""
        ratio = seconds / self.seconds(load)
        ratio = min(max(ratio, 1.0 / _OUTLIER), _OUTLIER)
        self._speed *= ratio**_SPEED_STEP
        if load.width in self._curve:
            self._curve[load.width] *= ratio**_SHAPE_STEP

    def curve(self) -> dict[int, float]:
        """Seconds by width at a short context, as known now."""
        return {width: self._speed * seconds for width, seconds in self._curve.items()}


def calibrate(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CostModel:
    """Measure a runner that serves nobody yet; takes some thirty passes. Its KV cache is overwritten.

    The fastest of a few passes counts: what disturbs a pass only ever slows it.
    """
    info = runner.info
    # a few blocks, written once, stand in for a long context: what is in them does not matter
    written = list(range(min(info.num_blocks, -(-_WRITTEN // info.block_size))))
    room = min(info.context_length, _LONG_CONTEXT)
    blocks = (written * -(-room // (len(written) * info.block_size)))[: -(-room // info.block_size)]

    def seconds(width: int, start: int = 0) -> float:
        started = clock()
        runner.forward([Segment([0] * width, start, blocks, width)])
        return clock() - started

    count = min(room, len(written) * info.block_size)
    runner.forward([Segment([0] * count, 0, blocks, 0)])
    widths: Sequence[int] = [width for width in CALIBRATED_WIDTHS if width <= room]
    near = min(4, widths[-1])
    far = room - near
    times: dict[int, list[float]] = {width: [] for width in widths}
    far_times = []
    for _ in range(1 + _PASSES_PER_WIDTH):  # round by round, so that a slow moment does not fall on one width alone
        for width in widths:
            times[width].append(seconds(width))
        far_times.append(seconds(near, far))
    curve = {width: min(found[1:]) for width, found in times.items()}  # kernels are compiled in the first round
    attention = max(0.0, min(far_times[1:]) - curve[near]) / (near * far) if far else 0.0
    return CostModel(curve, attention)
