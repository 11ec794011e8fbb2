"""The draft model: in step with the target whatever happens, within its memory and context, right when sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.control import AutoController, Candidate, CostModel
from outrider.control.guard import FIRST_WINDOW
from outrider.engine import EngineConfig, EngineCore, Request
from outrider.errors import InvalidRequest
from outrider.params import SamplingParams, Speculation
from outrider.proposers import Context, Draft, DraftModel, PromptLookup, Proposal, match_vocabularies
from outrider.proposers.draft_model import CATCH_UP
from outrider.proposers.vocabulary import VocabularyMap
from outrider.testing import ByteCodec, ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness

V = 32
SCRIPT = hashed_logits(V, order=3, seed=4)
SAME = VocabularyMap(None, V, V)


def near(tokens: Sequence[int]) -> Any:
    """A draft that mostly agrees with the target."""
    noise = hashed_logits(V, order=2, sharpness=1.0, seed=9)
    return SCRIPT(tokens) + noise(tokens)


def target(**fields: Any) -> ScriptedRunner:
    return ScriptedRunner(SCRIPT, **{"vocabulary": V, "context_length": 256, "num_blocks": 256, **fields})


def draft(script: Any = near, **fields: Any) -> DraftModel:
    made = {"vocabulary": V, "context_length": 256, "num_blocks": 256, **fields}
    return DraftModel(ScriptedRunner(script, **made), SAME)


def test_the_target_as_its_own_draft_is_always_right() -> None:
    proposer = draft(SCRIPT)
    harness = Harness(target(), proposer=proposer, speculation="fixed:4")
    answer = harness.answer([1, 2, 3], max_tokens=51)
    assert (answer.usage.rejected, answer.usage.passes) == (0, 10)
    assert proposer.used_blocks == 0
    # one catch-up pass and three single tokens for each verification, and nothing is computed twice
    assert isinstance(proposer.runner, ScriptedRunner)
    assert sum(proposer.runner.widths) <= 3 + 51 + 1


@pytest.mark.parametrize("mode", ["fixed:1", "fixed:5", "auto", "threshold"])
@pytest.mark.parametrize("script", [SCRIPT, near, hashed_logits(V, order=1, seed=99)])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 5, "top_k": 9}, {"repetition_penalty": 1.4}])
def test_the_text_is_that_of_off(mode: str, script: Any, fields: dict[str, Any]) -> None:
    harness = Harness(target(), proposers=[PromptLookup(), draft(script)], speculation=mode)
    plain = harness.answer([1, 2, 3], max_tokens=60, speculation="off", **fields)
    fast = harness.answer([1, 2, 3], max_tokens=60, **fields)
    assert plain.token_ids == fast.token_ids
    assert all(drafter.faults == 0 for drafter in harness.core.drafters)


def test_penalties_and_shared_noise_reach_the_draft() -> None:
    """The target as its own draft is right whatever shapes the choice, since the draft's logits are shaped alike."""
    fields = {"temperature": 1.3, "seed": 3, "top_p": 0.9, "frequency_penalty": 0.7, "ignore_eos": True}
    harness = Harness(target(), proposer=draft(SCRIPT), speculation="fixed:4", eos_ids=(0,))
    answer = harness.answer([1, 2, 3], max_tokens=51, **fields)
    assert answer.usage.rejected == 0
    assert answer.usage.accepted > 30


@pytest.mark.parametrize("way", ["rejection", "block"])
def test_drawn_drafts_bring_their_distribution(way: str) -> None:
    """The same distribution on both sides accepts nearly everything; another one still gives the target's text."""
    fields = {"temperature": 1.0, "seed": 3}
    same = Harness(target(), proposer=draft(SCRIPT), speculation="fixed:4", verification=way)
    answer = same.answer([1, 2, 3], max_tokens=101, **fields)
    assert answer.usage.acceptance_rate is not None
    assert answer.usage.acceptance_rate > 0.99
    assert same.core.drafters[0].faults == 0


@pytest.mark.parametrize("way", ["coupled", "rejection", "block"])
def test_the_first_tokens_are_distributed_as_without_speculation(way: str) -> None:
    harness = Harness(target(num_blocks=64), proposer=draft(num_blocks=64), speculation="fixed:2", verification=way)
    prompt, params = (1, 2, 3), {"temperature": 1.2, "max_tokens": 3}
    draws = 3_000
    counts = np.zeros((V, V))
    for number in range(draws):
        ids: list[int] = []
        request = Request(f"r{number}", prompt, SamplingParams(**params), seed=number)
        harness.core.add(request, lambda chunk, ids=ids: ids.extend(t.id for t in chunk.tokens))
        while harness.core.has_work:
            harness.core.step()
        counts[ids[1], ids[2]] += 1

    def softmax(tokens: list[int]) -> np.ndarray[Any, Any]:
        weights = np.exp(np.float64(SCRIPT(tokens)) / 1.2)
        return np.asarray(weights / weights.sum())

    expected = np.zeros((V, V))
    first = softmax([1, 2, 3])
    for a in range(V):
        second = softmax([1, 2, 3, a])
        for b in range(V):
            expected[b] += first[a] * second[b] * softmax([1, 2, 3, a, b])
    likely = expected * draws >= 5
    chi2 = float((((counts - expected * draws) ** 2) / (expected * draws))[likely].sum())
    degrees = int(likely.sum())
    assert chi2 < degrees + 5 * (2 * degrees) ** 0.5


