"""A draft head on disk: what it was made for, what it needs from the target, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from outrider.errors import ModelError
from outrider.models.base import VOCABULARY
from outrider.models.cards import HeadCard

CARD = "head.json"
START = "start"
STEP = "step"


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
