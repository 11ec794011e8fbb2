"""Training a draft head; see `head` for what it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.models.base import VOCABULARY
from outrider.models.cards import HeadCard
from outrider.models.head import CARD
from outrider.runners.head import write_head
from outrider.train.base import Corpus, Row, Target, Tokens, TrainSettings, moved_rows
from outrider.train.head import Head, HeadShape, hits, loss_of, summary, to_batch

_BY_TOKEN = ("embed.weight", "out.weight")


class HeadLearner:
    """See `Learner`.

    Args:
        target: what it drafts for.
        settings: sizes.
        corpus: what it learns from.
    """

    def __init__(self, target: Target, settings: TrainSettings, corpus: Corpus) -> None:
        self._target = target
        self._settings = settings
        self._corpus = corpus
        vocabulary = corpus.vocabulary
        torch.manual_seed(settings.seed)
        shape = HeadShape(len(target.points) + 1, target.embeddings.shape[1], settings.inner, len(vocabulary))
        self.module = Head(shape, target.embeddings[vocabulary], target.projection[vocabulary]).to(settings.device)
        self.positions_per_step = settings.runs * settings.length
        self._teacher = torch.from_numpy(target.projection[vocabulary]).to(settings.device)
        self._ends = np.cumsum([len(row.tokens) for row in corpus.learned])

    def loss(self, rng: np.random.Generator) -> Tensor:
        """See `Learner`."""
        settings = self._settings
        length = settings.length + settings.steps
        runs = [_cut(self._corpus.learned, self._ends, rng, length) for _ in range(settings.runs)]
        return loss_of(self.module, to_batch(runs, settings.device), settings.steps, self._teacher, settings.decay)

    def measure(self, most: int) -> tuple[tuple[float, ...], float]:
        """See `Learner`."""
        steps = self._settings.steps
        rows = [row for row in self._corpus.unseen[:most] if len(row.tokens) > steps]
        found = [hits(self.module, to_batch([(row.states, row.tokens)], self._settings.device), steps) for row in rows]
        return summary(found, steps)

    def moved(self, weights: dict[str, Tensor], before: Tokens) -> dict[str, Tensor]:
        """See `Learner`."""
        return moved(weights, before, self.module.state_dict(), self._corpus.vocabulary)

    def export(self, directory: Path, common: dict[str, Any]) -> HeadCard:
        """See `Learner`."""
        weights, shape = self.module.weights(), self.module.shape
        write_head(weights, shape.parts, directory, bits=self._settings.bits)
        np.save(directory / VOCABULARY, self._corpus.vocabulary.astype(np.int32))
        parameters = sum(array.size for array in weights.values())
        card = HeadCard(points=self._target.points, width=shape.width, parameters=parameters, **common)
        (directory / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return card


def moved(weights: dict[str, Tensor], before: Tokens, fresh: dict[str, Tensor], after: Tokens) -> dict[str, Tensor]:
    """A head's weights for another vocabulary; see `moved_rows`.

    Args:
        weights: trained.
        before: their vocabulary, in rising order.
        fresh: weights of an untrained head of the other vocabulary.
        after: that vocabulary, in rising order.
    """
    return {
        name: moved_rows(value, fresh[name], before, after) if name in _BY_TOKEN else value.clone()
        for name, value in weights.items()
    }


def _cut(
    rows: Sequence[Row], ends: Tokens, rng: np.random.Generator, length: int
) -> tuple[NDArray[np.float16], Tokens]:
    """A random run of this length; answers that are shorter are joined, which teaches a wrong turn now and then.

    Args:
        rows: answers.
        ends: where each ends when all stand in a row.
    """
    states: list[NDArray[np.float16]] = []
    tokens: list[NDArray[np.int64]] = []
    missing = length
    while missing:
        row = rows[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))]
        start = int(rng.integers(max(1, len(row.tokens) - missing + 1)))
        states.append(row.states[start : start + missing])
        tokens.append(row.tokens[start : start + missing])
        missing -= len(tokens[-1])
    return np.concatenate(states), np.concatenate(tokens)
