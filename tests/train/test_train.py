"""Training a head on a toy target of two layers: it learns, survives being killed, and its export says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from outrider.cli.draft import app
from outrider.errors import InvalidRequest, ModelError
from outrider.models.head import read_head
from outrider.proposers import DraftHead
from outrider.proposers.vocabulary import VocabularyMap
from outrider.runners.head import OpenVINOHead, write_head
from outrider.testing import ByteCodec, ScriptedRunner
from outrider.train.base import ALIKE, Target, TrainSettings, choose_vocabulary, thin
from outrider.train.collect import Answer, Collector, Shards
from outrider.train.head import Batch, Head, HeadShape, hits, loss_of, summary
from outrider.train.learn_head import moved
from outrider.train.run import Training
from support import Harness

V, D = 48, 16
RNG = np.random.default_rng(8)
EMBED = RNG.normal(0, 1, (V, D)).astype(np.float32)
FIRST, SECOND = (RNG.normal(0, 0.6, (D, 2 * D)).astype(np.float32) for _ in range(2))
PROJECT = RNG.normal(0, 1.4, (V, D)).astype(np.float32)


def layers(tokens: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The toy's two layers: each sees the last token and what the token before it left."""
    before = EMBED[tokens[-2] if len(tokens) > 1 else 0]
    first = np.tanh(FIRST @ np.concatenate((before, EMBED[tokens[-1]])))
    second = np.tanh(SECOND @ np.concatenate((first, EMBED[tokens[-1]])))
    return first, second / np.sqrt(np.square(second).mean() + 1e-6)


def script(tokens: Sequence[int]) -> NDArray[np.float32]:
    return PROJECT @ layers(tokens)[1]


