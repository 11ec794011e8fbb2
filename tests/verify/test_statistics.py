"""Rejection, block and coupled verification leave the target's joint distribution as it is."""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from outrider.params import SamplingParams, Verification
from outrider.proposers.base import Draft
from outrider.verify import Sampler, verify

V = 8
WINDOW = 3
DRAWS = 30_000
MANY_DRAWS = 200_000
PARAMS = SamplingParams(temperature=1.0)


class Markov:
    """A model whose next-token distribution depends on the last token: easy to multiply out by hand."""

    def __init__(self, seed: int, sharpness: float = 1.5) -> None:
        self.logits = np.random.default_rng(seed).normal(0, sharpness, (V, V)).astype(np.float32)
        exp = np.exp(self.logits.astype(np.float64))
        self.probs = exp / exp.sum(axis=1, keepdims=True)


TARGET = Markov(1)
# A draft that is neither useless nor right: half the target, half something else.
DRAFT = Markov(2)
DRAFT.probs = 0.5 * DRAFT.probs + 0.5 * TARGET.probs
CUMULATIVE = [[*row[:-1], 1.0] for row in DRAFT.probs.cumsum(axis=1).tolist()]


def propose(kind: str, last: int, rng: np.random.Generator) -> Draft:
    tokens: list[int] = []
    rows: list[NDArray[np.float64]] = []
    for _ in range(WINDOW):
        q = DRAFT.probs[last]
        last = int(q.argmax()) if kind == "point" else bisect(CUMULATIVE[last], rng.random())
        tokens.append(last)
        rows.append(q)
    probs = None if kind == "point" else np.array(rows, np.float32)
    return Draft(tokens, [0.5] * WINDOW, probs)


def generate(way: Verification, kind: str, seed: int, rng: np.random.Generator) -> tuple[tuple[int, ...], int]:
    """Decode until a window's worth of tokens is out; return the first three and the first window's accepted."""
    start = 0
    sampler = Sampler(PARAMS, seed=seed, stream=0, prompt=[start], vocabulary=V)
    out: list[int] = []
    first = -1
    while len(out) < WINDOW:
        last = out[-1] if out else start
        draft = propose(kind, last, rng)
        verdict = verify(TARGET.logits[[last, *draft.tokens]], draft, sampler, way)
        first = verdict.accepted if first < 0 else first
        out += verdict.tokens
    return tuple(out[:WINDOW]), first


def expected() -> dict[tuple[int, ...], float]:
    p = TARGET.probs
    return {(a, b, c): p[0, a] * p[a, b] * p[b, c] for a, b, c in product(range(V), repeat=3)}


def chi_square(counts: dict[tuple[int, ...], int], draws: int) -> float:
    """p-value against the target's joint; cells that expect under five draws are put together."""
    want = expected()
    big = [cell for cell, p in want.items() if p * draws >= 5]
    observed = [counts.get(cell, 0) for cell in big]
    hoped = [want[cell] * draws for cell in big]
    observed.append(draws - sum(observed))
    hoped.append(draws - sum(hoped))
    return float(chisquare(observed, hoped, sum_check=False).pvalue)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["point", "drawn"])
@pytest.mark.parametrize("way", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("draws", [DRAWS, pytest.param(MANY_DRAWS, marks=pytest.mark.slow)])
def test_joint_distribution_is_the_targets(draws: int, way: Verification, kind: str) -> None:
    rng = np.random.default_rng(42)
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        cell, _ = generate(way, kind, seed, rng)
        counts[cell] = counts.get(cell, 0) + 1
    assert chi_square(counts, draws) > 1e-4


def test_the_statistic_notices_a_lossy_rule() -> None:
    """Accepting against the target's own sampled token with no residual (a peer's rule) must fail the test."""
    rng = np.random.default_rng(42)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(DRAWS):
        last, cell = 0, []
        for _ in range(WINDOW):
            q, p = DRAFT.probs[last], TARGET.probs[last]
            x, y = int(rng.choice(V, p=q)), int(rng.choice(V, p=p))
            last = x if rng.random() < min(1.0, p[y] / q[x]) else y
            cell.append(last)
        counts[tuple(cell)] = counts.get(tuple(cell), 0) + 1
    assert chi_square(counts, DRAWS) < 1e-4


@pytest.mark.parametrize("kind", ["point", "drawn"])
def test_block_accepts_at_least_as_many_as_rejection(kind: str) -> None:
    """On average: for point drafts the two are equal in expectation, for drawn drafts block is ahead."""
    rng = np.random.default_rng(7)
    ahead = []
    for seed in range(40_000):
        draft = propose(kind, 0, rng)
        accepted = {}
        for way in ("rejection", "block"):
            sampler = Sampler(PARAMS, seed=seed, stream=0, prompt=[0], vocabulary=V)
            accepted[way] = verify(TARGET.logits[[0, *draft.tokens]], draft, sampler, way).accepted
        ahead.append(accepted["block"] - accepted["rejection"])
    error = np.std(ahead) / np.sqrt(len(ahead))
    assert np.mean(ahead) > -4 * error
    if kind == "drawn":
        assert np.mean(ahead) > 4 * error


@pytest.mark.parametrize("way", ["coupled", "rejection", "block"])
def test_point_drafts_are_accepted_as_often_as_the_target_says_them(way: Verification) -> None:
    rng = np.random.default_rng(5)
    draft = propose("point", 0, rng)
    path = [0, *draft.tokens]
    survival = np.cumprod([TARGET.probs[a, b] for a, b in pairwise(path)])
    total = 0
    for seed in range(20_000):
        sampler = Sampler(PARAMS, seed=seed, stream=0, prompt=[0], vocabulary=V)
        total += verify(TARGET.logits[path], draft, sampler, way).accepted
    mean = survival.sum()
    second = sum((2 * i - 1) * s for i, s in enumerate(survival, start=1))
    assert abs(total / 20_000 - mean) < 4 * np.sqrt((second - mean**2) / 20_000)


def test_coupled_token_is_the_same_for_every_drafter() -> None:
    rng = np.random.default_rng(3)
    for seed in range(2_000):
        texts = {generate("coupled", kind, seed, rng)[0] for kind in ("point", "drawn", "drawn")}
        assert len(texts) == 1
