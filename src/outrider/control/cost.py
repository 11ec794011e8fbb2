"""What a pass costs: measured by width and sequences at load, corrected by every pass.

The curve is not monotone (other kernels serve other widths), so it is kept by width and never fitted to a formula.
Attention over the context adds to it in proportion to the sum of the tokens' contexts. A batch in which every sequence
just decodes takes other kernels than one in which any sequence has several tokens; each has its own numbers.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

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
# A saved curve is believed when these widths' passes are dearer or cheaper than it says by factors this close.
_RECHECKED = (1, 4, 9)
_SAME_SHAPE = 1.25

log = logging.getLogger("outrider")


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

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {
            "curve": self.curve(),
            "attention": self._speed * self._attention,
            "plain": {n: self._speed * seconds for n, seconds in self._plain.items()},
            "mixing": {n: self._speed * seconds for n, seconds in self._mixing.items()},
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CostModel:
        """A model that was saved.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        tables = [
            {int(key): float(value) for key, value in saved[name].items()} for name in ("curve", "plain", "mixing")
        ]
        attention = float(saved["attention"])
        numbers = [attention, *(value for table in tables for value in table.values())]
        if 1 not in tables[0] or not all(map(math.isfinite, numbers)) or min(tables[0].values()) <= 0:
            raise ValueError("not a cost model")
        return cls(tables[0], attention, tables[1], tables[2])

    def scaled(self, factor: float) -> CostModel:
        """The same shape on a machine that is so many times slower."""
        return CostModel(
            {n: factor * seconds for n, seconds in self._curve.items()},
            factor * self._attention,
            {n: factor * seconds for n, seconds in self._plain.items()},
            {n: factor * seconds for n, seconds in self._mixing.items()},
        )


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


class _Stopwatch:
    """Times passes of a runner that serves nobody yet. Its KV cache is overwritten."""

    def __init__(self, runner: Runner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._info = runner.info
        info = runner.info
        self.room = min(info.context_length, _LONG_CONTEXT, info.num_blocks * info.block_size)
        self._tokens = [(7919 * position + 11) % info.vocabulary for position in range(self.room)]
        # each sequence of a batch reads blocks of its own, as it will; what is in them does not matter, so that a few
        # are written and copied
        self._per_sequence = -(-(_BATCH_CONTEXT + CALIBRATED_WIDTHS[-1]) // info.block_size)
        most = max(-(-self.room // info.block_size), CALIBRATED_BATCHES[-1] * self._per_sequence)
        self._used = min(info.num_blocks, most)
        count = min(self.room, _WRITTEN)
        written = -(-count // info.block_size)
        runner.forward([Segment(self._tokens[:count], 0, self._blocks(0, count), 0)])
        for block in range(written, self._used):
            runner.copy_block(block % written, block)

    def _blocks(self, number: int, end: int) -> list[int]:
        """Blocks of the sequence with this number."""
        count = -(-end // self._info.block_size)
        return [(number * self._per_sequence + i) % self._used for i in range(count)]

    def seconds(self, segments: Sequence[tuple[int, int]]) -> float:
        """Of a pass with segments of (width, start)."""
        batch = [
            Segment(self._tokens[:width], start, self._blocks(number, start + width), width)
            for number, (width, start) in enumerate(segments)
        ]
        started = self._clock()
        self._runner.forward(batch)
        return self._clock() - started

    def fastest(self, kinds: Sequence[tuple[tuple[int, int], ...]], rounds: int) -> dict[Any, float]:
        """Of each kind of pass. What disturbs a pass only ever slows it.

        Round by round, so that a slow moment does not fall on one kind alone; the first one, in which kernels are
        compiled, does not count.
        """
        times: dict[Any, list[float]] = {kind: [] for kind in kinds}
        for number in range(1 + rounds):
            for kind, found in times.items():
                taken = self.seconds(kind)
                if number > 0:
                    found.append(taken)
        return {kind: min(found) for kind, found in times.items()}


def calibrate(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CostModel:
    """Measure a runner that serves nobody yet; takes some fifty passes. Its KV cache is overwritten."""
    watch = _Stopwatch(runner, clock)
    room = watch.room
    widths = [width for width in CALIBRATED_WIDTHS if width <= room]
    near = min(_BATCH_WINDOW, widths[-1])
    far = room - near
    behind = min(_BATCH_CONTEXT, far - 1) if far > 1 else 0
    alone = {batch: ((1, behind),) * batch for batch in CALIBRATED_BATCHES}
    mixed = {batch: ((1 + near, behind), *((1, behind),) * (batch - 1)) for batch in CALIBRATED_BATCHES}
    single = {width: ((width, 0),) for width in widths}
    kinds = [*single.values(), ((near, far),), *alone.values(), *mixed.values()]
    times = watch.fastest(kinds, _ROUNDS)
    curve = {width: times[kind] for width, kind in single.items()}
    attention = max(0.0, times[((near, far),)] - curve[near]) / (near * far) if far else 0.0
    plain, mixing = {}, {}
    for batch in CALIBRATED_BATCHES:
        taken, dearer = times[alone[batch]], times[mixed[batch]]
        plain[batch] = max(0.5 * taken, taken - attention * batch * behind)
        mixing[batch] = max(0.5 * dearer, dearer - attention * (batch + near) * behind) - _at(curve, batch + near)
    return CostModel(curve, attention, plain, mixing)


def pass_seconds(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a pass over one token, of a runner that serves nobody yet. Its KV cache is overwritten."""
    kind = ((1, 0),)
    return _Stopwatch(runner, clock).fastest([kind], 2 * _ROUNDS)[kind]


def recalled(runner: Runner, path: Path, clock: Callable[[], float] = time.perf_counter) -> CostModel | None:
    """The model saved at `path`, if the runner still behaves like it; None where it must be measured anew.

    A few passes are compared with it: all may be slower or faster alike, which is the moment's speed, but not one
    against another.
    """
    try:
        saved = CostModel.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    watch = _Stopwatch(runner, clock)
    if watch.room < _BATCH_CONTEXT + max(_RECHECKED):
        return None
    times = watch.fastest([((width, 0),) for width in _RECHECKED], _ROUNDS)
    ratios = [times[((width, 0),)] / saved.seconds(Load(width, width * width // 2, 1)) for width in _RECHECKED]
    if max(ratios) > _SAME_SHAPE * min(ratios):
        return None
    return saved.scaled(sorted(ratios)[len(ratios) // 2])


def save_cost(model: CostModel, path: Path) -> None:
    """Keep a cost model for the next start; a folder that cannot be written is no reason to fail."""
    unfinished = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(model.as_json(), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        log.warning("cannot keep the measured cost at %s: %s", path, error)
