"""`draft train --kind model`: the target with few layers and tokens, trained in torch and served without it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.api import Engine, chat
from outrider.errors import InvalidRequest, ModelError
from outrider.evaluate.ties import find_difference
from outrider.models import ModelFiles, Resolver
from outrider.models.base import VOCABULARY
from outrider.params import SamplingParams
from outrider.runners import Segment
from outrider.runners.openvino import OpenVINORunner
from outrider.runners.surgery import layers_of, logits_of, prune
from outrider.train.base import TrainSettings
from outrider.train.graph import Graph
from outrider.train.learn_model import spread
from outrider.train.run import Training
from outrider.train.target import load_target

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

SETTINGS = TrainSettings(
    kind="model", minutes=14, collect_share=0.55, positions=900, tokens=600,
    layers=2, context=48, steps=3, runs=4, batch=12,
    evaluations=2, rate=3e-4, checkpoint_seconds=1e9,
)  # fmt: skip


class Ticks:
    """A clock that goes on with each look, so that the number of steps does not depend on the machine."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 4.0
        return self.now


@pytest.fixture(scope="module")
def made(smollm2: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pruned") / "tiny-draft"
    target = load_target(smollm2, "model")
    try:
        Training(target, directory, SETTINGS, clock=Ticks()).run()
    finally:
        target.runner.close()
    return directory


def test_a_pruned_graph_says_in_torch_what_it_says_in_openvino(smollm2: ModelFiles) -> None:
    ids = np.arange(100, 900, 2)
    model = prune(smollm2.directory, (0, 7, 8, 29), ids)
    tokens = np.random.default_rng(3).integers(0, len(ids) + 1, 40)
    theirs = logits_of(model, tokens.tolist())
    with torch.no_grad():
        ours = Graph(model)(torch.from_numpy(np.stack((tokens, tokens[::-1]))))
    assert theirs.shape == (40, len(ids) + 1)
    assert np.abs(ours[0].numpy() - theirs).max() < 0.01
    assert np.abs(ours[1].numpy() - logits_of(model, tokens[::-1].tolist())).max() < 0.01
    assert not theirs[:, -1].any(), "the score of every other token is nothing"


@pytest.mark.slow
def test_with_all_layers_it_is_the_target(smollm2: ModelFiles) -> None:
    """Tokens that stay have the scores that they had: nothing but rows was cut."""
    ids = np.arange(1000, 3000)
    model = prune(smollm2.directory, range(layers_of(smollm2.directory)), ids)
    own = np.random.default_rng(1).integers(0, len(ids), 20)
    runner = OpenVINORunner(smollm2.directory, context_length=64, kv_bytes=4 << 20)
    try:
        whole = runner.forward([Segment(ids[own].tolist(), 0, [0], 20)])[:, ids]
        assert np.abs(logits_of(model, own.tolist())[:, :-1] - whole).max() < 0.05
    finally:
        runner.close()


def test_training_brings_it_nearer_to_the_target(made: Path) -> None:
    card = json.loads((made / "draft.json").read_text())
    measured = json.loads((made / "work" / "state.json").read_text())["measured"]
    assert card["tokens_per_pass"] > measured[0] + 0.05
    assert card["layers"] == [0, 29]
    assert card["target"] == "smollm2-135m"
    assert 0 < card["parameters"] < 10e6


def test_it_drafts_and_the_text_is_that_of_off(made: Path) -> None:
    params = SamplingParams(max_tokens=48)
    with Engine("smollm2-135m", draft=str(made), proposers=(), kv_memory=128 << 20) as engine:
        assert engine.draft is not None
        assert "of the target's 49,152 tokens" in str(engine.draft)
        accepted = 0
        for text in ("Write a short story about a lighthouse.", "Explain how rain forms."):
            plain, fast = (
                engine.generate(chat(text), params, speculation=mode).completions[0] for mode in ("off", "fixed:3")
            )
            difference = find_difference(engine, engine.encode(chat(text)), plain.token_ids, fast.token_ids, params)
            assert difference is None or difference.tie, str(difference)
            accepted += fast.usage.accepted
        assert accepted > 0


def test_it_is_no_model_to_serve_alone(made: Path) -> None:
    with pytest.raises(ModelError, match="--draft"):
        Resolver().resolve(str(made))


def test_it_fits_its_target_only(made: Path, tmp_path: Path) -> None:
    for file in made.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / VOCABULARY).unlink()
    np.save(tmp_path / VOCABULARY, np.arange(49_000, 49_800))
    with pytest.raises(InvalidRequest, match="of more than"):
        Engine("smollm2-135m", draft=str(tmp_path), kv_memory=64 << 20)


def test_layers_are_spread_from_first_to_last() -> None:
    assert spread(30, 3) == (0, 14, 29)
    assert spread(30, 1) == (0,)
    assert spread(4, 4) == (0, 1, 2, 3)
    with pytest.raises(ModelError, match="layers=5: the target has 4"):
        spread(4, 5)