def test_a_request_that_was_not_drafted_for_is_caught_up_in_one_chunk() -> None:
    proposer = draft(SCRIPT)
    tokens = list(range(20))
    context = Context("r", tokens, 5)
    proposer.propose([context], [2])
    tokens.extend([7, 8, 9, 1, 2, 3])
    assert isinstance(proposer.runner, ScriptedRunner)
    before = len(proposer.runner.widths)
    (made,) = proposer.propose([context], [2])
    assert proposer.runner.widths[before:] == [6, 1]  # the draft tokens had been wrong: all six are new
    assert made.tokens[0] == int(SCRIPT(tokens).argmax())


def test_a_long_prompt_is_read_in_pieces_that_do_not_stall_others() -> None:
    proposer = draft(SCRIPT, context_length=1024, num_blocks=512)
    prompt = [number % V for number in range(2 * CATCH_UP + 10)]
    contexts = [Context("long", prompt, 5), Context("short", [1, 2, 3], 3)]
    made = [proposer.propose(contexts, [2, 2]) for _ in range(4)]
    assert isinstance(proposer.runner, ScriptedRunner)
    assert max(proposer.runner.widths) <= CATCH_UP
    assert [len(drafts[0].tokens) for drafts in made] == [0, 0, 2, 2]
    assert len(made[3][1].tokens) == 2


def test_a_shorter_context_ends_drafting_not_the_request() -> None:
    harness = Harness(target(), proposer=draft(SCRIPT, context_length=40), speculation="fixed:4")
    answer = harness.answer([1, 2, 3], max_tokens=100)
    assert (len(answer.tokens), answer.finish_reason) == (100, "length")
    assert harness.core.drafters[0].faults == 0
    assert 0 < answer.usage.accepted <= 40


@pytest.mark.parametrize("left", [1, 2, 4])
def test_a_prompt_that_ends_just_below_the_context(left: int) -> None:
    prompt = [number % V for number in range(64 - left)]
    for speculation in ("off", "fixed:4"):
        harness = Harness(target(context_length=64), proposer=draft(SCRIPT, context_length=64), speculation=speculation)
        answer = harness.answer(prompt)
        assert (len(answer.tokens), answer.finish_reason) == (left, "length")


def test_a_full_draft_cache_costs_the_draft_and_nothing_else() -> None:
    proposer = draft(SCRIPT, num_blocks=6)
    harness = Harness(target(), proposer=proposer, speculation="fixed:4")
    for name in "abcd":
        harness.add([1, 2, 3, ord(name) % V], name, max_tokens=40)
    harness.run()
    assert all(len(harness.answers[name][0].tokens) == 40 for name in "abcd")
    assert harness.core.drafters[0].faults == 0
    assert proposer.used_blocks == 0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_requests_come_go_and_are_cancelled_mid_draft(data: st.DataObject) -> None:
    proposer = draft(num_blocks=data.draw(st.integers(4, 60)))
    harness = Harness(target(num_blocks=80), proposer=proposer, speculation="fixed:3", max_running=4)
    prompts = {f"r{i}": data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=12)) for i in range(8)}
    for name, prompt in prompts.items():
        harness.add(prompt, name, max_tokens=20)
        for _ in range(data.draw(st.integers(0, 4))):
            harness.step()
        if data.draw(st.integers(0, 3)) == 0:
            harness.core.cancel(name)
    harness.run()
    assert proposer.used_blocks == 0
    assert sorted(proposer._free) == list(range(proposer.runner.info.num_blocks))
    assert harness.core.drafters[0].faults == 0
    plain = Harness(target(), speculation="off")
    for name, prompt in prompts.items():
        answer = harness.answers[name][0]
        if answer.finish_reason != "cancelled":
            assert answer.token_ids == plain.answer(prompt, max_tokens=20).token_ids


