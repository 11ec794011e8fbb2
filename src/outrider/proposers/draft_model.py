"""Classic speculative decoding: a smaller model of the same vocabulary drafts, token by token.

It has a KV cache of its own, which follows the target's text lazily: what the target accepted is there already, what it
rejected is overwritten, and a request that was not drafted for a while is caught up in one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.proposers.base import NO_DRAFT, Context, Draft
from outrider.proposers.choosing import Drafting, GoesOn
from outrider.proposers.vocabulary import VocabularyMap
from outrider.runners.base import Runner, Segment

CATCH_UP = 256
"""Most tokens of known text that go through the draft in one step, over all requests."""


@dataclass(slots=True)
class _Followed:
    """One request's text in the draft's KV cache."""

    fed: list[int] = field(default_factory=list)
    """Target's ids of the tokens that went through the draft, from position 0; the last ones may have been rejected."""
    valid: int = 0
    """How many of them are known to be the text."""
    blocks: list[int] = field(default_factory=list)

    def agree(self, tokens: Sequence[int]) -> None:
        """Compare what was fed with the text, and forget what was rejected. One token is always left to feed."""
        end = min(len(self.fed), len(tokens) - 1)
        while self.valid < end and self.fed[self.valid] == tokens[self.valid]:
            self.valid += 1
        del self.fed[self.valid :]


class DraftModel:
    """Proposes what a smaller model says.

    Args:
        runner: the draft; its KV blocks are this proposer's alone.
        vocabulary: how its tokens correspond to the target's.
        goes_on: asked after each token whether another pays; None drafts as far as the budget goes.
    """

    name = "draft"
    patience = 2.0
    """Seconds that a call may take: it may have to read a prompt."""

    def __init__(self, runner: Runner, vocabulary: VocabularyMap, goes_on: GoesOn | None = None) -> None:
        self.runner = runner
        self._vocabulary = vocabulary
        self._goes_on = goes_on
        self._free = list(range(runner.info.num_blocks - 1, -1, -1))
        self._followed: dict[str, _Followed] = {}

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the draft's own forward passes so far."""
        return self.runner.infer_seconds

    @property
    def used_blocks(self) -> int:
        """KV blocks that open requests hold."""
        return self.runner.info.num_blocks - len(self._free)

    # --- one step --------------------------------------------------------------------------------------------

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`."""
        drafting: dict[int, tuple[Drafting, _Followed]] = {}
        segments = []
        room = CATCH_UP
        for number, (context, most) in enumerate(zip(contexts, budget, strict=True)):
            followed = self._followed.setdefault(context.request, _Followed())
            followed.agree(context.tokens)
            missing = len(context.tokens) - followed.valid
            most = min(most, self.runner.info.context_length - len(context.tokens))
            count = min(missing, room)
            if most <= 0 or count <= 0 or not self._reserve(followed, followed.valid + count):
                continue
            room -= count
            segments.append(self._segment(followed, context.tokens[followed.valid : followed.valid + count]))
            if count == missing:
                drafting[number] = Drafting(context, most), followed
            else:  # the rest in the next steps; a row is asked for and not used
                followed.valid = len(followed.fed)
                drafting[number] = Drafting(context, 0), followed
        try:
            self._draft(drafting, segments)
        finally:
            for each, _ in drafting.values():
                each.undo()
        return [drafting[i][0].draft() if i in drafting else NO_DRAFT for i in range(len(contexts))]

    def _draft(self, drafting: dict[int, tuple[Drafting, _Followed]], segments: list[Segment]) -> None:
        going = list(drafting.values())
        while segments:
            logits = self.runner.forward(segments)
            for row, (each, _) in zip(logits, going, strict=True):
                if each.budget:
                    each.choose(row, self._vocabulary)
            batch = len(going)
            going = [
                (each, followed)
                for each, followed in going
                if each.wants_more(self.name, self._goes_on, batch) and self._reserve(followed, len(followed.fed) + 1)
            ]
            segments = [self._segment(followed, each.tokens[-1:]) for each, followed in going]

    # --- the draft's KV cache --------------------------------------------------------------------------------

    def _segment(self, followed: _Followed, tokens: Sequence[int]) -> Segment:
        start = len(followed.fed)
        followed.fed.extend(tokens)
        return Segment(self._vocabulary.to_draft(tokens), start, followed.blocks, 1)

    def _reserve(self, followed: _Followed, length: int) -> bool:
        """Get blocks for so many tokens; false where the cache is full, and nothing is taken then."""
        missing = -(-length // self.runner.info.block_size) - len(followed.blocks)
        if missing > len(self._free):
            return False
        followed.blocks.extend(self._free.pop() for _ in range(missing))
        return True

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: `propose` compares the text itself with what it fed."""

    def release(self, context: Context) -> None:
        """Free the request's blocks."""
        followed = self._followed.pop(context.request, None)
        if followed is not None:
            self._free.extend(followed.blocks)
