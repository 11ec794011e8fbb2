"""The step loop: schedule, draft, forward, verify, emit. One thread owns it; `frontend` holds the queues around it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from outrider.control import AutoController, Candidate, Controller, Load
from outrider.engine.config import EngineConfig
from outrider.engine.drafting import Drafter
from outrider.engine.kv import BlockPool
from outrider.engine.outputs import EmittedToken, FinishReason
from outrider.engine.pacing import ChunkPacer
from outrider.engine.request import Group, Request, Sequence, Sink
from outrider.engine.scheduler import Scheduler, Work
from outrider.engine.stats import EngineStats, Gauges, RequestStep, StepRecord
from outrider.engine.text import TextCodec
from outrider.errors import InvalidRequest
from outrider.proposers import NO_DRAFT, Draft, Proposer
from outrider.runners import Logits, Runner, States
from outrider.verify import Sampler, Verdict, token_logprobs, verify

log = logging.getLogger("outrider")


class EngineCore:
    """Continuous batching over one runner. Not thread-safe: one thread calls `add`, `cancel` and `step`.

    Args:
        runner: the target model.
        codec: its tokens' bytes.
        eos_ids: tokens that end a text.
        proposers: guess tokens; without any it never speculates.
        controller: chooses windows.
        config: limits and defaults.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        runner: Runner,
        codec: TextCodec,
        *,
        eos_ids: tuple[int, ...] = (),
        proposers: Iterable[Proposer] = (),
        controller: Controller | None = None,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config or EngineConfig()
        self.runner = runner
        self.codec = codec
        self.clock = clock
        info = runner.info
        self.context_length = min(info.context_length, info.num_blocks * info.block_size)
        self.pool = BlockPool(
            info.num_blocks, info.block_size, runner.copy_block, prefix_caching=self.config.prefix_caching
        )
        self.scheduler = Scheduler(self.pool, self.config.max_running)
        self.stats = EngineStats(recent=deque(maxlen=self.config.trace_steps))
        self.drafters = [Drafter(proposer, info.vocabulary, clock=clock) for proposer in proposers]
        self.controller = controller or AutoController(objective=self.config.objective)
        self._eos_ids = eos_ids
        self._default_mode = self.config.mode
        self._pacer = ChunkPacer(self.config.chunk_tokens, self.config.stretch)
        self._groups: dict[str, Group] = {}

    # --- requests in -----------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Refuse what cannot be honoured. Safe from any thread.

        Raises:
            InvalidRequest: names the value and what would be right.
        """
        params, info = request.params, self.runner.info
        length = len(request.prompt)
        if length == 0:
            raise InvalidRequest("the prompt has no tokens; give at least one")
        room = self.context_length - (0 if params.max_tokens == 0 else 1)
        if length > room:
            why = "" if self.context_length == info.context_length else " (bounded by the KV memory; give more)"
            raise InvalidRequest(
                f"the prompt has {length} tokens and the context is {self.context_length}{why}; "
                f"at most {room} leave room for an answer"
            )
        for name, ids in (
            ("prompt", request.prompt),
            ("prediction", request.prediction),
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            for token in ids:
                if not 0 <= token < info.vocabulary:
                    raise InvalidRequest(f"{name} has token {token}; the vocabulary has {info.vocabulary} tokens")
        if params.n > self.config.max_running:
            raise InvalidRequest(f"n={params.n} is more than max_running={self.config.max_running} sequences")
        if request.grammar is not None and (params.ignore_eos or params.min_tokens):
            raise InvalidRequest("a grammar ends the text where it is complete; leave out ignore_eos and min_tokens")
        if request.timeout is not None and not request.timeout > 0:
            raise InvalidRequest(f"timeout={request.timeout} must be more than 0 seconds")

    def add(self, request: Request, sink: Sink, arrived: float | None = None) -> None:
        """Queue a checked request; its chunks go to `sink` until each of its n sequences is finished."""
        if request.id in self._groups:
            raise InvalidRequest(f"request id {request.id!r} is in use; choose another")
        params = request.params
        eos = () if params.ignore_eos else self._eos_ids
        group = Group(
            request,
            sink,
            arrived=self.clock() if arrived is None else arrived,
            end_ids=frozenset(eos) | frozenset(params.stop_token_ids),
        )
        if group.scores_prompt:
            group.prompt_logprobs = [None]
        self._groups[request.id] = group
        self.scheduler.add(self._sequence(group, 0))

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """End a request with what it has and free its blocks; unknown ids are fine (it just finished)."""
        group = self._groups.get(request_id)
        if group is None:
            return
        for index in range(len(group.sequences), group.request.params.n):
            self._sequence(group, index)
        for sequence in group.sequences:
            if sequence.finish_reason is None:
                self._finish(sequence, reason)

    @property
    def has_work(self) -> bool:
        """Whether any request is open."""
        return bool(self._groups)

    def gauges(self) -> Gauges:
        """What is held now."""
        return Gauges(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_used=self.pool.used,
            kv_blocks=self.pool.num_blocks,
            preemptions=self.scheduler.preemptions,
            prefix_hit_tokens=self.scheduler.prefix_hit_tokens,
            faults={drafter.name: (drafter.faults, drafter.benchings) for drafter in self.drafters},
        )

    def set_mode(self, config: EngineConfig) -> None:
        """From now on, what requests that do not choose do."""
        self.config = config
        self._default_mode = config.mode

    def check_integrity(self) -> None:
        """Compare the KV books with all live sequences; raises AssertionError."""
        self.pool.check_integrity(s.table for s in self.scheduler if s.table is not None)

    def _sequence(self, group: Group, index: int) -> Sequence:
        request = group.request
        sampler = Sampler(
            request.params,
            seed=request.seed,
            stream=index,
            prompt=request.prompt,
            vocabulary=self.runner.info.vocabulary,
            end_ids=sorted(group.end_ids),
            constraint=request.grammar() if request.grammar is not None else None,
        )
        sequence = Sequence(group, index, self.codec, sampler, self.config.verification)
        group.sequences.append(sequence)
        return sequence

    # --- one step --------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one pass; return whether there was anything to do."""
        started = self.clock()
        self._expire(started)
        decoding = sum(sequence.decoding for sequence in self.scheduler.running)
        works = self.scheduler.schedule(self._pacer.limit(decoding))
        if not works:
            return False
        for work in works:
            if work.sequence.timings.admitted is None:
                work.sequence.timings.admitted = started
        draft_infer_before = self._draft_infer_seconds
        draft_seconds = self._draft(works)
        segments = [work.segment() for work in works]
        load = _load(works)
        infer_before = self.runner.infer_seconds
        logits = self.runner.forward(segments)
        infer_seconds = self.runner.infer_seconds - infer_before
        states = self.runner.states
        row = 0
        verdicts = []
        for work, segment in zip(works, segments, strict=True):
            rows = slice(row, row + segment.rows - work.padding)
            verdicts.append(self._advance(work, logits[rows], states[rows] if states is not None else None))
            row += segment.rows
        draft_infer_seconds = self._draft_infer_seconds - draft_infer_before
        self._record(works, verdicts, load, started, infer_seconds, draft_seconds, draft_infer_seconds)
        return True

    @property
    def _draft_infer_seconds(self) -> float:
        return sum(drafter.infer_seconds for drafter in self.drafters)

    def _record(
        self,
        works: list[Work],
        verdicts: list[Verdict],
        load: Load,
        started: float,
        infer_seconds: float,
        draft_seconds: float,
        draft_infer_seconds: float,
    ) -> None:
        seconds = self.clock() - started
        decoding = sum(work.decoding for work in works)
        prompt_tokens = sum(work.count for work in works if not work.decoding)
        drafted = sum(len(work.draft.tokens) for work in works)
        # those who wait for a prompt's chunk wait for the model; drafts are made beside it or not
        self._pacer.observe(decoding, prompt_tokens, drafted, seconds - draft_seconds)
        if infer_seconds > 0.0 and prompt_tokens == 0:  # a prompt chunk is another kind of pass
            # with what verifying and emitting took: that grows with the drafts too
            self.controller.observe_pass(load, seconds - draft_seconds)
        self.stats.add(
            StepRecord(
                started=started,
                seconds=seconds,
                infer_seconds=infer_seconds,
                decoding=decoding,
                prompt_tokens=prompt_tokens,
                drafted=drafted,
                accepted=sum(verdict.accepted for verdict in verdicts),
                emitted=sum(len(verdict.tokens) for verdict in verdicts),
                width=load.width,
                draft_seconds=draft_seconds,
                draft_infer_seconds=draft_infer_seconds,
                requests=tuple(
                    _request_step(work, verdict) for work, verdict in zip(works, verdicts, strict=True) if work.decoding
                ),
            )
        )

    def _expire(self, now: float) -> None:
        late = [g.request.id for g in self._groups.values() if g.deadline is not None and now >= g.deadline]
        for request_id in late:
            self.cancel(request_id, "deadline")

    def _draft(self, works: list[Work]) -> float:
        """Give decoding sequences a draft; return the seconds that the proposers took.

        A sequence that has not said its first token is never made to wait.
        """
        ready = [work for work in works if work.decoding] if self.drafters else []
        if not ready:
            return 0.0
        candidates = [self._candidate(work.sequence) for work in ready]
        seconds = 0.0
        for drafter in self.drafters:
            made = [work.proposals for work in ready]
            asked, longest, taken = drafter.draft(ready, self.controller.budgets(drafter.name, candidates, made))
            if asked:
                seconds += taken
                self.controller.observe_drafting(drafter.name, asked, longest, taken)
        choices = self.controller.choose(candidates, [work.proposals for work in ready], _load(works))
        last = None
        for work, choice in zip(ready, choices, strict=True):
            window = choice.window
            if not window:
                continue
            table = work.sequence.table
            assert table is not None
            if not self.pool.reserve(table, len(work.sequence.tokens) + window):
                # speculation never takes a block from a request that runs
                window = min(window, self.pool.capacity(table) - len(work.sequence.tokens))
            work.choice = replace(choice, window=window)
            work.draft = work.proposals[choice.proposal].draft.cut(window)
            last = work
        if last is not None:
            self._pad(works, last)
        return seconds

    def _pad(self, works: list[Work], work: Work) -> None:
        """Widen a pass with drafts in it where a wider one is cheaper, if it needs no block for that."""
        padding = self.controller.padding(_load(works))
        if padding:
            table = work.sequence.table
            assert table is not None
            end = len(work.sequence.tokens) + len(work.draft.tokens)
            room = min(self.pool.capacity(table), self.context_length) - end
            work.padding = max(0, min(padding, room))

    def _candidate(self, sequence: Sequence) -> Candidate:
        return Candidate(
            request=sequence.key,
            mode=sequence.group.request.speculation or self._default_mode,
            limit=max(0, sequence.room(self.context_length) - 1),  # of the room left, one token is the target's own
            context=len(sequence.tokens),
        )

    def _advance(self, work: Work, logits: Logits, states: States | None) -> Verdict:
        """Take the logits of one work: score its prompt, verify its draft, emit what was chosen."""
        sequence = work.sequence
        table = sequence.table
        assert table is not None
        processed = table.committed + work.count
        if work.scores:
            self._score_prompt(sequence, logits, table.committed)
            logits = logits[-1:]
            states = states[-1:] if states is not None else None
        if not work.completes:
            self.pool.commit(table, sequence.tokens, processed)
            return Verdict()
        if sequence.emitted == 0:
            self.pool.commit(table, sequence.tokens, processed)
            return self._first_tokens(sequence, logits, states)
        verdict = self._choose(sequence, logits, states, work.draft, processed, work.foretold)
        if work.proposals and sequence.finish_reason is None:
            self.controller.observe(sequence.key, work.proposals, work.choice, verdict.tokens)
        return verdict

    def _first_tokens(self, sequence: Sequence, logits: Logits, states: States | None) -> Verdict:
        """The prompt is through the model: split into n sequences, each of which chooses its first token."""
        group = sequence.group
        if group.request.params.max_tokens == 0:
            self.cancel(group.request.id, "length")
            return Verdict()
        for index in range(1, group.request.params.n):
            child = self._sequence(group, index)
            assert sequence.table is not None
            child.table = self.pool.fork(sequence.table)
            child.usage.cached_tokens = sequence.usage.cached_tokens
            child.timings.admitted = sequence.timings.admitted
            self.scheduler.join(child)
        total = Verdict()
        for member in list(group.sequences):
            verdict = self._choose(member, logits, states, NO_DRAFT, member.committed)
            total.tokens += verdict.tokens
        return total

    def _choose(
        self,
        sequence: Sequence,
        logits: Logits,
        states: States | None,
        draft: Draft,
        processed: int,
        foretold: int = 0,
    ) -> Verdict:
        """Verify and emit; `processed` tokens of the sequence, its draft not counted, are now in the KV cache."""
        try:
            verdict = verify(logits, draft, sequence.sampler, self.config.verification)
        except FloatingPointError as error:
            self._finish(sequence, "error", str(error))
            return Verdict()
        if states is not None:  # of the position whose logits the last token was chosen from
            sequence.context.state = states[verdict.accepted].copy()
        self._emit(sequence, verdict, len(draft.tokens), processed, foretold)
        return verdict

    def _emit(self, sequence: Sequence, verdict: Verdict, drafted: int, processed: int, foretold: int) -> None:
        """Append tokens one by one, as plain decoding would, up to the first that ends the text."""
        usage, timings = sequence.usage, sequence.timings
        timings.last_token = self.clock()
        if timings.first_token is None:
            timings.first_token = timings.last_token
        else:
            usage.passes += 1
        emitted: list[EmittedToken] = []
        for number, token in enumerate(verdict.tokens):
            accepted = number < verdict.accepted
            usage.completion_tokens += 1
            usage.accepted += accepted
            sequence.tokens.append(token)
            reason, text = self._text_of(sequence, token)
            logprobs = verdict.logprobs[number] if verdict.logprobs else None
            emitted.append(EmittedToken(token, text, accepted, logprobs))
            if reason is not None:
                break
        rejected = drafted - verdict.accepted if len(emitted) == len(verdict.tokens) else 0
        verdict.accepted = min(verdict.accepted, len(emitted))
        usage.rejected += rejected
        usage.accepted_prediction += min(foretold, verdict.accepted)
        if rejected:
            usage.rejected_prediction += max(0, foretold - verdict.accepted)
        del verdict.tokens[len(emitted) :]
        assert sequence.table is not None
        self.pool.commit(sequence.table, sequence.tokens, min(processed + verdict.accepted, len(sequence.tokens)))
        if drafted:
            for drafter in self.drafters:
                drafter.observe(sequence.key, verdict.tokens)
        if reason is not None:
            self._finish(sequence, reason, emitted=emitted)
        else:
            self._hand_over(sequence, emitted)

    def _text_of(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, str]:
        """Why the sequence ends with this token, if it does, and the text that the token releases."""
        if token in sequence.group.end_ids:
            return "stop", ""
        text = sequence.text.feed(token, may_stop=sequence.emitted >= sequence.params.min_tokens)
        if sequence.text.stopped:
            return "stop", text
        if sequence.room(self.context_length) <= 0:
            return "length", text
        return None, text

    def _score_prompt(self, sequence: Sequence, logits: Logits, start: int) -> None:
        """Log-probabilities of the prompt's tokens that the rows from position `start` predict."""
        group = sequence.group
        prompt, top = group.request.prompt, group.request.params.logprobs
        assert group.prompt_logprobs is not None
        assert top is not None
        for row in range(len(group.prompt_logprobs) - 1 - start, len(logits)):
            if start + row + 1 < len(prompt):
                group.prompt_logprobs.append(token_logprobs(logits[row], prompt[start + row + 1], top))

    # --- chunks out ------------------------------------------------------------------------------------------

    def _hand_over(
        self, sequence: Sequence, emitted: list[EmittedToken], tail: str = "", error: str | None = None
    ) -> None:
        """Send a chunk; the first one of an echoed request begins with the prompt."""
        group = sequence.group
        text = "".join(token.text for token in emitted) + tail
        logprobs = None
        if group.request.params.echo and not sequence.echoed:
            sequence.echoed = True
            request = group.request
            head = request.prompt_text
            text = (self.codec.decode(request.prompt) if head is None else head) + text
            logprobs = tuple(group.prompt_logprobs) if group.prompt_logprobs is not None else None
        group.emit(sequence, tuple(emitted), text, logprobs, error)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        error: str | None = None,
        emitted: list[EmittedToken] | None = None,
    ) -> None:
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)
        for drafter in self.drafters:
            drafter.release(sequence.context)
        self.controller.release(sequence.key)
        tail = "" if sequence.text.stopped else sequence.text.flush()
        self._hand_over(sequence, emitted or [], tail, error)
        group = sequence.group
        if len(group.sequences) == group.request.params.n and all(s.finish_reason for s in group.sequences):
            del self._groups[group.request.id]


def _load(works: list[Work]) -> Load:
    """What the works put into the pass, with the drafts that they have so far."""
    width = attention = 0
    for work in works:
        tokens = work.count + len(work.draft.tokens) + work.padding
        width += tokens
        attention += tokens * (work.sequence.committed + tokens // 2)
    return Load(width, attention, len(works))


def _request_step(work: Work, verdict: Verdict) -> RequestStep:
    sequence = work.sequence
    return RequestStep(
        request=sequence.group.request.id,
        index=sequence.index,
        position=sequence.emitted - len(verdict.tokens),
        proposed=tuple((proposal.source, len(proposal.draft.tokens)) for proposal in work.proposals),
        source=work.source,
        window=work.choice.window,
        expected=work.choice.expected,
        accepted=verdict.accepted,
        emitted=len(verdict.tokens),
    )
