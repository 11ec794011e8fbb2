"""Asking proposers for drafts, and containing whatever they do wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from outrider.engine.scheduler import Work
from outrider.proposers import NO_DRAFT, Draft, Proposer, check_draft

log = logging.getLogger("outrider")


class Drafter:
    """Stands between the engine and a proposer, so that a fault costs a request its window and nothing else.

    Args:
        proposer: guesses the tokens.
        vocabulary: the target's; a draft token outside it is a fault.
    """

    def __init__(self, proposer: Proposer, vocabulary: int) -> None:
        self._proposer = proposer
        self._vocabulary = vocabulary
        self.faults = 0

    def draft(self, works: Sequence[Work], budgets: Sequence[int]) -> None:
        """Give each work a proposal within its budget. Works with budget 0 are not shown to the proposer."""
        asked = [(work, budget) for work, budget in zip(works, budgets, strict=True) if budget > 0]
        if not asked:
            return
        try:
            contexts = [work.sequence.context for work, _ in asked]
            drafts = self._proposer.propose(contexts, [budget for _, budget in asked])
            if len(drafts) != len(asked):
                raise ValueError(f"{len(drafts)} drafts for {len(asked)} requests")
        except Exception as error:
            self._fault("propose", error)
            return
        for (work, budget), draft in zip(asked, drafts, strict=True):
            work.proposed = self._checked(draft, budget)

    def _checked(self, draft: Draft, budget: int) -> Draft:
        try:
            check_draft(draft, budget, self._vocabulary)
        except Exception as error:
            self._fault("propose", error)
            return NO_DRAFT
        return draft

    def observe(self, key: str, tokens: Sequence[int]) -> None:
        """Tell the proposer what was emitted."""
        try:
            self._proposer.observe(key, tokens)
        except Exception as error:
            self._fault("observe", error)

    def release(self, key: str) -> None:
        """Let the proposer forget the request."""
        try:
            self._proposer.release(key)
        except Exception as error:
            self._fault("release", error)

    def _fault(self, verb: str, error: Exception) -> None:
        self.faults += 1
        log.warning("proposer %s: %s failed: %r; decoding without it", self._proposer.name, verb, error)
