"""The engine against the plain loop: batched, drafted, preempted or cancelled, the text is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import oracle
from outrider.params import SamplingParams
from outrider.proposers import Draft, PromptLookup
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness, RandomProposer, perfect

V = 12
EOS = (0,)
SCRIPT = hashed_logits(V, order=1, sharpness=2.0)
CONTEXT = 40

prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=20)
modes = st.sampled_from(["off", "auto", "fixed:1", "fixed:2", "fixed:7"])
sampling = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.integers(0, V),
        "top_p": st.sampled_from([0.2, 0.7, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 0.5]),
        "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-0.5, 0.0, 1.0]),
        "frequency_penalty": st.sampled_from([-0.3, 0.0, 0.7]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.sampled_from([-100.0, -1.0, 2.0]), max_size=2),
        "seed": st.integers(0, 2**64 - 1),
        "stop_token_ids": st.lists(st.integers(0, V - 1), max_size=1),
        "ignore_eos": st.booleans(),
    },
)
lengths = st.tuples(st.integers(1, 30), st.integers(0, 8))


def runner(num_blocks: int = 64) -> ScriptedRunner:
    return ScriptedRunner(SCRIPT, vocabulary=V, context_length=CONTEXT, num_blocks=num_blocks)


def expected(
    prompt: list[int], params: SamplingParams, stream: int = 0, context: int = CONTEXT
) -> tuple[list[int], str]:
    seed = params.seed if params.seed is not None else 0
    return oracle.generate(
        SCRIPT, prompt, params, seed=seed, stream=stream, eos_ids=EOS, context_length=context
    )  # fmt: skip


@given(prompts, sampling, lengths, modes, st.sampled_from(["lookup", "random", "perfect"]))
@settings(max_examples=300, deadline=None)
def test_one_request(
    prompt: list[int], fields: dict[str, Any], length: tuple[int, int], mode: str, proposer: str
) -> None:
    most, least = length
    params = SamplingParams(max_tokens=most, min_tokens=min(least, most), **fields)
    made = {"lookup": PromptLookup(min_match=1), "random": RandomProposer(V), "perfect": perfect(SCRIPT)}[proposer]
    harness = Harness(runner(), proposer=made, eos_ids=EOS, speculation=mode)
    answer = harness.answer(prompt, **params.model_dump())
    assert (answer.token_ids, answer.finish_reason) == expected(prompt, params)
    assert answer.usage.completion_tokens == len(answer.tokens)
    assert answer.usage.accepted == sum(token.accepted for token in answer.tokens)


@given(prompts, sampling, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_coupled_verification_of_drawn_drafts(prompt: list[int], fields: dict[str, Any], seed: int) -> None:
    """A draft model's own distribution changes nothing either."""
    params = SamplingParams(max_tokens=12, **fields)
    rng = np.random.default_rng(seed)

    class Drawn(RandomProposer):
        def propose(self, contexts: Any, budget: Any) -> list[Draft]:
            drafts = []
            for most in budget:
                q = rng.dirichlet(np.ones(V), most).astype(np.float32)
                tokens = [int(rng.choice(V, p=row / row.sum(dtype=np.float64))) for row in q.astype(np.float64)]
                drafts.append(Draft(tokens, [0.5] * most, q))
            return drafts

    harness = Harness(runner(), proposer=Drawn(V), eos_ids=EOS, speculation="fixed:3")
    answer = harness.answer(prompt, **params.model_dump())
    assert (answer.token_ids, answer.finish_reason) == expected(prompt, params)
    assert harness.core.drafters[0].faults == 0


class Traffic(RuleBasedStateMachine):
    """Random interleavings of add, step and cancel in a cache too small for all: every answer is still the oracle's."""

    @initialize(
        num_blocks=st.integers(11, 24),
        max_running=st.integers(4, 8),
        chunk=st.integers(1, 9),
        caching=st.booleans(),
        mode=modes,
    )
    def start(self, num_blocks: int, max_running: int, chunk: int, caching: bool, mode: str) -> None:
        self.harness = Harness(
            runner(num_blocks),
            proposer=RandomProposer(V, seed=num_blocks),
            eos_ids=EOS,
            speculation=mode,
            max_running=max_running,
            chunk_tokens=chunk,
            prefix_caching=caching,
        )
        self.open: dict[str, tuple[list[int], SamplingParams]] = {}
        self.cancelled: set[str] = set()

    @rule(prompt=prompts, fields=sampling, most=st.integers(1, 25), n=st.integers(1, 3), mode=st.none() | modes)
    def add(self, prompt: list[int], fields: dict[str, Any], most: int, n: int, mode: str | None) -> None:
        if fields.get("temperature", 0.0) > 0.0:
            fields = {**fields, "n": n}
        params = SamplingParams(max_tokens=most, **fields)
        name = f"r{len(self.open)}"
        self.open[name] = (prompt, params)
        self.harness.add(prompt, name, speculation=mode, **params.model_dump())

    @rule(
        start=st.integers(0, 30),
        most=st.integers(1, 25),
    )
    def add_with_shared_prefix(self, start: int, most: int) -> None:
        self.add(prompt=[1, 2, 3, 4] * 4 + [start % V], fields={}, most=most, n=1, mode=None)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.harness.step()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.harness.core.cancel(name)
        self.cancelled.add(name)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "harness"):
            self.harness.core.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.run()
        for name, (prompt, params) in self.open.items():
            for stream, answer in enumerate(self.harness.answers[name]):
                ids, reason = expected(prompt, params, stream, self.harness.core.context_length)
                if answer.finish_reason == "cancelled":
                    assert name in self.cancelled
                    assert answer.token_ids == ids[: len(answer.tokens)]
                else:
                    assert (answer.token_ids, answer.finish_reason) == (ids, reason)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_preemption_happens_and_loses_nothing() -> None:
    harness = Harness(runner(num_blocks=10), proposer=PromptLookup(min_match=1), eos_ids=EOS, speculation="fixed:4")
    wanted = {}
    for i in range(6):
        prompt = [i + 1, 2, 3, 4, 5]
        params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=i)
        wanted[harness.add(prompt, f"r{i}", **params.model_dump())] = expected(prompt, params, context=40)
    harness.run()
    assert harness.core.scheduler.preemptions > 0
    for name, (ids, reason) in wanted.items():
        answer = harness.answers[name][0]
        assert (answer.token_ids, answer.finish_reason) == (ids, reason)


@pytest.mark.parametrize("mode", ["off", "fixed:4"])
def test_a_batch_and_its_members_alone_give_the_same_text(mode: str) -> None:
    asked = {f"r{i}": ([i, 3, i, 5], SamplingParams(max_tokens=15, temperature=0.9, seed=i)) for i in range(8)}
    together = Harness(runner(), proposer=PromptLookup(min_match=1), eos_ids=EOS, speculation=mode)
    for name, (prompt, params) in asked.items():
        together.add(prompt, name, **params.model_dump())
    together.run()
    for name, (prompt, params) in asked.items():
        alone = Harness(runner(), eos_ids=EOS, speculation="off").answer(prompt, **params.model_dump())
        assert together.answers[name][0].token_ids == alone.token_ids
