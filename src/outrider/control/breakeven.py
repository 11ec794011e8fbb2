"""Whether a draft can pay at all: the acceptance at which the best window gains nothing."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.control.base import Load
from outrider.control.cost import CostModel

WINDOWS = range(1, 9)


def speedup(cost: CostModel, draft_seconds: float, acceptance: Sequence[float]) -> float:
    """Expected speed over plain decoding of one sequence.

    Args:
        cost: of the target's passes.
        draft_seconds: that a draft token takes.
        acceptance: for each token of the window the probability that it is accepted if those before it were.

    Source: Leviathan et al. 2023, theorem 3.8, with measured passes in place of constants.
    """
    window, reached, tokens = len(acceptance), 1.0, 1.0
    for chance in acceptance:
        reached *= chance
        tokens += reached
    plain, verified = cost.seconds(Load(1, 0, 1)), cost.seconds(Load(1 + window, 0, 1))
    return tokens * plain / (verified + window * draft_seconds)


def break_even(cost: CostModel, draft_seconds: float) -> float | None:
    """The least acceptance at which some window of 1 to 8 pays; None where even a perfect draft does not."""

    def best(acceptance: float) -> float:
        return max(speedup(cost, draft_seconds, [acceptance] * window) for window in WINDOWS)

    if best(1.0) <= 1.0:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if best(middle) > 1.0 else (middle, high)
    return high
