"""Suffix decoding: what followed the end of this text before, in this request or in earlier ones, by frequency.

After Oliaro et al., "SuffixDecoding", 2024; the trees there are hash chains here (`shelf`), so that memory is bounded
and the oldest text goes first. The places with the longest matches vote on the continuation token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from outrider.errors import InvalidRequest
from outrider.proposers.base import NO_DRAFT, Context, Draft
from outrider.proposers.shelf import SMALLEST, Shelf, Trail

PROMPT_TAIL = 64
"""Tokens of a prompt that are remembered before its answer: they are what a repeated request is known by."""
_PLACES = 8
_LEAST_LIKELY = 0.03


class SuffixStore:
    """Earlier answers, apart for each tenant, within one bound.

    When the bound is reached the largest tenant loses its oldest text first; when even that does not make room, the
    tenant that was away longest is forgotten.

    Args:
        tokens: most tokens kept, over all tenants; 44 bytes of memory each (docs/benchmarks.md).
    """

    def __init__(self, tokens: int) -> None:
        if tokens < SMALLEST:
            raise InvalidRequest(f"a store of {tokens} tokens is too small; give at least {SMALLEST}, or 0 for none")
        self.capacity = tokens
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()

    def shelf(self, tenant: str) -> Shelf | None:
        """What is remembered of this tenant."""
        shelf = self._shelves.get(tenant)
        if shelf is not None:
            self._shelves.move_to_end(tenant)
        return shelf

    @property
    def tokens(self) -> Mapping[str, int]:
        """Tokens kept by tenant."""
        return {tenant: min(shelf.length, shelf.size) for tenant, shelf in self._shelves.items()}

    @property
    def nbytes(self) -> int:
        """Memory of all shelves."""
        return sum(shelf.nbytes for shelf in self._shelves.values())

    def remember(self, tenant: str, tokens: Sequence[int]) -> None:
        """Keep a run of tokens."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            shelf = self._shelves[tenant] = Shelf(SMALLEST)
            self._make_room()
        self._shelves.move_to_end(tenant)
        if shelf.length + len(tokens) >= shelf.size:
            self._grow(shelf)
        shelf.extend(tokens)
        shelf.part()

    def _allocated(self) -> int:
        return sum(shelf.size for shelf in self._shelves.values())

    def _grow(self, shelf: Shelf) -> None:
        """Double the shelf if the bound allows it, or if a larger one can give as much."""
        wanted = 2 * shelf.size
        if self._allocated() + shelf.size > self.capacity:
            largest = max(self._shelves.values(), key=lambda other: other.size)
            if largest.size <= wanted:
                return  # it goes on as a ring
            largest.capacity = largest.size // 2
            largest.resize(largest.capacity)
        shelf.capacity = wanted
        shelf.resize(wanted)

    def _make_room(self) -> None:
        """After a new tenant came: shrink the largest, forget the one that was away longest."""
        while self._allocated() > self.capacity and len(self._shelves) > 1:
            largest = max(self._shelves.values(), key=lambda shelf: shelf.size)
            if largest.size > SMALLEST:
                largest.capacity = largest.size // 2
                largest.resize(largest.capacity)
            else:
                self._shelves.popitem(last=False)

    def save(self, path: Path, vocabulary: int) -> None:
        """Write everything to a file, whole or not at all; readable by its owner only."""
        arrays = {f"run{i}": np.array(shelf.tokens(), np.int32) for i, shelf in enumerate(self._shelves.values())}
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        unfinished.touch(mode=0o600)
        with unfinished.open("wb") as file:
            np.savez_compressed(file, tenants=list(self._shelves), vocabulary=vocabulary, **arrays)  # type: ignore[arg-type]
        unfinished.replace(path)

    def load(self, path: Path, vocabulary: int) -> None:
        """Read what `save` wrote, if there is such a file; of more than fits the newest stays.

        Raises:
            InvalidRequest: the file is of another kind or of a model with another vocabulary.
        """
        if not path.exists():
            return
        try:
            with np.load(path, allow_pickle=False) as saved:
                if int(saved["vocabulary"]) != vocabulary:
                    raise InvalidRequest(
                        f"{path} remembers a model of {int(saved['vocabulary'])} tokens, this one has {vocabulary}; "
                        "choose another file"
                    )
                for number, tenant in enumerate(saved["tenants"].tolist()):
                    for run in _runs(saved[f"run{number}"].tolist()):
                        self.remember(tenant, run)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise InvalidRequest(f"{path} is not a store that was saved here: {error}; delete it") from None


