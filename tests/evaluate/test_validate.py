"""Validation catches each of ten bugs that engines have had, and raises no alarm over the right engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from outrider.engine import Completion, EngineConfig, EngineCore, Request, core, text
from outrider.evaluate.validate import Validation, chi2_tail, validate
from outrider.params import SamplingParams, Speculation
from outrider.proposers import Draft, DraftModel, VocabularyMap
from outrider.proposers.choosing import Drafting
from outrider.runners import Logits
from outrider.testing import ByteCodec, ScriptedRunner
from outrider.testing.runner import hashed_logits
from outrider.verify import Sampler, Verdict, rejection, verify
from outrider.verify.base import take
from outrider.verify.distribution import target_distribution

V = 20
SCRIPT = hashed_logits(V, order=2, sharpness=1.5, seed=21)
NOISE = hashed_logits(V, order=1, sharpness=1.2, seed=22)
PROMPTS = [[1, 2, 3], [7, 8, 9, 10], [4, 4, 4, 5]]


def near(tokens: Sequence[int]) -> Any:
    return SCRIPT(tokens) + NOISE(tokens)


class SmallEngine:
    """The engine's Python interface, as far as validation uses it, over the scripted model."""

    def __init__(self, verification: str = "coupled", proposer: Any = None) -> None:
        def runner(script: Any) -> ScriptedRunner:
            return ScriptedRunner(script, vocabulary=V, context_length=128, num_blocks=256)

        draft = proposer or DraftModel(runner(near), VocabularyMap(None, V, V))
        config = EngineConfig(verification=verification, prefix_caching=False)
        self.core = EngineCore(runner(SCRIPT), ByteCodec(), eos_ids=(0,), proposers=[draft], config=config)
        self.info = self.core.runner.info
        self._count = 0

    def generate(self, prompt: Sequence[int], params: SamplingParams, *, speculation: str, tenant: Any = None) -> Any:
        self._count += 1
        request = Request(f"r{self._count}", tuple(prompt), params, speculation=Speculation.parse(speculation))
        self.core.check(request)
        completions = [Completion(index) for index in range(params.n)]
        self.core.add(request, lambda chunk: completions[chunk.index].add(chunk))
        while self.core.has_work:
            self.core.step()
        return SimpleNamespace(completions=completions)


def run(engine: SmallEngine, reproducible: bool = True, draws: int = 400) -> Validation:
    return validate(engine, PROMPTS, "fixed:4", max_tokens=40, draws=draws, reproducible=reproducible)  # type: ignore[arg-type]


def test_the_right_engine_passes_twenty_times() -> None:
    for _ in range(6):
        assert run(SmallEngine(), draws=120).passed
    for way in ("rejection", "block"):
        for _ in range(7):
            found = run(SmallEngine(way), reproducible=False, draws=120)
            assert found.passed, [check for check in found.checks if not check.passed]


# --- ten bugs --------------------------------------------------------------------------------------------------

Verify = Callable[..., Verdict]
Patch = pytest.MonkeyPatch


def too_many(patch: Patch) -> None:
    """The verifier accepts one token too many."""

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        verdict = verify(logits, draft, sampler, way)
        if verdict.accepted < len(draft.tokens):
            verdict.tokens.insert(verdict.accepted, draft.tokens[verdict.accepted])
            verdict.accepted += 1
            verdict.logprobs += verdict.logprobs[-1:]
            sampler.push(verdict.tokens[-1])
        return verdict

    patch.setattr(core, "verify", wrong)


def by_row(choose: Callable[[Logits, int, Sampler], tuple[Any, int]]) -> Verify:
    """Coupled verification whose choice at each row is replaced."""

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        verdict = Verdict()
        for row in range(len(draft.tokens) + 1):
            scores, token = choose(logits, row, sampler)
            take(verdict, sampler, scores, token)
            if row == len(draft.tokens) or token != draft.tokens[row]:
                break
            verdict.accepted += 1
        return verdict

    return wrong


def penalty_ignored(patch: Patch) -> None:
    """Penalties end with the first token of a window."""

    def choose(logits: Logits, row: int, sampler: Sampler) -> tuple[Any, int]:
        scores = sampler.shape(logits[row]) if row == 0 else logits[row]
        return scores, sampler.choose(scores)

    patch.setattr(core, "verify", by_row(choose))


def stale_kv(patch: Patch) -> None:
    """After the last draft token was rejected its keys and values stay where the real token belongs."""
    stale: list[int] = []
    forward = ScriptedRunner.forward

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        verdict = verify(logits, draft, sampler, way)
        if 0 < len(draft.tokens) == verdict.accepted + 1:
            stale.append(draft.tokens[-1])
        return verdict

    def wrong_forward(self: ScriptedRunner, segments: Any) -> Logits:
        if stale and self._script is SCRIPT:
            (first, *others) = segments
            segments = [replace(first, tokens=[stale.pop(), *first.tokens[1:]]), *others]
        return forward(self, segments)

    patch.setattr(core, "verify", wrong)
    patch.setattr(ScriptedRunner, "forward", wrong_forward)


