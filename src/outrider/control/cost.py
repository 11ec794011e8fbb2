"""What a pass costs: measured by width and sequences at load, corrected by every pass.

The curve is not monotone (other kernels serve other widths), so it is kept by width and never fitted to a formula.
Attention over the context adds to it in proportion to the sum of the tokens' contexts. A batch in which every sequence
just decodes takes other kernels than one in which any sequence has several tokens; each has its own numbers. Going from
one to the other costs extra in both directions: other kernels read other copies of the weights, which the passes before
have pushed out of the caches.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider.control.base import Load
from outrider.runners.base import Runner, Segment

CALIBRATED_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
CALIBRATED_BATCHES = (2, 4, 8, 16)
_ROUNDS = 2
_BATCH_CONTEXT = 200
_BATCH_WINDOW = 4
_LONG_CONTEXT = 1024
_WRITTEN = 256
# How far one pass moves the estimates. Plain passes tell the machine's speed of the moment; those with drafts tell
# little of it, or a width that is dearer than thought would pass for a slow moment.
_SPEED_STEP = 0.1
_DRAFTED_SPEED_STEP = 0.02
_SHAPE_STEP = 0.015
_SHAPE_CALIBRATED = 8
_SWITCH_STEP = 0.1
_RUN_STEP = 0.05
_FIRST_RUN = 2.0
_PLAIN_STEP = 0.05
_LINE_FORGET = 0.99
_PRIOR_WEIGHT = 3.0
# A pass this many times slower or faster than expected says more about the machine's neighbours than about the width.
_OUTLIER = 1.5
# A saved curve is believed when these widths' passes are dearer or cheaper than it says by factors this close.
_RECHECKED = (1, 4, 9)
_SAME_SHAPE = 1.25

log = logging.getLogger("outrider")


class Line:
    """What drafts cost a batch: an offset and a slope, fitted to two points known at first and to passes since.

    Args:
        points: (draft tokens in the pass, seconds above plain decoding), at two places.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._prior = [_moments(x, y, _PRIOR_WEIGHT) for x, y in points]
        self._seen: tuple[float, ...] = (0.0,) * 5
        self._fit()

    def add(self, drafted: int, seconds: float) -> None:
        """Learn from a pass."""
        new = _moments(drafted, seconds, 1.0)
        self._seen = tuple(old * _LINE_FORGET + more for old, more in zip(self._seen, new, strict=True))
        self._fit()

    def _fit(self) -> None:
        weight, x, y, xx, xy = (float(sum(column)) for column in zip(*self._prior, self._seen, strict=True))
        spread = xx - x * x / weight
        self._slope = max(0.0, (xy - x * y / weight) / spread) if spread > 1e-12 else 0.0
        self._offset = (y - self._slope * x) / weight

    def at(self, drafted: float) -> float:
        """Seconds above plain decoding."""
        return self._offset + self._slope * drafted

    def points(self) -> list[tuple[float, float]]:
        """Two points that say what is known now."""
        return [(float(x), self.at(x)) for x in (_BATCH_WINDOW, 4 * _BATCH_WINDOW)]


def _moments(x: float, y: float, weight: float) -> tuple[float, ...]:
    return (weight, weight * x, weight * y, weight * x * x, weight * x * y)