def states(tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.concatenate(layers(tokens))


def toy() -> ScriptedRunner:
    return ScriptedRunner(script, vocabulary=V, context_length=512, num_blocks=1024, block_size=8, states=states)


def target() -> Target:
    return Target(
        name="toy",
        runner=toy(),
        codec=ByteCodec(),
        eos_ids=(0,),
        opening=[1],
        ask=lambda text: [2, *text.encode()[:8]],
        points=(0,),
        embeddings=EMBED,
        projection=PROJECT,
    )


SETTINGS = TrainSettings(
    minutes=10, positions=3000, tokens=40, inner=32, steps=3, runs=8, length=16, rate=4e-3, batch=8, evaluations=4,
    checkpoint_seconds=5, seed=3,
)  # fmt: skip


class Ticks:
    """A clock that goes on with each look, so that the number of steps does not depend on the machine."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self._step = step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


class Killed(BaseException):
    """A kill at a moment of the test's choosing."""


def killer(stage: str, calls: int) -> Callable[[str, int, int], None]:
    left = calls

    def progress(now: str, done: int, total: int) -> None:
        nonlocal left
        if now == stage:
            left -= 1
            if not left:
                raise Killed

    return progress


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that was killed while it was collected, killed again while it trained, and then finished."""
    directory = tmp_path_factory.mktemp("train") / "toy-draft"
    with pytest.raises(Killed):
        Training(target(), directory, SETTINGS, progress=killer("collect", 400), clock=Ticks(0.1)).run()
    assert Shards(directory / "work" / "shards").positions > 0
    with pytest.raises(Killed):
        Training(target(), directory, SETTINGS, progress=killer("train", 100), resume=True, clock=Ticks(1.0)).run()
    half = json.loads((directory / "work" / "state.json").read_text())
    assert 0 < half["step"] <= 100
    Training(target(), directory, SETTINGS, resume=True, clock=Ticks(1.0)).run()
    whole = json.loads((directory / "work" / "state.json").read_text())
    assert whole["step"] > half["step"]
    assert whole["collected"] == half["collected"], "what was collected is collected again"
    return directory


def test_it_beats_the_untrained_head(trained: Path) -> None:
    measured = json.loads((trained / "work" / "state.json").read_text())["measured"]
    card = read_head(trained).card
    assert card.tokens_per_pass > measured[0] + 0.4
    assert card.tokens_per_pass == pytest.approx(1 + np.cumprod(card.acceptance).sum(), abs=2e-3)
    assert card.positions > 400
    assert (card.target, card.steps, card.points, card.width) == ("toy", 3, (0,), D)


def test_the_head_drafts_for_the_engine_and_the_text_is_that_of_off(trained: Path) -> None:
    files = read_head(trained)
    vocabulary = VocabularyMap(files.vocabulary.tolist(), V, len(files.vocabulary), other=len(files.vocabulary))
    head = DraftHead(OpenVINOHead(trained), vocabulary)
    harness = Harness(toy(), proposer=head, speculation="fixed:3")
    fast = [harness.answer([2, 5 + i, 9], max_tokens=40, seed=i) for i in range(4)]
    plain = [harness.answer([2, 5 + i, 9], max_tokens=40, seed=i, speculation="off") for i in range(4)]
    assert [answer.token_ids for answer in fast] == [answer.token_ids for answer in plain]
    assert sum(answer.usage.passes for answer in fast) < 0.8 * sum(answer.usage.passes for answer in plain)


def test_work_of_others_is_not_touched(trained: Path) -> None:
    with pytest.raises(InvalidRequest, match="--resume"):
        Training(target(), trained, SETTINGS)
    with pytest.raises(InvalidRequest, match="other settings"):
        Training(target(), trained, SETTINGS.model_copy(update={"inner": 33}), resume=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [("layer=2", "unknown parameter 'layer'. Did you mean layers"), ("layers=0", "layers='0': "), ("bits=9", "bits")],
)
def test_a_wrong_setting_is_named_before_anything_begins(setting: str, message: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["train", "--target", "none", "--out", str(tmp_path), "--set", setting])
    assert isinstance(found.exception, InvalidRequest)
    assert message in str(found.exception)
    assert not list(tmp_path.iterdir())


def test_too_little_text_is_said(tmp_path: Path) -> None:
    few = SETTINGS.model_copy(update={"positions": 1})
    with pytest.raises(ModelError, match="too little"):
        Training(target(), tmp_path / "d", few.model_copy(update={"minutes": 0.001}), clock=Ticks(10.0)).run()


@pytest.mark.parametrize(("bits", "tolerance"), [(16, 0.02), (8, 0.15)])
def test_the_export_says_what_torch_says(tmp_path: Path, bits: int, tolerance: float) -> None:
    torch.manual_seed(0)
    head = Head(HeadShape(2, D, 32, V), EMBED, PROJECT)
    write_head(head.weights(), 2, tmp_path, bits=bits)
    exported = OpenVINOHead(tmp_path)
    given = RNG.normal(0, 3, (5, 2 * D)).astype(np.float32)
    state, torch_state = exported.start(given), head.begin(torch.from_numpy(given))
    for token in (3, 7, V):  # the last stands for what it cannot say
        tokens = np.full(5, token, np.int64)
        logits, state = exported.step(tokens, state)
        torch_state = head.step(torch_state, torch.from_numpy(tokens))
        wanted = head.logits(torch_state).detach().numpy()
        assert np.abs(logits - wanted).max() < tolerance * np.abs(wanted).max()


def test_the_loss_of_the_target_itself_is_nothing() -> None:
    """A head that gives the target's own logits has no divergence: rows and distances are those that are meant."""
    tokens = torch.from_numpy(RNG.integers(0, V, (2, 9)))
    kept = torch.from_numpy(RNG.normal(0, 1, (2, 9, 2 * D)).astype(np.float32))

    class Knowing(Head):
        def begin(self, states: torch.Tensor) -> torch.Tensor:
            return torch.arange(states.shape[1]).repeat(2, 1)[..., None]

        def step(self, state: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return state + 1

        def logits(self, state: torch.Tensor) -> torch.Tensor:
            final = torch.stack([kept[run, state[run, :, 0], -D:] for run in range(2)])
            return final @ torch.from_numpy(PROJECT).T

    head = Knowing(HeadShape(2, D, 8, V), EMBED, PROJECT)
    batch = Batch(kept, tokens)
    assert float(loss_of(head, batch, 3, torch.from_numpy(PROJECT), 0.8)) == pytest.approx(0.0, abs=1e-5)
    right = hits(head, batch, 3)
    said = (kept[..., -D:] @ torch.from_numpy(PROJECT).T).argmax(-1) == tokens
    assert right.shape == (12, 3)
    assert right[:6, 0].tolist() == said[0, 1:7].tolist()
    assert right[:6, 2].tolist() == said[0, 3:9].tolist()


def test_acceptance_is_of_those_that_got_so_far() -> None:
    right = np.array([[True, True], [True, False], [False, True], [False, True], [True, False]])
    # two tokens and the target's own from place 0, then the passes at 3 and 4; 1 and 2 are passed over
    assert summary([right], 2) == ((2 / 3, 1 / 2), 6 / 3)
    assert summary([], 2) == ((0.0, 0.0), 1.0)


def test_the_vocabulary_is_what_was_said_most() -> None:
    def answer(tokens: list[int]) -> Answer:
        return Answer(np.array(tokens, np.int32), np.zeros((len(tokens), 2), np.float16), greedy=True, held_out=False)

    vocabulary, known = choose_vocabulary([answer([5, 5, 3]), answer([9, 9, 3, 1])], 3, 12)
    assert vocabulary.tolist() == [3, 5, 9]
    assert known.tolist() == [3, 3, 3, 0, 3, 1, 3, 3, 3, 2, 3, 3]


def test_what_begins_alike_is_thinned() -> None:
    def answer(tokens: list[int]) -> Answer:
        return Answer(np.array(tokens, np.int32), np.zeros((len(tokens), 2), np.float16), greedy=True, held_out=False)

    same = [answer([1, 2, 3, 4, 5, 6, i]) for i in range(ALIKE + 5)]
    other = [answer([9, 2, 3, 4, 5, 6, i]) for i in range(3)]
    kept = thin([*same, *other])
    assert len(kept) == ALIKE + 3
    assert kept[:ALIKE] == same[:ALIKE]


def test_weights_move_to_another_vocabulary_row_by_row() -> None:
    before, after = np.array([2, 5, 9]), np.array([5, 7, 9, 11])
    torch.manual_seed(1)
    old = Head(HeadShape(2, D, 8, 3), EMBED[before], PROJECT[before]).state_dict()
    fresh = Head(HeadShape(2, D, 8, 4), EMBED[after], PROJECT[after]).state_dict()
    found = moved(dict(old), before, dict(fresh), after)
    assert torch.equal(found["out.weight"][[0, 2]], old["out.weight"][[1, 2]])
    assert torch.equal(found["out.weight"][[1, 3]], fresh["out.weight"][[1, 3]])
    assert torch.equal(found["embed.weight"][-1], old["embed.weight"][-1])
    assert torch.equal(found["mix.weight"], old["mix.weight"])
    assert found["embed.weight"].shape == (5, D)


def test_questions_begin_as_people_begin_them(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(text: str) -> list[int]:
        asked.append(text)
        return [2, *text.encode()[:8]]

    runner = ScriptedRunner(  # says the end after five tokens, whatever came
        lambda tokens: np.eye(V, dtype=np.float32)[0 if len(tokens) >= 6 else 5] * 20,
        vocabulary=V, context_length=512, num_blocks=512, block_size=8, states=states,
    )  # fmt: skip
    shards = Shards(tmp_path)
    collector = Collector(
        runner,
        ByteCodec(),
        eos_ids=(0,),
        opening=[1],
        openers=[(33,), (35, 36)],
        ask=ask,
        shards=shards,
        parts=2,
        batch=4,
    )
    collector.run(10**6, lambda _: len(asked) < 60)
    opened = sum(text[0] in "!#" for text in asked)
    assert 0.6 < opened / len(asked) < 0.95
    assert any(text.startswith("#$") for text in asked)


def test_a_longer_budget_goes_on_where_a_finished_run_ended(trained: Path) -> None:
    """More minutes collect more and train on, though other tokens are now the most frequent ones."""
    before = json.loads((trained / "work" / "state.json").read_text())
    longer = SETTINGS.model_copy(update={"minutes": 13.0, "positions": 6000})
    Training(target(), trained, longer, resume=True, clock=Ticks(1.0)).run()
    after = json.loads((trained / "work" / "state.json").read_text())
    assert after["step"] > before["step"]
    assert after["collected"] > before["collected"]
    assert read_head(trained).card.minutes > 10


def test_shards_come_back_as_they_were(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    answers = [
        Answer(
            np.arange(n, dtype=np.int32),
            RNG.normal(size=(n, 4)).astype(np.float16),
            n % 2 == 0,
            n == 10,
            np.arange(100, 100 + 20 - n, dtype=np.int32),
        )
        for n in (9, 10, 11)
    ]
    for answer in answers:
        shards.add(answer)
    shards.flush()
    again = Shards(tmp_path)
    assert again.positions == 30
    for one, other in zip(again.read(), answers, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.prompt.tolist() == other.prompt.tolist()
        assert (one.states == other.states).all()
        assert (one.greedy, one.held_out) == (other.greedy, other.held_out)


def test_a_broken_head_is_named(tmp_path: Path) -> None:
    fields: dict[str, Any] = {}
    (tmp_path / "head.json").write_text(json.dumps(fields))
    with pytest.raises(ModelError, match="train it again"):
        read_head(tmp_path)
