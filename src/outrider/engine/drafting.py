"""Asking proposers for drafts, and containing whatever they do wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Many

from outrider.engine.request import Sequence
from outrider.engine.scheduler import Work
from outrider.proposers import Context, Draft, Proposal, Proposer, check_draft

log = logging.getLogger("outrider")


FAULTS_IN_A_ROW = 3
"""Faults after which a proposer is benched."""
PATIENCE = 0.25
BENCHED_STEPS = 256
"""Steps with drafting that it then sits out."""


class Drafter:
    """Stands between the engine and one proposer, so that a fault costs a request its window and nothing else.

    Args:
        proposer: guesses the tokens.
        vocabulary: the target's; a draft token outside it is a fault.
        patience: seconds that one call may take; longer is a fault, though its drafts are used. By default the
            proposer's own attribute of that name, or 0.25.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        proposer: Proposer,
        vocabulary: int,
        *,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = proposer.name
        self._proposer = proposer
        self._vocabulary = vocabulary
        self._patience: float = getattr(proposer, "patience", PATIENCE) if patience is None else patience
        self._clock = clock
        self._in_a_row = 0
        self._benched = 0
        self.faults = 0
        """Everything that it ever did wrong."""
        self.benchings = 0
        """Times that it was benched."""

    @property
    def infer_seconds(self) -> float:
        """Seconds that the proposer spent in forward passes of its own, where it counts them."""
        return getattr(self._proposer, "infer_seconds", 0.0)

    def draft(self, works: Many[Work], budgets: Many[int]) -> tuple[int, int, float]:
        """Give each work a proposal within its budget. Works with budget 0 are not shown to the proposer.

        Returns:
            How many requests it was asked for, the tokens of the longest draft, and the seconds that it took.
        """
        asked = [(work, budget) for work, budget in zip(works, budgets, strict=True) if budget > 0]
        if not asked:
            return 0, 0, 0.0
        if self._benched:
            self._benched -= 1
            return 0, 0, 0.0
        faults = self.faults
        taken = self._propose(asked)
        self._in_a_row = self._in_a_row + 1 if self.faults > faults else 0
        if self._in_a_row == FAULTS_IN_A_ROW:
            self._in_a_row = 0
            self._benched = BENCHED_STEPS
            self.benchings += 1
            log.error("proposer %s: benched for %d steps", self.name, BENCHED_STEPS)
        longest = max(
            (len(p.draft.tokens) for work, _ in asked for p in work.proposals if p.source == self.name), default=0
        )
        return len(asked), longest, taken

    def _propose(self, asked: Many[tuple[Work, int]]) -> float:
        started = self._clock()
        try:
            contexts = [work.sequence.context for work, _ in asked]
            drafts = self._proposer.propose(contexts, [budget for _, budget in asked])
            if len(drafts) != len(asked):
                raise ValueError(f"{len(drafts)} drafts for {len(asked)} requests")
        except Exception as error:
            self._fault("propose", error)
            return self._clock() - started
        for (work, budget), draft in zip(asked, drafts, strict=True):
            if self._allowed(draft, budget) and draft.tokens:
                kept = _within(work.sequence, draft)
                if kept.tokens:
                    work.proposals.append(Proposal(self.name, kept))
        taken = self._clock() - started
        if taken > self._patience:
            self._fault("propose", TimeoutError(f"took {taken:.3f} s, more than {self._patience} s"))
        return taken

    def _allowed(self, draft: Draft, budget: int) -> bool:
        try:
            check_draft(draft, budget, self._vocabulary)
        except Exception as error:
            self._fault("propose", error)
            return False
        return True

    def observe(self, key: str, tokens: Many[int]) -> None:
        """Tell the proposer what was emitted."""
        try:
            self._proposer.observe(key, tokens)
        except Exception as error:
            self._fault("observe", error)

    def release(self, context: Context) -> None:
        """Tell the proposer that the request is over."""
        try:
            self._proposer.release(context)
        except Exception as error:
            self._fault("release", error)

    def _fault(self, verb: str, error: Exception) -> None:
        self.faults += 1
        log.warning("proposer %s: %s failed: %r", self.name, verb, error)


def _within(sequence: Sequence, draft: Draft) -> Draft:
    """The draft up to where the text would end, and up to where it leaves the grammar.

    An end token itself is not verified: where it comes next the target says it in the same pass, as its own token, and
    behind it there may be nothing that is allowed to come.
    """
    end_ids = sequence.group.end_ids
    length = next((i for i, token in enumerate(draft.tokens) if token in end_ids), len(draft.tokens))
    grammar = sequence.sampler.constraint
    if grammar is not None:
        length = min(length, grammar.accepts(draft.tokens))
    return draft.cut(length)
