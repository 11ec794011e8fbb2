"""A draft on its own: how much of what it says is accepted, by position, and what that is worth here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pydantic import BaseModel

from outrider.api import Engine, chat
from outrider.control import speedup
from outrider.engine import SourceStats
from outrider.errors import InvalidRequest
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt
from outrider.params import SamplingParams


class DraftResult(BaseModel):
    """What a draft did over some prompts."""

    prompts: int
    drafted_at: list[int]
    """Tokens verified at each position."""
    acceptance: list[float]
    """Share accepted at each position, given that those before it were."""
    acceptance_rate: float
    """Accepted of all that were drafted."""
    tokens_per_pass: float


class DraftEvaluation(BaseModel):
    """What `outrider draft eval --json` writes."""

    target: str
    draft: str
    window: int
    max_tokens: int
    temperature: float
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    commit: str | None
    overall: DraftResult
    categories: dict[str, DraftResult]
    cost_ratio: float
    """Seconds of a draft token as a share of the target's pass over one token."""
    break_even: float | None
    """Least acceptance of each token at which the best window pays; None where none does."""
    best_window: int
    """Window with the highest expected speed, at the acceptance that was found; 0 where none pays."""
    expected_speedup: float
    """Expected speed at the best window over plain decoding, from costs measured here."""
    coordination_ms: float
    """Milliseconds of a step that went neither into the target nor into the draft."""


def evaluate_draft(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    window: int,
    params: SamplingParams,
    watch: Callable[[int, int], None] | None = None,
) -> DraftEvaluation:
    """Let the draft draft alone, in a fixed window.

    Args:
        engine: with a draft and no other proposer.
        prompts: what is asked, one at a time.
        window: tokens drafted in a row.
        params: of the answers.
        watch: told after each prompt how many are done, of how many.

    Raises:
        InvalidRequest: the engine has no draft, or it drafted nothing.
    """
    if engine.draft is None:
        raise InvalidRequest("there is no draft to measure; name one with --draft")
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    results = {}
    total = _Count()
    done = 0
    for category, group in by_category.items():
        count = _Count()
        for prompt in group:
            before = engine.snapshot()
            answer = engine.generate(chat(prompt.text), params, speculation=f"fixed:{window}").completions[0]
            after = engine.snapshot()
            for each in (count, total):
                each.add(before.by_source.get("draft"), after.by_source.get("draft"), window)
                each.emitted += max(0, len(answer.tokens) - 1)
                each.passes += answer.usage.passes
                each.prompts += 1
                each.steps += after.steps - before.steps
                each.coordination += after.coordination_seconds - before.coordination_seconds
            done += 1
            if watch is not None:
                watch(done, len(prompts))
        results[category] = count.result()
    overall = total.result()
    if not any(overall.drafted_at):
        raise InvalidRequest("the draft drafted nothing on these prompts; ask for longer answers")
    cost = engine.controller.cost
    assert cost is not None
    seconds = engine.draft.cost_ratio * cost.curve()[1]
    speeds = {k: speedup(cost, seconds, overall.acceptance[:k]) for k in range(1, window + 1)}
    best = max(speeds, key=lambda k: speeds[k])
    return DraftEvaluation(
        target=engine.manifest.name,
        draft=engine.draft.name,
        window=window,
        max_tokens=params.max_tokens or 0,
        temperature=params.temperature,
        **provenance(),  # type: ignore[arg-type]  # pydantic checks them
        overall=overall,
        categories=results,
        cost_ratio=engine.draft.cost_ratio,
        break_even=engine.draft.break_even,
        best_window=best if speeds[best] > 1.0 else 0,
        expected_speedup=max(1.0, speeds[best]),
        coordination_ms=1e3 * total.coordination / max(1, total.steps),
    )


@dataclass(slots=True)
class _Count:
    """Sums over some prompts."""

    prompts: int = 0
    emitted: int = 0
    passes: int = 0
    steps: int = 0
    coordination: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, before: SourceStats | None, after: SourceStats | None, window: int) -> None:
        """Take in what one answer added to the draft's counts."""
        for name in ("drafted_at", "accepted_at"):
            old, new = (getattr(each, name) if each is not None else [] for each in (before, after))
            mine = getattr(self, name) or [0] * window
            more = [n - o for n, o in zip_longest(new, old, fillvalue=0)]
            # an engine that drafted further before has longer lists, whose ends did not change
            setattr(self, name, [m + a for m, a in zip_longest(mine, more, fillvalue=0)][:window])

    def result(self) -> DraftResult:
        drafted = sum(self.drafted_at)
        reached = [self.passes, *self.accepted_at]
        return DraftResult(
            prompts=self.prompts,
            drafted_at=self.drafted_at,
            # a draft that was cut short is not held against the positions that it did not reach
            acceptance=[
                accepted / min(tried, before) if min(tried, before) else 0.0
                for accepted, tried, before in zip(self.accepted_at, self.drafted_at, reached, strict=False)
            ],
            acceptance_rate=sum(self.accepted_at) / drafted if drafted else 0.0,
            tokens_per_pass=self.emitted / self.passes if self.passes else 1.0,
        )
