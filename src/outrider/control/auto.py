"""The controller: each request by its mode, `auto` by measured break-even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.control.acceptance import AcceptanceModel
from outrider.control.base import Candidate, Load
from outrider.control.cost import CostModel
from outrider.control.guard import Guard
from outrider.control.policy import choose_windows, survival
from outrider.control.threshold import ThresholdRule
from outrider.proposers.base import Draft

AUTO_BUDGET = 12
"""Most draft tokens that `auto` asks a proposer for."""
THRESHOLD_WINDOW = 4
"""Largest window of the `threshold` mode, and of `auto` while cost is unknown."""
MARGIN = 0.02
"""Gain that a window must promise: estimates err, and a small promised gain is a coin toss."""


@dataclass(slots=True)
class _State:
    guard: Guard = field(default_factory=Guard)
    rule: ThresholdRule = field(default_factory=lambda: ThresholdRule.start(THRESHOLD_WINDOW))


@dataclass(slots=True)
class ControlCounts:
    """What the guard and the policy did, over all requests."""

    steps: int = 0
    """Steps of requests that could have speculated."""
    speculated: int = 0
    """Of which with a window."""
    slept: int = 0
    """Of which not even drafted, because drafts had not paid."""
    falls: int = 0
    recoveries: int = 0


class AutoController:
    """Chooses windows by mode: `off`, `fixed:K`, `threshold`, and `auto`.

    Args:
        cost: the measured cost of passes; without it `auto` follows the `threshold` rule.
    """

    def __init__(self, cost: CostModel | None = None) -> None:
        self.cost = cost
        self.acceptance = AcceptanceModel()
        self.counts = ControlCounts()
        self._states: dict[str, _State] = {}

    def _state(self, request: str) -> _State:
        return self._states.setdefault(request, _State())

    def _by_rule(self, candidate: Candidate) -> bool:
        return candidate.mode.mode == "threshold" or (candidate.mode.mode == "auto" and self.cost is None)

    def budgets(self, candidates: Sequence[Candidate]) -> list[int]:
        """See `Controller.budgets`."""
        return [min(candidate.limit, self._budget(candidate)) for candidate in candidates]

    def _budget(self, candidate: Candidate) -> int:
        if candidate.mode.mode == "off":
            return 0
        self.counts.steps += 1
        if candidate.mode.mode == "fixed":
            return candidate.mode.window
        state = self._state(candidate.request)
        if self._by_rule(candidate):
            return state.rule.next_window()
        if state.guard.awake():
            return AUTO_BUDGET
        self.counts.slept += 1
        return 0

    def windows(self, candidates: Sequence[Candidate], drafts: Sequence[Draft], load: Load) -> list[int]:
        """See `Controller.windows`."""
        chosen = [len(draft.tokens) for draft in drafts]
        by_cost = [i for i, c in enumerate(candidates) if c.mode.mode == "auto" and self.cost is not None]
        if any(chosen[i] for i in by_cost):
            self._choose(candidates, drafts, load, chosen, by_cost)
        for i in by_cost:
            if drafts[i].tokens:  # a step without a draft costs nothing and says nothing
                self._tell_guard(self._state(candidates[i].request), chosen[i])
        self.counts.speculated += sum(window > 0 for window in chosen)
        return chosen

    def _choose(
        self,
        candidates: Sequence[Candidate],
        drafts: Sequence[Draft],
        load: Load,
        chosen: list[int],
        by_cost: list[int],
    ) -> None:
        """Replace the windows of the requests in `by_cost`; the others' are part of the load."""
        model = self.cost
        assert model is not None
        free = set(by_cost)
        fixed = [i for i in range(len(candidates)) if i not in free]
        width = load.width + sum(chosen[i] for i in fixed)
        attention = load.attention + sum(chosen[i] * candidates[i].context for i in fixed)
        contexts = [candidates[i].context for i in by_cost]

        def cost(windows: Sequence[int]) -> float:
            more = sum(window * context for window, context in zip(windows, contexts, strict=True))
            return model.seconds(Load(width + sum(windows), attention + more, load.sequences))

        survivals = [survival(self.acceptance.probabilities(candidates[i].request, drafts[i])) for i in by_cost]
        windows = choose_windows(survivals, cost, MARGIN)
        for i, window in zip(by_cost, windows, strict=True):
            chosen[i] = window

    def _tell_guard(self, state: _State, window: int) -> None:
        falls, recoveries = state.guard.falls, state.guard.recoveries
        state.guard.chosen(window)
        self.counts.falls += state.guard.falls - falls
        self.counts.recoveries += state.guard.recoveries - recoveries

    def observe(self, request: str, draft: Draft, window: int, emitted: Sequence[int]) -> None:
        """See `Controller.observe`."""
        state = self._state(request)
        accepted = 0
        for guess, said in zip(draft.tokens[:window], emitted, strict=False):
            if guess != said:
                break
            accepted += 1
        if window:
            state.rule.observe(window, accepted)
        self.acceptance.observe(request, draft, emitted)

    def observe_pass(self, load: Load, seconds: float) -> None:
        """See `Controller.observe_pass`."""
        if self.cost is not None:
            self.cost.observe(load, seconds)

    def release(self, request: str) -> None:
        """See `Controller.release`."""
        self._states.pop(request, None)
        self.acceptance.release(request)
