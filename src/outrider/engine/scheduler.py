"""Who is in the next pass: admission by blocks, chunked prefill, preemption by recompute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from outrider.control import PLAIN, Choice
from outrider.engine.kv import BlockPool
from outrider.engine.request import Sequence
from outrider.proposers import NO_DRAFT, Draft, Prediction, Proposal, agreement
from outrider.runners import Segment


@dataclass(slots=True)
class Work:
    """What one sequence does in a pass."""

    sequence: Sequence
    count: int
    """Known tokens that go through the model, from `sequence.committed` on."""
    decoding: bool
    proposals: list[Proposal] = field(default_factory=list)
    """What the proposers said."""
    choice: Choice = PLAIN
    """Which of them is verified, and how much of it."""
    draft: Draft = NO_DRAFT
    """What is verified in this pass."""
    padding: int = 0
    """Tokens behind the draft that mean nothing: the pass is cheaper with them."""

    @property
    def source(self) -> str:
        """Whose draft is verified; empty for plain decoding."""
        return self.proposals[self.choice.proposal].source if self.choice.window else ""

    @property
    def foretold(self) -> int:
        """How many of the draft's first tokens the client's prediction proposed too, whoever drafted them."""
        most = 0
        for proposal in self.proposals:
            if proposal.source == Prediction.name:
                most = agreement(self.draft.tokens, proposal.draft.tokens)
        return most

    @property
    def completes(self) -> bool:
        """Whether the pass reaches the sequence's last token, so that a new one can be chosen."""
        return self.count == self.sequence.pending

    @property
    def scores(self) -> bool:
        """Whether the pass covers prompt tokens whose own log-probabilities are wanted."""
        sequence = self.sequence
        return sequence.group.scores_prompt and sequence.committed < len(sequence.group.request.prompt)

    @property
    def rows(self) -> int:
        """Trailing positions that need logits."""
        if self.scores:
            return self.count
        return 1 + len(self.draft.tokens) + self.padding if self.completes else 0

    def segment(self) -> Segment:
        """The work as the runner takes it."""
        sequence = self.sequence
        assert sequence.table is not None
        start = sequence.table.committed
        tokens = sequence.tokens[start : start + self.count]
        tokens += self.draft.tokens
        tokens += tokens[-1:] * self.padding
        return Segment(tokens, start, sequence.table.blocks, self.rows)


class Scheduler:
    """Keeps the queue and the running batch.

    Args:
        pool: the KV blocks.
        max_running: most sequences in the batch.
    """

    def __init__(self, pool: BlockPool, max_running: int) -> None:
        self.pool = pool
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        self._worth_admitting = False

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self.waiting.append(sequence)
        self._worth_admitting = True

    def join(self, sequence: Sequence) -> None:
        """Take a sequence that already has blocks straight into the batch (a fork of a running one)."""
        self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that is finished, and free its blocks."""
        if sequence.table is not None:
            self.pool.release(sequence.table)
            sequence.table = None
        for home in (self.running, self.waiting):
            if sequence in home:
                home.remove(sequence)
        self._worth_admitting = True

    def schedule(self, chunk_limit: int) -> list[Work]:
        """Choose the next pass. Decoding sequences are always in it; prompts share `chunk_limit` tokens.

        Every work has blocks for its known tokens. A sequence that cannot get one takes them from the sequence
        that came last, which goes back to the head of the queue with everything it has said.
        """
        self._admit()
        decoding = [sequence for sequence in self.running if sequence.decoding]
        for sequence in decoding:
            if sequence.table is not None:  # else one before it took its blocks
                self._reserve(sequence)
        works = [Work(sequence, 1, decoding=True) for sequence in decoding if sequence.table is not None]
        works += self._prefill(chunk_limit)
        return works

    def _prefill(self, budget: int) -> list[Work]:
        """Share the budget among prompts equally, so that a short one does not wait for a long one."""
        works = []
        prefilling = sorted((s for s in self.running if not s.decoding), key=lambda s: s.pending)
        for number, sequence in enumerate(prefilling):
            share = -(-budget // (len(prefilling) - number))
            count = min(sequence.pending, share)
            if count > 0:
                works.append(Work(sequence, count, decoding=False))
                budget -= count
        return works

    def _reserve(self, sequence: Sequence) -> None:
        """Get blocks for the sequence's known tokens, from those who came later if need be, or preempt itself."""
        while sequence.table is not None and not self.pool.reserve(sequence.table, len(sequence.tokens)):
            self._preempt(self.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.pool.release(sequence.table)
        sequence.table = None
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1
        self._worth_admitting = True

    def _admit(self) -> None:
        """Admit from the head of the queue while there is room; a block each is spared for those who run."""
        while self._worth_admitting and self.waiting:
            sequence = self.waiting[0]
            unforked = sum(s.params.n - 1 for s in self.running if s.emitted == 0 and s.index == 0)
            coming = sequence.params.n if sequence.emitted == 0 and sequence.index == 0 else 1
            if len(self.running) + unforked + coming > max(self.max_running, coming):
                break
            table = self.pool.admit(
                sequence.tokens, spare=len(self.running), use_prefix=not sequence.group.scores_prompt
            )
            if table is None:
                break
            self.waiting.popleft()
            sequence.table = table
            if sequence.emitted == 0:
                sequence.usage.cached_tokens = table.committed
                self.prefix_hit_tokens += table.committed
            self.running.append(sequence)
        self._worth_admitting = False
