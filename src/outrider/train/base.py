"""What the making of every kind of draft has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from outrider.engine import TextCodec
from outrider.models import ModelFiles
from outrider.models.cards import DraftCard
from outrider.params import Checked
from outrider.runners import Runner
from outrider.train.collect import Answer

Kind = Literal["head", "model"]
Tokens = NDArray[np.int64]
ALIKE = 12
"""Answers that may begin with the same words; more of them teach the same again."""
ALIKE_TOKENS = 6


class TrainSettings(Checked):
    """How a draft is made.

    Raises:
        InvalidRequest: names each field, its value and what would be right.
    """

    kind: Kind = "head"
    minutes: PositiveFloat = 90.0
    """Budget, collecting included."""
    positions: PositiveInt = 400_000
    """Positions of the target's answers to collect at most."""
    collect_share: Annotated[float, Field(gt=0, lt=1)] = 0.35
    """Share of the budget that collecting may take."""
    tokens: PositiveInt = 8192
    """Tokens that the draft can say at most: the most frequent ones."""
    inner: PositiveInt = 1024
    """Width of a head's gated layers."""
    layers: PositiveInt = 3
    """Layers that a pruned model keeps."""
    context: Annotated[int, Field(ge=8)] = 160
    """Tokens of a sequence that a pruned model is trained on."""
    steps: PositiveInt = 4
    """Tokens drafted in a row."""
    decay: PositiveFloat = 0.85
    """Weight of a step in a head's loss over that of the one before."""
    runs: PositiveInt = 8
    """Runs of consecutive positions in a batch."""
    length: PositiveInt = 32
    """Positions of a run that a head's loss is taken at."""
    rate: PositiveFloat = 1e-3
    batch: PositiveInt = 48
    """Conversations at once while collecting."""
    checkpoint_seconds: PositiveFloat = 60.0
    evaluations: PositiveInt = 20
    """Times that it is measured on the held-out tenth."""
    patience: PositiveInt = 6
    """Measurements without progress after which training stops."""
    seed: int = 0
    device: str = "cpu"
    bits: Literal[8, 16] = 8
    """Of the exported weights: 16 or 8."""


@dataclass(slots=True)
class Target:
    """What the training needs to know of the target."""

    name: str
    runner: Runner
    codec: TextCodec
    eos_ids: tuple[int, ...]
    opening: Sequence[int]
    ask: Callable[[str], list[int]]
    points: tuple[int, ...]
    embeddings: NDArray[np.float32]
    projection: NDArray[np.float32]
    openers: Sequence[Sequence[int]] = ()
    """First words of questions, as tokens."""
    licence: str = "as the target's"
    files: ModelFiles | None = None
    """Where it was loaded from; a model can only be pruned out of files."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a draft learns from and is measured on, in the draft's own numbers."""

    learned: Sequence[Row]
    unseen: Sequence[Row]
    """Greedy answers that were held out."""
    vocabulary: Tokens
    """The target's id of each of the draft's tokens, in rising order."""

    @property
    def positions(self) -> int:
        """Of answers that are learned from."""
        return sum(len(row.tokens) for row in self.learned)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: before token i the target was in state i. A token that the draft cannot say has the number after
    its last."""

    prompt: Tokens
    tokens: Tokens
    states: NDArray[np.float16]


class Learner(Protocol):
    """A draft that learns."""

    positions_per_step: int
    """That the loss of one step is taken at."""

    @property
    def module(self) -> nn.Module:
        """What has the weights."""
        ...

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Mean divergence from the target's own distribution, of a batch that is drawn."""
        ...

    def measure(self, most: int) -> tuple[tuple[float, ...], float]:
        """Acceptance by position and tokens per pass, see `summary`, on so many held-out answers at most."""
        ...

    def moved(self, weights: dict[str, Tensor], before: Tokens) -> dict[str, Tensor]:
        """Weights that were trained over another vocabulary, for this one."""
        ...

    def export(self, directory: Path, common: dict[str, Any]) -> DraftCard:
        """Write what serves, with its card; `common` is what the card says of every draft."""
        ...


def corpus_of(answers: Sequence[Answer], tokens: int, size: int) -> Corpus:
    """Number tokens anew, the most frequent ones only, and set the held-out answers aside.

    Args:
        answers: what was collected.
        tokens: that the draft can say at most.
        size: tokens of the target.
    """
    vocabulary, known = choose_vocabulary(answers, tokens, size)

    def rows(chosen: Sequence[Answer]) -> list[Row]:
        return [Row(known[each.prompt], known[each.tokens], each.states) for each in chosen if len(each.tokens)]

    learned = rows([answer for answer in answers if not answer.held_out])
    return Corpus(learned, rows([answer for answer in answers if answer.held_out and answer.greedy]), vocabulary)


def moved_rows(value: Tensor, fresh: Tensor, before: Tokens, after: Tokens) -> Tensor:
    """A matrix with a row for each token, for another vocabulary: tokens that stay keep their rows, others are fresh.

    Args:
        value: trained; rows after those of the vocabulary are kept at the end.
        fresh: untrained, for the other vocabulary.
        before, after: the vocabularies, in rising order.
    """
    found = fresh.clone()
    _, old, new = np.intersect1d(before, after, return_indices=True)
    found[torch.from_numpy(new)] = value[torch.from_numpy(old)]
    found[len(after) :] = value[len(before) :]
    return found


def thin(answers: Sequence[Answer]) -> list[Answer]:
    """Leave out what begins as many answers before it began; a model left alone says some things far too often."""
    seen: dict[tuple[int, ...], int] = {}
    kept = []
    for answer in answers:
        start = tuple(answer.tokens[:ALIKE_TOKENS].tolist())
        seen[start] = seen.get(start, 0) + 1
        if seen[start] <= ALIKE:
            kept.append(answer)
    return kept


def choose_vocabulary(answers: Sequence[Answer], most: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens that a draft says: those that the target said most often.

    Args:
        answers: what the target said.
        most: tokens at most.
        size: tokens of the target.

    Returns:
        Their ids in rising order, and for each of the target's tokens its number among them, or how many there are.
    """
    counts = np.zeros(size, np.int64)
    for answer in answers:
        np.add.at(counts, answer.tokens, 1)
    said = np.argsort(-counts, kind="stable")[: min(most, int((counts > 0).sum()))]
    vocabulary = np.sort(said).astype(np.int64)
    known = np.full(size, len(vocabulary), np.int64)
    known[vocabulary] = np.arange(len(vocabulary))
    return vocabulary, known
