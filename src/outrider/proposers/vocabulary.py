"""How a draft's tokens correspond to the target's: the same, padded, reduced, or by the tokens that both have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequest

LEAST_COMMON = 0.5
"""Share of the target's tokens that a draft must know to be of use."""


class VocabularyMap:
    """Translates between two vocabularies.

    Args:
        table: the target's id of each of the draft's tokens, -1 for none; None where ids are the same.
        target_size: tokens of the target.
        draft_size: width of the draft's logits.
        other: what the draft is fed for tokens that it does not have.
    """

    def __init__(self, table: Sequence[int] | None, target_size: int, draft_size: int, other: int = 0) -> None:
        self.target_size = target_size
        self._table: NDArray[np.int64] | None = None
        if table is not None:
            known = np.array(table[:draft_size], np.int64)
            self._from = np.flatnonzero((known >= 0) & (known < target_size))
            self._table = known[self._from]
            self._back = np.full(target_size, other, np.int64)
            self._back[self._table] = self._from
        self._draft_size = draft_size

    def to_target(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """The draft's logits, shape [draft vocabulary], over the target's tokens, shape [target vocabulary]."""
        if self._table is None and len(row) == self.target_size:
            return row
        scores = np.full(self.target_size, -np.inf, np.float32)
        if self._table is None:
            size = min(len(row), self.target_size)
            scores[:size] = row[:size]
        else:
            scores[self._table] = row[self._from]
        return scores

    def best(self, row: NDArray[np.float32]) -> tuple[int, float]:
        """The target's id of the draft's most likely token, and its probability among those that both have."""
        if self._table is None:
            scores = row[: self.target_size]
        else:
            scores = row if len(self._from) == len(row) else row[self._from]  # a head's tokens are all the target's
        place = int(scores.argmax())
        sure = min(1.0, 1.0 / float(np.exp(scores - scores[place]).sum()))
        return place if self._table is None else int(self._table[place]), sure

    def token(self, own: int) -> int:
        """The target's id of one of the draft's tokens; -1 where the target does not have it."""
        if self._table is None:
            return own if own < self.target_size else -1
        place = int(np.searchsorted(self._from, own))
        return int(self._table[place]) if place < len(self._from) and self._from[place] == own else -1

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """The draft's ids of the target's tokens."""
        if self._table is None:
            return [token if token < self._draft_size else 0 for token in tokens]
        ids: list[int] = self._back[list(tokens)].tolist()
        return ids


def match_vocabularies(
    target: Sequence[bytes], draft: Sequence[bytes], target_size: int, draft_size: int
) -> tuple[VocabularyMap, str]:
    """Find how the draft's tokens correspond to the target's, and say it in a line.

    Args:
        target, draft: what each token adds to the text, by id.
        target_size, draft_size: widths of the two models' logits, which may be padded.

    Raises:
        InvalidRequest: too few tokens are common.
    """
    common = min(len(target), len(draft))
    if list(target[:common]) == list(draft[:common]):
        line = "same vocabulary" if len(target) == len(draft) else f"same vocabulary in its first {common} tokens"
        return VocabularyMap(None, target_size, draft_size), line
    ids: dict[bytes, int] = {}
    for number, piece in enumerate(target):
        if piece:
            ids.setdefault(piece, number)
    table = [ids.get(piece, -1) if piece else -1 for piece in draft]
    share = len({number for number in table if number >= 0}) / max(1, len(target))
    if share < LEAST_COMMON:
        raise InvalidRequest(
            f"the draft knows {share:.0%} of the target's {len(target)} tokens, which is too few to draft for it; "
            "choose a draft of the same family"
        )
    return VocabularyMap(table, target_size, draft_size), f"{share:.0%} of the target's tokens are the draft's too"