def run_auto(script: Any, draft_seconds: float, tokens: int = 300) -> tuple[EngineCore, DraftModel]:
    """An engine whose passes cost by the model's word and whose draft takes so many plain passes a token."""
    control = AutoController(CostModel({1: 1.0, 2: 1.1, 8: 1.4, 16: 2.0}))
    proposer = DraftModel(draft(script, context_length=1024).runner, SAME, control.goes_on)
    core = EngineCore(
        target(context_length=1024),
        ByteCodec(),
        proposers=[proposer],
        controller=control,
        config=EngineConfig(speculation="auto"),
    )
    learn = control.observe_drafting
    control.observe_drafting = lambda source, n, longest, _: learn(source, n, longest, draft_seconds * longest)  # type: ignore[method-assign]
    core.add(Request("r", (1, 2, 3), SamplingParams(max_tokens=tokens)), lambda chunk: None)
    while core.has_work:
        core.step()
    return core, proposer


def test_a_cheap_good_draft_is_used_and_a_bad_or_dear_one_hardly_ever() -> None:
    good, _ = run_auto(SCRIPT, 0.1)
    assert good.stats.steps < 90
    for script, cost in ((hashed_logits(V, order=1, seed=99), 0.1), (SCRIPT, 3.0)):
        core, proposer = run_auto(script, cost)
        assert isinstance(proposer.runner, ScriptedRunner)
        assert core.stats.steps > 200
        assert len(proposer.runner.widths) < 60


def test_drafting_stops_where_the_next_token_does_not_pay() -> None:
    control = AutoController(CostModel({1: 1.0, 2: 1.1, 8: 1.4, 16: 2.0}))
    for _ in range(20):
        control.observe_drafting("draft", 1, 4, 4 * 0.3)
    fixed, auto = (Candidate("r", Speculation.parse(mode), 20, 10) for mode in ("fixed:4", "auto"))
    control.budgets("draft", [fixed], [[]])
    assert control.goes_on("draft", "r", [0.1, 0.1], 1)  # so many were asked for
    control.budgets("draft", [auto], [[]])
    assert control.goes_on("draft", "r", [0.95], 1)
    assert not control.goes_on("draft", "r", [0.95, 0.3], 1)
    assert control.goes_on("draft", "r", [0.95, 0.7], 8)  # a pass that eight share costs each an eighth


def test_a_dear_draft_is_not_asked_where_a_cheap_one_promises_as_much() -> None:
    control = AutoController(CostModel({1: 1.0, 16: 1.5}))
    control.observe_drafting("draft", 1, 4, 0.4)
    candidate = Candidate("r", Speculation.parse("auto"), 20, 10)
    sure, weak = Draft([1] * 8, [0.97] * 8), Draft([1], [0.3])
    assert control.budgets("draft", [candidate], [[Proposal("suffix", sure)]]) == [0]
    assert control.budgets("draft", [candidate], [[Proposal("suffix", weak)]]) == [FIRST_WINDOW]
    assert control.budgets("draft", [candidate], [[]]) == [FIRST_WINDOW]


def test_vocabularies_the_same_padded_reduced_shared_and_foreign() -> None:
    words = [f"w{i}".encode() for i in range(10)]
    same, line = match_vocabularies(words, words, 10, 10)
    assert line == "same vocabulary"
    row = np.arange(10, dtype=np.float32)
    assert same.to_target(row) is row
    padded, _ = match_vocabularies(words, words, 10, 16)
    assert padded.to_target(np.arange(16, dtype=np.float32)).tolist() == row.tolist()
    reduced, line = match_vocabularies(words, words[:6], 10, 6)
    assert "first 6" in line
    assert reduced.to_target(row[:6]).tolist() == [*range(6), *[-np.inf] * 4]
    assert reduced.to_draft([3, 9]) == [3, 0]
    shuffled, line = match_vocabularies(words, [*words[8:], b"other", *words[:6]], 10, 9)
    assert line.startswith("80% of the target's tokens")
    assert shuffled.to_draft([8, 9, 0, 5, 7]) == [0, 1, 3, 8, 0]
    assert shuffled.to_target(np.arange(9, dtype=np.float32)).tolist() == [3, 4, 5, 6, 7, 8, -np.inf, -np.inf, 0, 1]
    with pytest.raises(InvalidRequest, match="knows 20% of the target's 10 tokens"):
        match_vocabularies(words, [b"a", b"b", *words[:2]], 10, 4)


def test_a_draft_with_another_order_of_tokens_still_drafts() -> None:
    """The target's model behind shuffled ids: everything is right again after translation."""
    order = np.random.default_rng(0).permutation(V)
    inverse = np.argsort(order)

    def shuffled(tokens: Sequence[int]) -> Any:
        return SCRIPT([int(order[token]) for token in tokens])[order]

    pieces = [f"t{i}".encode() for i in range(V)]
    vocabulary, _ = match_vocabularies(pieces, [pieces[i] for i in order], V, V)
    assert vocabulary.to_draft([4]) == [int(inverse[4])]
    runner = ScriptedRunner(shuffled, vocabulary=V, context_length=256, num_blocks=64)
    harness = Harness(target(), proposer=DraftModel(runner, vocabulary), speculation="fixed:4")
    assert harness.answer([1, 2, 3], max_tokens=40).usage.rejected == 0
