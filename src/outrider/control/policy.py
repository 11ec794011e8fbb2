"""Windows that maximise expected tokens per second, by measured cost and estimated acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from outrider.params import Objective

Cost = Callable[[Sequence[int]], float]
"""Seconds of the pass when each request has this many draft tokens in it."""


def survival(probabilities: Sequence[float]) -> list[float]:
    """Probability that each draft token is reached and accepted: running product."""
    return list(accumulate(probabilities, mul))


def _throughput(row: Sequence[float]) -> list[float]:
    """What each draft token adds to the tokens of the step."""
    return list(row)


def _latency(row: Sequence[float]) -> list[float]:
    """What each draft token takes from 1 / (tokens of the step), to which the request's time per token is due."""
    values = []
    tokens = 1.0
    for s in row:
        values.append(1.0 / tokens - 1.0 / (tokens + s))
        tokens += s
    return values


def choose_windows(
    survivals: Sequence[Sequence[float]],
    cost: Cost,
    margin: float = 0.0,
    objective: Objective = "throughput",
) -> list[int]:
    """Windows that make the batch fastest.

    `throughput` maximises (sequences + expected accepted) / cost, the tokens per second of the batch. `latency`
    minimises cost * sum over sequences of 1 / (1 + expected accepted), the mean time per token of a request: among many
    it would rather help two a little than one a lot.

    Either way each draft token has a value that does not depend on the other requests and falls along a draft. So for
    each total number of draft tokens the best choice is the most valuable ones, which are prefixes; one pass over the
    tokens in order of value meets the optimum, and the cost is asked for at every total on the way, because it is not
    monotone.

    Args:
        survivals: for each sequence in the batch its draft tokens' survival; empty where it has no draft.
        cost: seconds of the pass by windows, the same for all windows of one total.
        margin: relative gain over plain decoding that a choice must promise, or nothing is drafted.
        objective: what is fast.

    Returns:
        A window for each sequence; all zero is plain decoding.
    """
    windows = [0] * len(survivals)
    best = list(windows)
    values = [(_latency if objective == "latency" else _throughput)(row) for row in survivals]
    total = float(len(survivals))
    best_time = cost(windows) / (1.0 + margin)  # relative: of what plain decoding takes for the same tokens
    order = sorted((-value, i) for i, row in enumerate(values) for value in row)
    gained = 0.0
    for negative, i in order:
        windows[i] += 1
        gained -= negative
        share = (total - gained) / total if objective == "latency" else total / (total + gained)
        time = cost(windows) * share
        if time < best_time:
            best_time, best = time, list(windows)
    return best
