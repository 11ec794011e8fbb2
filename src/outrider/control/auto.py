"""The controller: each request by its mode, `auto` by measured break-even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outrider.control.acceptance import AcceptanceModel
from outrider.control.base import PLAIN, Candidate, Choice, Load
from outrider.control.cost import CostModel
from outrider.control.guard import Guard
from outrider.control.policy import choose_windows, survival
from outrider.control.threshold import ThresholdRule
from outrider.params import Objective, Speculation
from outrider.proposers.base import Draft, Proposal, agreement

AUTO_BUDGET = 12
"""Most draft tokens that `auto` asks a proposer for."""
THRESHOLD_WINDOW = 4
"""Largest window of the `threshold` mode, and of `auto` while cost is unknown."""
MARGIN = 0.05
"""Gain that a window must promise: estimates err, and a small promised gain is a coin toss."""
MARGIN_OF_EACH = 0.35
"""By how much of it the margin grows with each further sequence: the drafts that look best among many are those whose
estimates err upwards, and the whole batch waits for them."""
STAKE = 0.25
"""By how much more what drafts add to a pass counts than it is expected to be: the drafts that promise most are those
whose estimates err upwards, and the more a pass is dearer, the more is lost when they do."""
CHEAP = 0.005
"""Share of a plain step below which a draft may be made beside a better one."""
WORTH_PADDING = 0.03
"""Share of a pass that padding it must save."""
_MOST_PADDING = 4
_DRAFTING_STEP = 0.05


@dataclass(slots=True)
class ControlCounts:
    """What the guard, the rule and the policy did and why, over all requests."""

    steps: int = 0
    """Steps of requests that could have speculated."""
    speculated: int = 0
    """Of which with a window."""
    unpromising: int = 0
    """Falls of a proposer for a request because no draft was worth verifying."""
    losing: int = 0
    """Falls because verified drafts cost more than they brought."""
    shrinks: int = 0
    """Windows halved because of losses."""
    recoveries: int = 0
    """Proposers that paid again after a sleep."""
    slept: int = 0
    """Steps in which a proposer was not asked because it sleeps for the request."""
    rule_shrinks: int = 0
    """Windows that the threshold rule made smaller."""
    rule_disablings: int = 0
    """Times that the threshold rule disabled speculation."""
    padded: int = 0
    """Tokens added because a wider pass is cheaper."""


@dataclass(slots=True)
class _State:
    """What is known of one request."""

    guards: dict[str, Guard] = field(default_factory=dict)
    rule: ThresholdRule | None = None
    by_cost: bool = False
    """Whether measured break-even decides, and not a rule."""
    pending: tuple[float, float] = (0.0, 0.0)
    """What the chosen draft cost in plain tokens, and making it as a share of a plain step."""

    def guard(self, source: str) -> Guard:
        """That of a proposer."""
        guard = self.guards.get(source)
        if guard is None:
            guard = self.guards[source] = Guard()
        return guard


class AutoController:
    """Chooses windows by mode: `off`, `fixed:K`, `threshold`, and `auto`.

    Args:
        cost: the measured cost of passes; without it `auto` follows the `threshold` rule.
        objective: `latency` or `throughput` of `auto`; see `choose_windows`.
    """

    def __init__(self, cost: CostModel | None = None, objective: Objective = "throughput") -> None:
        self.cost = cost
        self.objective: Objective = objective
        self.counts = ControlCounts()
        self.acceptance: dict[str, AcceptanceModel] = {}
        """By proposer."""
        self.drafting: dict[str, float] = {}
        """Seconds that a draft takes, by proposer."""
        self.stepping: dict[str, float] = {}
        """Seconds for each token of the longest draft of a call, by proposer."""
        self._brings: dict[str, float] = {}
        self._states: dict[str, _State] = {}

    def _state(self, request: str) -> _State:
        state = self._states.get(request)
        if state is None:
            state = self._states[request] = _State()
        return state

    def _model(self, source: str) -> AcceptanceModel:
        model = self.acceptance.get(source)
        if model is None:
            model = self.acceptance[source] = AcceptanceModel()
        return model

    def _by_rule(self, mode: Speculation) -> bool:
        return mode.mode == "threshold" or (mode.mode == "auto" and self.cost is None)

    # --- before the pass -------------------------------------------------------------------------------------

    def budgets(
        self, source: str, candidates: Sequence[Candidate], proposals: Sequence[Sequence[Proposal]]
    ) -> list[int]:
        """See `Controller.budgets`."""
        return [
            min(candidate.limit, self._budget(source, candidate, made))
            for candidate, made in zip(candidates, proposals, strict=True)
        ]

    def _budget(self, source: str, candidate: Candidate, made: Sequence[Proposal]) -> int:
        mode = candidate.mode
        if mode.mode == "off":
            return 0
        state = self._state(candidate.request)
        state.by_cost = False
        if mode.mode == "fixed":
            return mode.window
        if self._by_rule(mode):
            rule = self._rule(state, mode)
            return rule.window if rule.disabled == 0 else 0
        if made and self._outdone(source, candidate, made):
            return 0
        state.by_cost = True
        guard = state.guard(source)
        if not guard.awake():
            self.counts.slept += 1
            return 0
        return min(mode.window or AUTO_BUDGET, AUTO_BUDGET if guard.cap is None else guard.cap)

    def _outdone(self, source: str, candidate: Candidate, made: Sequence[Proposal]) -> bool:
        """Whether a proposer is dear, and what cheaper ones made promises as much as it usually brings."""
        if self.cost is None or self.drafting.get(source, 0.0) <= CHEAP * self._plain_seconds(candidate.context):
            return False
        best = max(sum(self._survival(candidate.request, proposal)) for proposal in made)
        return best >= max(1.0, self._brings.get(source, 0.0))

    def _plain_seconds(self, context: int) -> float:
        assert self.cost is not None
        return self.cost.seconds(Load(1, context, 1))

    def goes_on(self, source: str, request: str, confidence: Sequence[float], batch: int) -> bool:
        """Whether a proposer that drafts token by token should make one more.

        Args:
            source: the proposer.
            request: whose draft it is.
            confidence: of the tokens that it has.
            batch: requests that share the proposer's next pass.
        """
        if not self._state(request).by_cost:
            return True
        row = survival(self._model(source).probabilities(request, Draft(range(len(confidence)), confidence)))
        assert self.cost is not None
        # the next one survives at most as this one does, by as much again as the last step took of it
        expected = row[-1] * (row[-1] / row[-2] if len(row) > 1 else row[-1])
        plain = self._plain_seconds(0)
        wider = self.cost.seconds(Load(len(row) + 2, 0, 1)) - self.cost.seconds(Load(len(row) + 1, 0, 1))
        return expected * plain > self.stepping.get(source, 0.0) / batch + max(0.0, wider)

    def _rule(self, state: _State, mode: Speculation) -> ThresholdRule:
        if state.rule is None:
            state.rule = ThresholdRule(mode.window or THRESHOLD_WINDOW, mode.shrink_below, mode.disable_below)
        return state.rule

    def choose(
        self, candidates: Sequence[Candidate], proposals: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Choice]:
        """See `Controller.choose`."""
        choices = [PLAIN] * len(candidates)
        by_cost = []
        for i, candidate in enumerate(candidates):
            mode = candidate.mode
            if mode.mode == "off":
                continue
            self.counts.steps += 1
            if mode.mode == "auto" and self.cost is not None:
                by_cost.append(i)
                continue
            if mode.mode == "fixed":
                window = mode.window
            else:
                window = self._rule(self._state(candidate.request), mode).next_window()
            choices[i] = self._longest(candidate, proposals[i], window)
        if any(proposals[i] for i in by_cost):
            self._by_break_even(candidates, proposals, load, choices, by_cost)
        self.counts.speculated += sum(choice.window > 0 for choice in choices)
        return choices

    def _survival(self, request: str, proposal: Proposal) -> list[float]:
        return survival(self._model(proposal.source).probabilities(request, proposal.draft))

    def _longest(self, candidate: Candidate, proposals: Sequence[Proposal], window: int) -> Choice:
        """The proposal of which most is expected within a window that is given."""
        best = PLAIN
        if window > 0:
            for number, proposal in enumerate(proposals):
                row = self._survival(candidate.request, proposal)[:window]
                if row and (not best.window or sum(row) > best.expected):
                    best = Choice(number, len(row), sum(row))
        return best

    def _by_break_even(
        self,
        candidates: Sequence[Candidate],
        proposals: Sequence[Sequence[Proposal]],
        load: Load,
        choices: list[Choice],
        by_cost: list[int],
    ) -> None:
        """Replace the choices of the requests in `by_cost`; the others' are part of the load."""
        model = self.cost
        assert model is not None
        free = set(by_cost)
        fixed = [i for i in range(len(candidates)) if i not in free]
        width = load.width + sum(choices[i].window for i in fixed)
        attention = load.attention + sum(choices[i].window * candidates[i].context for i in fixed)
        context = sum(candidates[i].context for i in by_cost) / len(by_cost)
        known: dict[int, float] = {}
        entry = model.entry() if width == load.sequences else 0.0

        def cost_of(drafted: int) -> float:
            if drafted not in known:
                there = Load(width + drafted, attention + int(drafted * context), load.sequences)
                known[drafted] = model.seconds(there) + (entry if drafted else 0.0)
            return known[drafted]

        def weighed(drafted: int) -> float:
            return cost_of(drafted) + STAKE * max(0.0, cost_of(drafted) - cost_of(0))

        picked = [self._pick(candidates[i].request, proposals[i], cost_of, len(by_cost)) for i in by_cost]
        windows = choose_windows(
            [row for _, row in picked],
            lambda windows: weighed(sum(windows)),
            MARGIN * (1.0 + MARGIN_OF_EACH * (load.sequences - 1)),
            self.objective,
        )
        drafted = sum(windows)
        plain, dearer = cost_of(0), cost_of(drafted) - cost_of(0)
        for i, (number, row), window in zip(by_cost, picked, windows, strict=True):
            if not row:  # a step without a draft says nothing
                continue
            state = self._state(candidates[i].request)
            making = self.drafting.get(proposals[i][number].source, 0.0) / plain
            if window:
                choices[i] = Choice(number, window, sum(row[:window]))
                state.pending = (dearer * window / drafted * load.sequences / plain + making, making)
            for other, proposal in enumerate(proposals[i]):
                share = self.drafting.get(proposal.source, 0.0) / plain
                if not window or (other != number and share > CHEAP):
                    self._tell(state.guard(proposal.source), passed_over=(share, load.sequences))

    def _pick(
        self, request: str, proposals: Sequence[Proposal], cost_of: Callable[[int], float], sequences: int
    ) -> tuple[int, list[float]]:
        """The proposal that would make the batch fastest if it were the only draft, and its survival."""
        best, best_row, best_time = 0, list[float](), float("inf")
        for number, proposal in enumerate(proposals):
            row = self._survival(request, proposal)
            tokens = float(sequences)
            for drafted, s in enumerate(row, start=1):
                tokens += s
                time = cost_of(drafted) / tokens
                if time < best_time:
                    best, best_row, best_time = number, row, time
        return best, best_row

    # --- after the pass --------------------------------------------------------------------------------------

    def observe(self, request: str, proposals: Sequence[Proposal], choice: Choice, emitted: Sequence[int]) -> None:
        """See `Controller.observe`."""
        state = self._state(request)
        if choice.window:
            chosen = proposals[choice.proposal]
            accepted = agreement(chosen.draft.tokens[: choice.window], emitted)
            if state.rule is not None:
                shrinks, disablings = state.rule.shrinks, state.rule.disablings
                state.rule.observe(choice.window, accepted)
                self.counts.rule_shrinks += state.rule.shrinks - shrinks
                self.counts.rule_disablings += state.rule.disablings - disablings
            brings = self._brings.get(chosen.source, 0.0)
            self._brings[chosen.source] = brings + _DRAFTING_STEP * (accepted - brings)
            guard = state.guards.get(chosen.source)
            if guard is not None:
                cost, making = state.pending
                self._tell(guard, verified=(choice.window, accepted - cost, making))
                for proposal in proposals if accepted > cost else ():
                    if proposal is not chosen and agreement(proposal.draft.tokens, emitted) >= accepted:
                        state.guard(proposal.source).vindicated()
        for proposal in proposals:
            self._model(proposal.source).observe(request, proposal.draft, emitted)

    def _tell(
        self,
        guard: Guard,
        *,
        passed_over: tuple[float, int] | None = None,
        verified: tuple[int, float, float] | None = None,
    ) -> None:
        """Tell a guard what happened, and count what it makes of it."""
        before = replace(guard)
        if passed_over is not None:
            guard.passed_over(*passed_over)
        if verified is not None:
            guard.verified(*verified)
        self.counts.unpromising += guard.unpromising - before.unpromising
        self.counts.losing += guard.losing - before.losing
        self.counts.shrinks += guard.shrinks - before.shrinks
        self.counts.recoveries += guard.recoveries - before.recoveries

    def observe_pass(self, load: Load, seconds: float) -> None:
        """See `Controller.observe_pass`."""
        if self.cost is not None:
            self.cost.observe(load, seconds)

    def observe_drafting(self, source: str, requests: int, longest: int, seconds: float) -> None:
        """See `Controller.observe_drafting`."""
        _follow(self.drafting, source, seconds / requests)
        if longest:
            _follow(self.stepping, source, seconds / longest)

    def padding(self, load: Load) -> int:
        """See `Controller.padding`."""
        if self.cost is None:
            return 0
        per_token = load.attention // load.width
        seconds = [
            self.cost.seconds(Load(load.width + extra, load.attention + extra * per_token, load.sequences))
            for extra in range(_MOST_PADDING + 1)
        ]
        extra = min(range(len(seconds)), key=seconds.__getitem__)
        if seconds[extra] > (1.0 - WORTH_PADDING) * seconds[0]:
            return 0
        self.counts.padded += extra
        return extra

    def reliability(self) -> dict[str, float]:
        """By proposer the mean distance of predicted from observed acceptance, over ten bins of the prediction."""
        return {source: model.reliability() for source, model in self.acceptance.items()}

    def release(self, request: str) -> None:
        """See `Controller.release`."""
        self._states.pop(request, None)
        for model in self.acceptance.values():
            model.release(request)


def _follow(known: dict[str, float], source: str, seconds: float) -> None:
    """Move an estimate; what is far above it is a stall, or the first look at a long prompt."""
    before = known.get(source, seconds)
    known[source] = before + _DRAFTING_STEP * (min(seconds, 4.0 * before) - before)
