"""What looking at an answer foretells is what serving it does, to the token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from outrider import cli
from outrider.control import CostModel
from outrider.errors import InvalidRequest
from outrider.evaluate.foresee import HeadDraft, ModelDraft, entropy, foresee, look
from outrider.plan import assess
from outrider.plan.assess import Answer
from outrider.proposers import DraftHead, DraftModel, VocabularyMap
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness

RUN = CliRunner()
V = 32
SCRIPT = hashed_logits(V, order=2, seed=4)
SAME = VocabularyMap(None, V, V)
SAID = [token for token in range(V) if token % 7]
SOME = VocabularyMap(SAID, V, len(SAID), other=len(SAID))


def near(tokens: Sequence[int]) -> Any:
    return SCRIPT(tokens) + hashed_logits(V, order=2, sharpness=1.5, seed=9)(tokens)


def state_of(tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.array([tokens[-1], 0], np.float32)


class NearHead:
    """Says what `near` says, over the tokens that it has."""

    infer_seconds = 0.0

    def start(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        return states

    def step(
        self, tokens: NDArray[np.int64], state: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        after = np.array([[SAID[t] if t < len(SAID) else 0, 0] for t in tokens], np.float32)
        rows = [near([int(a[0]), int(b[0])]) for a, b in zip(state, after, strict=True)]
        return np.stack(rows)[:, SAID].astype(np.float32), after


def target(states: Any = None) -> ScriptedRunner:
    return ScriptedRunner(SCRIPT, vocabulary=V, context_length=256, num_blocks=256, states=states)


def drafter(script: Any = near) -> ScriptedRunner:
    return ScriptedRunner(script, vocabulary=V, context_length=256, num_blocks=256)


PROMPTS = [[1, 2, 3], [9, 4], [7, 7, 7, 8], [20, 3]]


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    harness = Harness(target(), speculation="off")
    return [Answer("x", prompt, harness.answer(prompt, max_tokens=60).token_ids) for prompt in PROMPTS]


@pytest.mark.parametrize("window", [1, 3, 6])
@pytest.mark.parametrize("kind", ["model", "head"])
def test_foretold_acceptance_is_that_of_serving(answers: list[Answer], kind: str, window: int) -> None:
    if kind == "model":
        found = foresee(answers, target(), [ModelDraft("d", drafter(), SAME, 0.0)])
        served = DraftModel(drafter(), SAME)
    else:
        found = foresee(answers, target(state_of), [HeadDraft("d", NearHead(), SOME, 0.0)])
        served = DraftHead(NearHead(), SOME)  # type: ignore[assignment]
    harness = Harness(target(state_of), proposer=served, speculation=f"fixed:{window}")
    for answer, walk in zip(answers, found.walks["d"], strict=True):
        real = harness.answer(answer.prompt, max_tokens=60)
        assert list(real.token_ids) == list(answer.tokens)
        passes, drafted, accepted = walk.steps(window)
        assert (passes, accepted) == (real.usage.passes, real.usage.accepted)
        assert drafted == real.usage.accepted + real.usage.rejected


def test_the_target_finds_its_own_answers_likeliest(answers: list[Answer]) -> None:
    found = foresee(answers, target(), [ModelDraft("self", drafter(SCRIPT), SAME, 0.0)])
    assert set(found.top_share) == {1.0}
    for walk in found.walks["self"]:
        assert all(right == drafted for right, drafted in zip(walk.right, walk.drafted, strict=True))


def test_entropy_is_that_of_the_distribution() -> None:
    flat, sure = np.zeros((1, 8), np.float32), np.full((1, 8), -1e9, np.float32)
    sure[0, 3] = 0
    assert entropy(np.concatenate((flat, sure))) == pytest.approx([np.log(8), 0.0])


def test_long_texts_go_through_in_pieces() -> None:
    prompt, tokens = list(np.arange(140) % V), list(np.arange(90) % V)
    runner = target(state_of)
    seen = look(runner, prompt, tokens)
    assert len(seen.top) == len(seen.entropy) == len(tokens)
    assert seen.states is not None
    assert seen.states[:, 0].tolist() == [float(token) for token in [prompt[-1], *tokens[:-1]]]
    assert max(runner.widths) <= 128
    with pytest.raises(InvalidRequest, match="longer than the context"):
        look(runner, prompt, tokens * 2)


def test_a_draft_that_costs_is_worth_less(answers: list[Answer]) -> None:
    cost = CostModel({1: 1.0, 13: 1.6})
    free, dear = (
        assess(answers, cost, foreseen=foresee(answers, target(), [ModelDraft("d", drafter(SCRIPT), SAME, seconds)]))
        for seconds in (0.0, 0.5)
    )
    results = [next(r for r in found.overall.proposers if r.proposer == "d") for found in (free, dear)]
    assert results[0].windows[3].tokens_per_pass == results[1].windows[3].tokens_per_pass
    assert (results[0].windows[3].speedup or 0) > 2 * (results[1].windows[3].speedup or 0)
    assert free.overall.top_share == 1.0


def test_tokens_that_one_side_lacks() -> None:
    assert [SOME.token(own) for own in range(3)] == SAID[:3]
    assert SAME.token(5) == 5
    part = VocabularyMap([4, -1, 9], V, 3)
    assert [part.token(own) for own in range(3)] == [4, -1, 9]


@pytest.mark.model
def test_the_command_answers_prompts_and_looks(tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.json"
    prompts.write_text('{"prompt": "Repeat: one two three four, one two three four"}\n')
    args = ["assess", "--traffic", str(prompts), "--generate", "--max-tokens", "16", "--look", "--json", str(out)]
    done = RUN.invoke(cli.app, args)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["overall"]
    assert found["top_share"] > 0.9
    assert found["entropy_nats"] > 0
