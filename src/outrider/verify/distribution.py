"""From shaped logits to the target distribution: temperature, top-k, top-p, min-p, and drawing from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.params import SamplingParams
from outrider.verify.noise import exponential

Scores = NDArray[np.float32]
"""Shaped logits of one position, shape [vocabulary]."""

# A first guess at where a nucleus ends: at most ten thousand tokens can be more likely than this, and in practice
# a few dozen are, so that sorting the vocabulary is hardly ever needed.
_NUCLEUS_FLOOR = 1e-4


@dataclass(frozen=True, slots=True)
class Distribution:
    """Unnormalised probabilities of the tokens that are left after the cuts."""

    ids: NDArray[np.int64] | None
    """Token ids in ascending order, or None for the whole vocabulary."""
    weights: NDArray[np.float32]
    """One for each id (each token where ids is None), the largest 1."""

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum(dtype=np.float64))

    def token(self, index: int) -> int:
        """Token id at an index of `weights`."""
        return index if self.ids is None else int(self.ids[index])

    def weight(self, token: int) -> float:
        """Weight of a token, 0 where the cuts removed it."""
        if self.ids is None:
            return float(self.weights[token])
        index = int(np.searchsorted(self.ids, token))
        return float(self.weights[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def dense(self, vocabulary: int) -> NDArray[np.float64]:
        """Normalised probabilities, shape [vocabulary]."""
        probs = np.zeros(vocabulary)
        probs[slice(None) if self.ids is None else self.ids] = self.weights
        probs /= probs.sum()
        return probs

    def race(self, bits: NDArray[np.uint32]) -> int:
        """The winner of an exponential race: argmax of weight / Exp(1), the Gumbel-max trick without logarithms.

        `bits` is the noise of the whole vocabulary, shape [vocabulary]. An Exp(1) variate -log(1 - u) is never less
        than u, so weight / u bounds every runner from above, and only the few above the favourite's true score
        need a logarithm.
        """
        weights = self.weights
        bits = bits if self.ids is None else bits[self.ids]
        bound = weights / (bits.astype(np.float32) + np.float32(0.5))
        favourite = int(bound.argmax())
        scale = 2.0**-32
        score = weights[favourite] * scale / exponential(bits[favourite : favourite + 1])[0]
        runners = np.flatnonzero(bound >= score * (1.0 - 1e-5))  # the margin covers float32 rounding
        scores = weights[runners] / exponential(bits[runners])
        return self.token(int(runners[scores.argmax()]))


def target_distribution(scores: Scores, params: SamplingParams) -> Distribution:
    """Apply temperature, then top-k, top-p and min-p to shaped logits.

    Of equal logits at a cut the lower token ids stay, so that the result never depends on a sorting algorithm.
    """
    weights = scores * np.float32(1.0 / params.temperature)
    weights -= weights.max()
    np.exp(weights, out=weights)
    ids = None
    if 0 < params.top_k < len(scores):
        ids = _top_k(scores, params.top_k)
        weights = weights[ids]
    if params.top_p < 1.0:
        ids, weights = _top_p(ids, weights, params.top_p)
    if params.min_p > 0.0:
        ids, weights = _select(ids, weights, np.flatnonzero(weights >= params.min_p * weights.max()))
    return Distribution(ids, weights)


def _select(
    ids: NDArray[np.int64] | None, weights: NDArray[np.float32], kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return (kept if ids is None else ids[kept]), weights[kept]


def _top_k(scores: Scores, k: int) -> NDArray[np.int64]:
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > threshold)
    ties = np.flatnonzero(scores == threshold)[: k - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _top_p(
    ids: NDArray[np.int64] | None, weights: NDArray[np.float32], top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    total = float(weights.sum(dtype=np.float64))
    for floor in (_NUCLEUS_FLOOR, 0.0):
        likely = np.flatnonzero(weights >= floor * total)
        order = likely[np.argsort(-weights[likely], kind="stable")]
        reached = np.cumsum(weights[order], dtype=np.float64)
        if len(order) and reached[-1] >= top_p * total:
            order = order[: int(np.searchsorted(reached, top_p * total)) + 1]
            break
    return _select(ids, weights, np.sort(order))


def log_probabilities(scores: Scores) -> NDArray[np.float64]:
    """Log-softmax of shaped logits at temperature 1, shape [vocabulary]."""
    shifted = scores.astype(np.float64) - float(scores.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def draw(weights: NDArray[np.floating], u: float) -> int:
    """Index of the weight that the point `u` in [0, 1) of the running sum falls into."""
    reached = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(reached, u * reached[-1], side="right"))
    # u * total may round up to the total itself, or land behind trailing zeros
    return min(index, int(np.flatnonzero(weights)[-1]))
