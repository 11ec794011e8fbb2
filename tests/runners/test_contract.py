"""The runner's contract, against the scripted runner and the real one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from outrider.errors import InvalidRequest, ModelError
from outrider.models import ModelFiles
from outrider.runners import Logits, Runner, Segment
from outrider.runners.openvino import OpenVINORunner
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits

TOLERANCE = 0.05
"""Most that logits of passes of different widths may differ."""


@pytest.fixture(scope="module")
def openvino_runner(smollm2: ModelFiles) -> Iterator[Runner]:
    runner = OpenVINORunner(smollm2.directory, context_length=8192, kv_bytes=64 << 20)
    yield runner
    runner.close()


@pytest.fixture(params=["scripted", pytest.param("openvino", marks=pytest.mark.model)])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "openvino":
        return request.getfixturevalue("openvino_runner")
    return ScriptedRunner(hashed_logits(256, order=None), block_size=32, num_blocks=64, context_length=2048)


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def run(runner: Runner, *segments: Segment) -> Logits:
    return runner.forward(segments).copy()


def close(a: Logits, b: Logits) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max() < TOLERANCE)


def test_logits_come_for_the_rows_asked_for(runner: Runner) -> None:
    tokens = text(10)
    whole = run(runner, Segment(tokens, 0, [3], 10))
    assert whole.shape == (10, runner.info.vocabulary)
    assert close(run(runner, Segment(tokens, 0, [5], 4)), whole[-4:])
    assert run(runner, Segment(tokens, 0, [5], 0)).shape == (0, runner.info.vocabulary)


def test_chunks_give_what_the_whole_gives(runner: Runner) -> None:
    tokens = text(70)
    whole = run(runner, Segment(tokens, 0, [0, 1, 2], 1))
    run(runner, Segment(tokens[:33], 0, [7, 4, 9], 0))
    assert close(run(runner, Segment(tokens[33:], 33, [7, 4, 9], 1)), whole)


def test_a_ragged_batch_gives_what_each_gives_alone(runner: Runner) -> None:
    prompts = [text(40, 1), text(3, 2), text(65, 3)]
    tables = [[10, 11], [12], [13, 14, 15]]
    alone = [run(runner, Segment(t, 0, b, 2)) for t, b in zip(prompts, tables, strict=True)]
    tables = [[20, 21], [22], [23, 24, 25]]
    # a prefill chunk, a decode and a verification run in one pass
    run(runner, Segment(prompts[1][:2], 0, tables[1], 0), Segment(prompts[2][:60], 0, tables[2], 0))
    mixed = run(
        runner,
        Segment(prompts[0], 0, tables[0], 2),
        Segment(prompts[1][2:], 2, tables[1], 1),
        Segment(prompts[2][60:], 60, tables[2], 2),
    )
    assert close(mixed[:2], alone[0])
    assert close(mixed[2:3], alone[1][1:])
    assert close(mixed[3:], alone[2])


def test_a_rejected_draft_is_forgotten_by_starting_earlier(runner: Runner) -> None:
    tokens = text(30, 4)
    clean = run(runner, Segment(tokens, 0, [0], 1))
    run(runner, Segment(tokens[:20], 0, [1], 1))
    run(runner, Segment([200, 201, 202, 203, 204], 20, [1], 5))
    assert close(run(runner, Segment(tokens[20:], 20, [1], 1)), clean)


def test_a_verification_run_gives_what_single_decodes_give(runner: Runner) -> None:
    tokens = text(40, 5)
    run(runner, Segment(tokens[:34], 0, [0, 1], 0))
    together = run(runner, Segment(tokens[34:], 34, [0, 1], 6))
    run(runner, Segment(tokens[:34], 0, [2, 3], 0))
    for row, token in enumerate(tokens[34:]):
        assert close(run(runner, Segment([token], 34 + row, [2, 3], 1))[0], together[row])


def test_a_copied_block_is_a_copy(runner: Runner) -> None:
    tokens = text(20, 6)
    run(runner, Segment(tokens, 0, [0], 0))
    expected = run(runner, Segment([9], 20, [0], 1))
    runner.copy_block(0, 1)
    run(runner, Segment([50] * 20, 0, [0], 0))
    assert close(run(runner, Segment([9], 20, [1], 1)), expected)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "at least one segment"),
        ([Segment([], 0, [0], 0)], "no tokens"),
        ([Segment([1], 0, [0], 2)], "asks for 2 rows of 1"),
        ([Segment([1], -1, [0], 1)], "positions -1"),
        ([Segment([1], 32, [0], 1)], "past its 1 blocks"),
        ([Segment([1] * 9000, 0, list(range(400)), 1)], "the context is"),
    ],
)
def test_a_malformed_batch_is_refused(runner: Runner, segments: list[Segment], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runner.forward(segments)


def test_time_in_the_model_is_counted(runner: Runner) -> None:
    before = runner.infer_seconds
    run(runner, Segment([1, 2], 0, [0], 1))
    assert runner.infer_seconds >= before  # a counter never goes back


@pytest.mark.model
def test_the_real_runner_counts_every_pass(openvino_runner: Runner) -> None:
    before = openvino_runner.infer_seconds
    run(openvino_runner, Segment([1, 2], 0, [0], 1))
    assert openvino_runner.infer_seconds != before


@pytest.mark.model
@pytest.mark.parametrize("precision", ["f32", "u8"])
def test_other_kv_precisions(smollm2: ModelFiles, openvino_runner: Runner, precision: str) -> None:
    tokens = text(40)
    expected = run(openvino_runner, Segment(tokens, 0, [0, 1], 1))
    other = OpenVINORunner(smollm2.directory, context_length=64, kv_bytes=16 << 20, kv_precision=precision)  # type: ignore[arg-type]
    found = run(other, Segment(tokens, 0, [0, 1], 1))
    assert np.abs(found - expected).max() < (0.05 if precision == "f32" else 2.0)
    factor = {"f32": 2.0, "u8": 0.6}[precision]
    assert 0.8 * factor < other.info.block_bytes / openvino_runner.info.block_bytes < 1.2 * factor
    other.close()


@pytest.mark.model
def test_a_budget_below_one_block_is_refused(smollm2: ModelFiles) -> None:
    with pytest.raises(InvalidRequest, match="budget of 1000 bytes holds no block"):
        OpenVINORunner(smollm2.directory, context_length=64, kv_bytes=1000)


def test_a_file_that_is_no_model_is_refused(tmp_path: object) -> None:
    from pathlib import Path

    directory = Path(str(tmp_path))
    (directory / "openvino_model.xml").write_text("<nonsense/>")
    with pytest.raises(ModelError, match=r"openvino_model\.xml is not a decoder"):
        OpenVINORunner(directory, context_length=64)