def _runs(tokens: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    for token in tokens:
        if token < 0:
            runs.append([])
        else:
            runs[-1].append(token)
    return [run for run in runs if run]


class _Place:
    """One earlier occurrence and where it goes on."""

    __slots__ = ("end", "matched", "position", "shelf", "weight")

    def __init__(self, shelf: Shelf, position: int, matched: int, end: int) -> None:
        self.shelf = shelf
        self.position = position
        self.matched = matched
        self.weight = float(matched * matched)
        self.end = end

    def token(self, step: int, drafted: Sequence[int]) -> int:
        """What stood `step` tokens on; past the end of the own text it goes on into the draft, as a period does."""
        position = self.position + step
        return self.shelf.at(position) if position < self.end else drafted[position - self.end]


class Suffix:
    """Proposes the continuation that most often followed the longest matches.

    Args:
        store: earlier answers; None looks at the request's own text only.
    """

    name = "suffix"

    def __init__(self, store: SuffixStore | None = None) -> None:
        self.store = store
        self._own: dict[str, Shelf] = {}

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`."""
        return [self._propose(context, most) for context, most in zip(contexts, budget, strict=True)]

    def _propose(self, context: Context, most: int) -> Draft:
        own = self._own.get(context.request)
        if own is None:
            own = self._own[context.request] = Shelf(1 << 30)
        if own.length < len(context.tokens):
            own.extend(context.tokens[own.length :])
        if most <= 0:
            return NO_DRAFT
        places = self._places(own, own, context, own.trail)
        if self.store is not None and context.tenant is not None:
            shelf = self.store.shelf(context.tenant)
            if shelf is not None:
                places += self._places(shelf, own, context, own.trail)
        return _vote(places, most) if places else NO_DRAFT

    @staticmethod
    def _places(shelf: Shelf, own: Shelf, context: Context, trail: Trail) -> list[_Place]:
        end = own.length if shelf is own else 1 << 62
        found = shelf.find(context.tokens, trail, _PLACES)
        return [_Place(shelf, position, matched, end) for position, matched in found.items()]

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` reads what is new from the context itself."""

    def release(self, context: Context) -> None:
        """Remember the answer, behind the end of its prompt, and forget the request."""
        self._own.pop(context.request, None)
        if self.store is not None and context.tenant is not None and len(context.tokens) > context.prompt_length:
            self.store.remember(context.tenant, context.tokens[max(0, context.prompt_length - PROMPT_TAIL) :])


def _vote(places: list[_Place], most: int) -> Draft:
    tokens: list[int] = []
    confidence: list[float] = []
    chance = 1.0
    for step in range(most):
        votes: dict[int, float] = {}
        said = []
        for place in places:
            token = place.token(step, tokens)
            if token >= 0:
                votes[token] = votes.get(token, 0.0) + place.weight
                said.append((place, token))
        if not votes:
            break
        best = max(votes, key=votes.__getitem__)  # of equals the first, which matched longest or latest
        places = [place for place, token in said if token == best]
        matched = max(place.matched for place in places) + step
        sure = matched / (matched + 1) * votes[best] / sum(votes.values())
        chance *= sure
        if chance < _LEAST_LIKELY:
            break
        tokens.append(best)
        confidence.append(sure)
    return Draft(tokens, confidence)
