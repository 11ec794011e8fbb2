"""A draft head: a small recurrent network that drafts from the target's own hidden states.

It has no KV cache and no text of its own: the target's states at the last accepted position say what it needs to know.
So it is never behind, costs no memory for a request, and a request may join or leave it at any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.proposers.base import NO_DRAFT, Context, Draft
from outrider.proposers.choosing import Drafting, GoesOn
from outrider.proposers.vocabulary import VocabularyMap


class HeadRunner(Protocol):
    """The head's two networks. Used from one thread only."""

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the head's own passes so far."""
        ...

    def start(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Its state at each of the target's states: [requests, width of the target's] to [requests, width]."""
        ...

    def step(
        self, tokens: NDArray[np.int64], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits [requests, tokens], valid until the next call, and its state once these tokens were said."""
        ...


class DraftHead:
    """Proposes what a head foresees, for all requests at once.

    Args:
        runner: the head.
        vocabulary: the target's id of each of its tokens.
        goes_on: asked after each token whether another pays; None drafts as far as the budget goes.
    """

    name = "draft"

    def __init__(self, runner: HeadRunner, vocabulary: VocabularyMap, goes_on: GoesOn | None = None) -> None:
        self.runner = runner
        self._vocabulary = vocabulary
        self._goes_on = goes_on

    @property
    def infer_seconds(self) -> float:
        """Seconds spent inside the head's own passes so far."""
        return self.runner.infer_seconds

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        """See `Proposer.propose`. A request whose states are not known gets no draft."""
        drafting: dict[int, Drafting] = {}
        states: list[NDArray[np.float32]] = []
        for number, (context, most) in enumerate(zip(contexts, budget, strict=True)):
            if most > 0 and context.state is not None:
                drafting[number] = Drafting(context, most)
                states.append(context.state)
        if drafting:
            try:
                self._draft(list(drafting.values()), np.stack(states))
            finally:
                for each in drafting.values():
                    each.undo()
        return [drafting[i].draft() if i in drafting else NO_DRAFT for i in range(len(contexts))]

    def _draft(self, going: list[Drafting], states: NDArray[np.float32]) -> None:
        state = self.runner.start(states)
        last = [each.context.tokens[-1] for each in going]
        while going:
            logits, state = self.runner.step(np.array(self._vocabulary.to_draft(last), np.int64), state)
            for row, each in zip(logits, going, strict=True):
                each.choose(row, self._vocabulary)
            batch = len(going)
            kept = [i for i, each in enumerate(going) if each.wants_more(self.name, self._goes_on, batch)]
            if len(kept) < batch:
                going = [going[i] for i in kept]
                state = state[kept]
            last = [each.tokens[-1] for each in going]

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to do: the target's next states say what was accepted."""

    def release(self, context: Context) -> None:
        """Nothing is held."""
