"""What the engine counts, for people and for benchmarks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class RequestStep:
    """What one decoding sequence did in a pass."""

    request: str
    index: int
    """Of the completion."""
    position: int
    """Tokens of output before it."""
    proposed: tuple[tuple[str, int], ...]
    """Proposers that had a draft, and its length."""
    source: str
    """Whose draft was verified; empty for plain decoding."""
    window: int
    expected: float
    """Tokens of the window that were expected to be accepted."""
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One pass through the model."""

    started: float
    seconds: float
    """Wall time of the whole step."""
    infer_seconds: float
    """Of which inside the model."""
    decoding: int
    """Sequences that decoded."""
    prompt_tokens: int
    drafted: int
    accepted: int
    emitted: int
    width: int
    """Tokens in the pass."""
    draft_seconds: float = 0.0
    """Time spent asking proposers."""
    draft_infer_seconds: float = 0.0
    """Of which inside a draft's own forward passes."""
    requests: tuple[RequestStep, ...] = ()
    """The sequences that decoded."""

    @property
    def coordination_seconds(self) -> float:
        """Time of the step that went neither into the target nor into a draft."""
        return self.seconds - self.infer_seconds - self.draft_infer_seconds


@dataclass(slots=True)
class SourceStats:
    """What became of one proposer's drafts."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    """Tokens verified at each position of a draft."""
    accepted_at: list[int] = field(default_factory=list)

    def add(self, step: RequestStep) -> None:
        """Count a verified draft."""
        self.drafts += 1
        self.drafted += step.window
        self.accepted += step.accepted
        missing = step.window - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for position in range(step.window):
            self.drafted_at[position] += 1
        for position in range(step.accepted):
            self.accepted_at[position] += 1


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the engine holds at a moment."""

    running: int
    waiting: int
    kv_used: int
    kv_blocks: int
    preemptions: int
    prefix_hit_tokens: int
    faults: dict[str, tuple[int, int]]
    """By proposer its faults, and the times that it was benched."""


@dataclass(slots=True)
class EngineStats:
    """Running totals since the engine started, and the last steps one by one."""

    steps: int = 0
    seconds: float = 0.0
    infer_seconds: float = 0.0
    prompt_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    draft_seconds: float = 0.0
    draft_infer_seconds: float = 0.0
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    """By proposer, what became of its drafts."""
    recent: deque[StepRecord] = field(default_factory=deque)
    """As many as its bound says."""

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        self.steps += 1
        self.seconds += record.seconds
        self.infer_seconds += record.infer_seconds
        self.prompt_tokens += record.prompt_tokens
        self.drafted += record.drafted
        self.accepted += record.accepted
        self.emitted += record.emitted
        self.draft_seconds += record.draft_seconds
        self.draft_infer_seconds += record.draft_infer_seconds
        self.recent.append(record)
        for step in record.requests:
            if step.window:
                self.by_source.setdefault(step.source, SourceStats()).add(step)

    @property
    def coordination_seconds(self) -> float:
        """Time of all steps that went neither into the target nor into a draft."""
        return self.seconds - self.infer_seconds - self.draft_infer_seconds

    def copy(self) -> EngineStats:
        """The totals as they are now, without the single steps."""
        by_source = {
            name: replace(source, drafted_at=list(source.drafted_at), accepted_at=list(source.accepted_at))
            for name, source in self.by_source.items()
        }
        return replace(self, recent=deque(maxlen=0), by_source=by_source)

    def trace(self, request: str) -> list[StepRecord]:
        """The kept steps in which a request decoded."""
        return [record for record in self.recent if any(step.request == request for step in record.requests)]
