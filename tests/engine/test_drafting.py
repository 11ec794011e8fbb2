"""Faults of proposers: counted, contained, and after three in a row benched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outrider.engine.drafting import BENCHED_STEPS, FAULTS_IN_A_ROW
from outrider.proposers import Context, Draft
from outrider.testing import ManualClock, ScriptedRunner
from support import Harness, RandomProposer


class Moody(RandomProposer):
    """Fails in the calls that the script names; else drafts one token."""

    name = "moody"

    def __init__(self, fails: Sequence[bool], clock: ManualClock | None = None, takes: float = 0.0) -> None:
        super().__init__(256)
        self._fails = list(fails)
        self._clock = clock
        self._takes = takes

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        self.asked += 1
        if self._clock is not None:
            self._clock.advance(self._takes)
        if self._fails and self._fails.pop(0):
            raise RuntimeError("in a mood")
        return [Draft([7], [0.5]) for _ in budget]


def run(proposer: Moody, tokens: int = 600, clock: ManualClock | None = None) -> Harness:
    runner = ScriptedRunner(context_length=1024, num_blocks=512)
    harness = Harness(runner, proposer=proposer, speculation="fixed:2", clock=clock)
    harness.answer("abc", max_tokens=tokens)
    return harness


def test_three_faults_in_a_row_bench_the_proposer_for_a_while() -> None:
    proposer = Moody([True] * FAULTS_IN_A_ROW)
    drafter = run(proposer).core.drafters[0]
    assert (drafter.faults, drafter.benchings) == (FAULTS_IN_A_ROW, 1)
    assert BENCHED_STEPS * 0.5 < 600 - proposer.asked <= BENCHED_STEPS + 100
    assert proposer.asked > 100  # it came back


def test_faults_that_are_not_in_a_row_do_not() -> None:
    drafter = run(Moody([True, True, False] * 20)).core.drafters[0]
    assert (drafter.faults, drafter.benchings) == (40, 0)


@pytest.mark.parametrize(("takes", "faults"), [(0.2, 0), (0.3, 3)])
def test_a_proposer_that_dawdles_is_at_fault(takes: float, faults: int) -> None:
    clock = ManualClock()
    drafter = run(Moody([], clock, takes), tokens=50, clock=clock).core.drafters[0]
    assert (drafter.faults, drafter.benchings) == (faults, faults // 3)


def test_a_fault_in_observing_or_releasing_is_contained_too() -> None:
    class Forgetful(Moody):
        def observe(self, request: str, tokens: Sequence[int]) -> None:
            raise KeyError(request)

        def release(self, context: Context) -> None:
            raise KeyError(context.request)

    harness = run(Forgetful([]), tokens=20)
    assert harness.core.drafters[0].faults > 1
    assert len(harness.answers["r0"][0].tokens) == 20