class CostModel:
    """Seconds of a pass by its load, relative costs first of all: the speed of the moment cancels out of them.

    Args:
        curve: seconds by width of one sequence's pass at a short context, at least for width 1.
        attention: seconds for each token of context that each token of the pass attends to.
        plain: seconds by number of sequences when each has one token.
        mixed: by number of sequences, two points of the seconds that draft tokens add to plain decoding.
        switch: seconds that a pass with several tokens of a sequence costs more behind a plain one.
        back: seconds that a plain pass costs more behind one with several tokens of a sequence.
    """

    def __init__(
        self,
        curve: dict[int, float],
        attention: float = 0.0,
        plain: dict[int, float] | None = None,
        mixed: Mapping[int, Sequence[tuple[float, float]]] | None = None,
        switch: float = 0.0,
        back: float = 0.0,
    ) -> None:
        self._curve = dict(sorted(curve.items()))
        self._attention = attention
        self._plain = dict(plain or {})
        self._lines = {sequences: Line(points) for sequences, points in (mixed or {}).items()}
        self._seen: dict[int, int] = {}
        self._seen_widths: dict[int, int] = {}
        self._speed = 1.0
        self._was_plain: bool | None = None  # the last pass; None before the first
        self._switch = switch
        self._back = back
        self._run = 0
        self._usual_run = _FIRST_RUN

    def seconds(self, load: Load) -> float:
        """Expected seconds of a pass behind one of its own kind."""
        return self._speed * (self._base(load) + self._attention * load.attention)

    def entry(self) -> float:
        """Seconds to count, beside its own, against a pass with drafts in a batch that would only decode without.

        There and back again, shared by as many passes as usually follow each other. Once they have begun nothing is
        counted: the way back is paid now or later.
        """
        return self._speed * (self._switch + self._back) / self._usual_run if self._was_plain else 0.0

    def _base(self, load: Load) -> float:
        if load.sequences <= 1:
            return max(self._curve[1], _at(self._curve, load.width))
        plain = self._plain_at(load.sequences)
        drafted = load.width - load.sequences
        return plain + max(0.0, self._added(load.sequences, drafted)) if drafted > 0 else plain

    def _plain_at(self, sequences: int) -> float:
        return _at({1: self._curve[1], **self._plain}, sequences) if self._plain else _at(self._curve, sequences)

    def _added(self, sequences: int, drafted: int) -> float:
        """Seconds that draft tokens add to a batch; by the curve where no batch was measured."""
        if sequences in self._lines:
            return self._lines[sequences].at(drafted)
        if self._lines:
            return _at({size: line.at(drafted) for size, line in sorted(self._lines.items())}, sequences)
        return _at(self._curve, sequences + drafted) - self._plain_at(sequences)

    def observe(self, load: Load, seconds: float) -> None:
        """Correct the speed of the moment, and what is known of passes like this one."""
        plain = load.width <= load.sequences
        changed = self._was_plain is not None and plain != self._was_plain
        change = (self._back if plain else self._switch) if changed else 0.0
        expected = self.seconds(load) + self._speed * change
        ratio = min(max(seconds / expected, 1.0 / _OUTLIER), _OUTLIER)
        known = ratio * expected / self._speed - self._attention * load.attention
        if changed and (plain or load.sequences <= 1):
            excess = max(0.0, known - self._base(load))
            if plain:
                self._back += _SWITCH_STEP * (excess - self._back)
            else:
                self._switch += _SWITCH_STEP * (excess - self._switch)
        elif load.sequences <= 1:
            if load.width in self._curve and load.width > 1:
                self._curve[load.width] *= ratio ** self._shape_step(load.width)
        elif plain:
            usual = self._plain_at(load.sequences)
            self._plain[load.sequences] = usual + self._plain_step(load.sequences) * (known - usual)
        else:
            added = known - change - self._plain_at(load.sequences)
            self._line(load.sequences).add(load.width - load.sequences, added)
        # a plain pass behind another kind that is faster than plain ones are thought to be tells the speed all the same
        tells = plain and (not changed or ratio * expected < self.seconds(load))
        self._speed *= ratio ** (_SPEED_STEP if tells else _DRAFTED_SPEED_STEP)
        if plain and self._run:
            self._usual_run += _RUN_STEP * (self._run - self._usual_run)
        self._run = 0 if plain else self._run + 1
        self._was_plain = plain

    def _shape_step(self, width: int) -> float:
        """How far a pass moves what is known of its width: the first ones further, since calibration saw two."""
        seen = self._seen_widths[width] = self._seen_widths.get(width, _SHAPE_CALIBRATED) + 1
        return max(_SHAPE_STEP, 1.0 / seen)

    def _plain_step(self, sequences: int) -> float:
        """How far a pass moves what is known of its batch size: the first ones far, since calibration saw few."""
        seen = self._seen[sequences] = self._seen.get(sequences, 1) + 1
        return max(_PLAIN_STEP, 1.0 / seen)

    def _line(self, sequences: int) -> Line:
        if sequences not in self._lines:
            places = (_BATCH_WINDOW, 4 * _BATCH_WINDOW)
            self._lines[sequences] = Line([(float(x), self._added(sequences, x)) for x in places])
        return self._lines[sequences]

    def curve(self) -> dict[int, float]:
        """Seconds by width of one sequence's pass at a short context, as known now."""
        return {width: self._speed * seconds for width, seconds in self._curve.items()}

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        now = self.scaled(self._speed)
        return {
            "curve": now._curve,
            "attention": now._attention,
            "plain": now._plain,
            "mixed": {sequences: line.points() for sequences, line in now._lines.items()},
            "switch": now._switch,
            "back": now._back,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> CostModel:
        """A model that was saved.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        curve, plain = ({int(key): float(value) for key, value in saved[name].items()} for name in ("curve", "plain"))
        mixed = {int(key): [(float(x), float(y)) for x, y in points] for key, points in saved["mixed"].items()}
        attention, switch, back = (float(saved[name]) for name in ("attention", "switch", "back"))
        numbers = [
            attention,
            switch,
            back,
            *curve.values(),
            *plain.values(),
            *(y for points in mixed.values() for _, y in points),
        ]
        if 1 not in curve or not all(map(math.isfinite, numbers)) or min(*curve.values(), *plain.values(), 1.0) <= 0:
            raise ValueError("not a cost model")
        return cls(curve, attention, plain, mixed, switch, back)

    def scaled(self, factor: float) -> CostModel:
        """What is known now, on a machine that is so many times slower."""
        return CostModel(
            {width: factor * seconds for width, seconds in self._curve.items()},
            factor * self._attention,
            {sequences: factor * seconds for sequences, seconds in self._plain.items()},
            {n: [(x, factor * y) for x, y in line.points()] for n, line in self._lines.items()},
            factor * self._switch,
            factor * self._back,
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


_Kind = tuple[tuple[int, int], ...]
"""A pass by its segments of (width, start)."""


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

    def seconds(self, segments: _Kind) -> float:
        """Of a pass."""
        batch = [
            Segment(self._tokens[:width], start, self._blocks(number, start + width), width)
            for number, (width, start) in enumerate(segments)
        ]
        started = self._clock()
        self._runner.forward(batch)
        return self._clock() - started

    def fastest(self, kinds: Sequence[_Kind], rounds: int) -> dict[Any, float]:
        """Of each kind of pass behind one like it. What disturbs a pass only ever slows it.

        Round by round, so that a slow moment does not fall on one kind alone; the first one, in which kernels are
        compiled, does not count.
        """
        times: dict[Any, list[float]] = {kind: [] for kind in kinds}
        was_plain = None
        for number in range(1 + rounds):
            for kind, found in times.items():
                plain = all(width == 1 for width, _ in kind)
                if number > 0 and plain != was_plain:
                    self.seconds(kind)
                was_plain = plain
                taken = self.seconds(kind)
                if number > 0:
                    found.append(taken)
        return {kind: min(found) for kind, found in times.items()}

    def changes(self, plain: _Kind, wide: _Kind, rounds: int) -> tuple[float, float]:
        """Seconds that a pass of the second kind costs more behind one of the first than behind its own, and the first
        behind the second."""
        there, back = [], []
        for _ in range(rounds):
            self.seconds(wide)
            steady = self.seconds(wide)
            after_wide = self.seconds(plain)
            back.append(after_wide - self.seconds(plain))
            there.append(self.seconds(wide) - steady)
        return tuple(max(0.0, sorted(found)[rounds // 2]) for found in (there, back))  # type: ignore[return-value]


def calibrate(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CostModel:
    """Measure a runner that serves nobody yet; takes some seventy passes. Its KV cache is overwritten."""
    watch = _Stopwatch(runner, clock)
    room = watch.room
    widths = [width for width in CALIBRATED_WIDTHS if width <= room]
    near = min(_BATCH_WINDOW, widths[-1])
    far = room - near
    behind = min(_BATCH_CONTEXT, far - 1) if far > 1 else 0
    alone = {batch: ((1, behind),) * batch for batch in CALIBRATED_BATCHES}
    mixed = {  # one sequence with a draft, and four of them, or all
        (batch, drafts): ((1 + near, behind),) * drafts + ((1, behind),) * (batch - drafts)
        for batch in CALIBRATED_BATCHES
        for drafts in (1, min(4, batch))
    }
    single = {width: ((width, 0),) for width in widths}
    times = watch.fastest([*single.values(), ((near, far),), *alone.values(), *mixed.values()], _ROUNDS)
    curve = {width: times[kind] for width, kind in single.items()}
    attention = max(0.0, times[((near, far),)] - curve[near]) / (near * far) if far else 0.0
    plain = {batch: max(0.5 * times[k], times[k] - attention * batch * behind) for batch, k in alone.items()}
    points: dict[int, list[tuple[float, float]]] = {}
    for (batch, drafts), kind in mixed.items():
        drafted = near * drafts
        taken = times[kind] - attention * (batch + drafted) * behind
        points.setdefault(batch, []).append((drafted, max(0.0, taken - plain[batch])))
    switch, back = watch.changes(((1, behind),), ((near, behind),), 1 + 2 * _ROUNDS)
    return CostModel(curve, attention, plain, points, switch, back)


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
