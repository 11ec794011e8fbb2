"""Windows that maximise the batch's expected tokens per second, by measured cost and estimated acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

Cost = Callable[[Sequence[int]], float]
"""Seconds of the pass when each request has this many draft tokens in it."""


def survival(probabilities: Sequence[float]) -> list[float]:
    """Probability that each draft token is reached and accepted: running product."""
    return list(accumulate(probabilities, mul))


def choose_windows(survivals: Sequence[Sequence[float]], cost: Cost, margin: float = 0.0) -> list[int]:
    """Windows that maximise (sequences + expected accepted) / cost.

    For each total number of draft tokens the best choice is the likeliest ones, and since survival falls along a draft
    those are prefixes; so one pass over the tokens in order of survival meets the optimum, and the cost is asked for at
    every total on the way, because it is not monotone.

    Args:
        survivals: for each sequence in the batch its draft tokens' survival; empty where it has no draft.
        cost: seconds of the pass by windows.
        margin: relative gain over plain decoding that a choice must promise, or nothing is drafted.

    Returns:
        A window for each sequence; all zero is plain decoding.
    """
    windows = [0] * len(survivals)
    best = list(windows)
    tokens = float(len(survivals))
    plain = tokens / cost(windows)
    best_speed = plain * (1.0 + margin)
    order = sorted((-s, i) for i, row in enumerate(survivals) for s in row)
    for negative, i in order:
        windows[i] += 1
        tokens -= negative
        speed = tokens / cost(windows)
        if speed > best_speed:
            best_speed, best = speed, list(windows)
    return best