def seed_reused(patch: Patch) -> None:
    """Every position draws with the same noise."""
    bits = Sampler.race_bits

    def wrong(self: Sampler) -> Any:
        position, self.position = self.position, 0
        try:
            return bits(self)
        finally:
            self.position = position

    patch.setattr(Sampler, "race_bits", wrong)


def residual_wrong(patch: Patch) -> None:
    """After a rejection the target itself is drawn from, not what is left of it."""
    patch.setattr(rejection, "residual", lambda p, draft, row, scale=1.0: p.weights.astype(np.float64))


def draft_untempered(patch: Patch) -> None:
    """The draft's distribution is reported without the temperature that it was drawn with."""
    sampled = Drafting._sampled

    def wrong(each: Drafting, sampler: Sampler, scores: Any) -> tuple[int, float]:
        token, sure = sampled(each, sampler, scores)
        if each.rows:
            weights = np.exp(scores - scores.max())
            each.rows[-1] = (weights / weights.sum()).astype(np.float32)
        return token, sure

    patch.setattr(Drafting, "_sampled", wrong)


def bonus_from_wrong_row(patch: Patch) -> None:
    """The token after a wholly accepted draft is taken from the row before."""

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        shifted = logits.copy()
        if draft.tokens:
            shifted[len(draft.tokens)] = logits[len(draft.tokens) - 1]
        return verify(shifted, draft, sampler, way)

    patch.setattr(core, "verify", wrong)


def stop_overrun(patch: Patch) -> None:
    """A stop string inside a window is not seen before its end."""
    feed = text.TextStream.feed
    inside = [False]

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        verdict = verify(logits, draft, sampler, way)
        inside[0] = len(verdict.tokens) > 1
        return verdict

    def wrong_feed(self: Any, token: int, may_stop: bool = True) -> str:
        return feed(self, token, may_stop=may_stop and not inside[0])

    patch.setattr(core, "verify", wrong)
    patch.setattr(text.TextStream, "feed", wrong_feed)


def logprob_shifted(patch: Patch) -> None:
    """Log-probabilities of a window stand one token late."""

    def wrong(logits: Logits, draft: Draft, sampler: Sampler, way: Any = "coupled") -> Verdict:
        verdict = verify(logits, draft, sampler, way)
        verdict.logprobs = verdict.logprobs[-1:] + verdict.logprobs[:-1]
        return verdict

    patch.setattr(core, "verify", wrong)


def top_p_before_penalty(patch: Patch) -> None:
    """Inside a window top-p cuts first, and penalties act on what is left."""

    def choose(logits: Logits, row: int, sampler: Sampler) -> tuple[Any, int]:
        scores = sampler.shape(logits[row])
        if row and not sampler.params.greedy and sampler.params.top_p < 1.0:
            kept = target_distribution(logits[row], sampler.params).ids
            assert kept is not None
            cut = np.full_like(scores, -np.inf)
            cut[kept] = scores[kept]
            scores = cut
        return scores, sampler.choose(scores)

    patch.setattr(core, "verify", by_row(choose))


@pytest.mark.parametrize(
    ("bug", "way", "seen_by"),
    [
        (too_many, "coupled", "greedy"),
        (penalty_ignored, "coupled", "greedy, repetition penalty"),
        (stale_kv, "coupled", "greedy, repetition penalty"),
        (seed_reused, "coupled", "distribution, against the model's probabilities"),
        (residual_wrong, "rejection", "distribution, against draws without speculation"),
        (draft_untempered, "rejection", "distribution, against draws without speculation"),
        (bonus_from_wrong_row, "coupled", "greedy"),
        (stop_overrun, "coupled", "stop strings"),
        (logprob_shifted, "coupled", "log-probabilities"),
        (top_p_before_penalty, "coupled", "seeded, penalties and top-p"),
    ],
)
def test_the_bug_is_caught(
    bug: Callable[[Patch], None], way: str, seen_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    found = run(SmallEngine(way), reproducible=way == "coupled", draws=400 if way == "coupled" else 1_500)
    failed = {check.name for check in found.checks if not check.passed}
    assert seen_by in failed
    assert not found.passed
    suite = ElementTree.fromstring(found.junit())
    assert suite.get("failures") == str(len(failed))
    assert suite.find("testcase/failure") is not None


@pytest.mark.parametrize("degrees", [1, 3, 10, 40])
@pytest.mark.parametrize("tail", [0.5, 0.05, 1e-3, 1e-5])
def test_the_tail_of_chi_square_is_near_the_exact_one(degrees: int, tail: float) -> None:
    exact = float(stats.chi2.isf(tail, degrees))
    assert np.log(chi2_tail(exact, degrees)) == pytest.approx(np.log(tail), rel=0.1, abs=0.05)
