"""A draft head on disk: what it was made for, what it needs from the target, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from outrider.errors import ModelError

CARD = "head.json"
VOCABULARY = "vocabulary.npy"
START = "start"
STEP = "step"


class HeadCard(BaseModel):
    """`head.json`: how a head was made and what it does. Written by `outrider draft train`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    target: str
    """Name of the model that it drafts for."""
    target_vocabulary: int
    points: tuple[int, ...]
    """Points of the target's residual stream that its states are read at, the last norm's output aside."""
    width: int
    """Numbers in one hidden state of the target."""
    steps: int
    """Tokens that it was trained to draft in a row."""
    parameters: int
    positions: int
    """Positions of the target's text that it was trained on."""
    passes: float
    """How often it saw each."""
    greedy_share: float
    traffic: int = 0
    """Prompts of real traffic among what it was trained on."""
    minutes: float
    """Minutes of making it, collecting included."""
    device: str
    seed: int
    acceptance: tuple[float, ...]
    """Of greedy held-out answers, served in windows of `steps`: acceptance of draft token i given those before it."""
    tokens_per_pass: float
    """Of the same."""
    command: str
    licence: str


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A head that is ready to load."""

    directory: Path
    card: HeadCard
    vocabulary: NDArray[np.int64]
    """The target's id of each of the head's tokens, shape [tokens]."""

    @property
    def bytes(self) -> int:
        """Size of its weights on disk."""
        return sum((self.directory / f"{part}.bin").stat().st_size for part in (START, STEP))


def is_head(directory: Path) -> bool:
    """Whether the directory holds a draft head."""
    return (directory / CARD).is_file()


def read_head(directory: Path) -> HeadFiles:
    """Read a head's card and vocabulary.

    Raises:
        ModelError: a file is missing or broken.
    """
    try:
        card = HeadCard.model_validate_json((directory / CARD).read_bytes())
        vocabulary = np.load(directory / VOCABULARY).astype(np.int64)
    except (OSError, ValueError, ValidationError) as error:
        raise ModelError(
            f"{directory} holds no whole draft head ({str(error).splitlines()[0]}); train it again"
        ) from None
    for part in (START, STEP):
        if not (directory / f"{part}.xml").is_file():
            raise ModelError(f"{directory} has no {part}.xml; train the head again")
    if len(vocabulary) == 0 or vocabulary.min() < 0 or vocabulary.max() >= card.target_vocabulary:
        raise ModelError(f"{directory / VOCABULARY} names tokens that {card.target} does not have")
    return HeadFiles(directory, card, vocabulary)
