"""The bench's arithmetic and its readers, without a model."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from outrider.errors import InvalidRequest
from outrider.evaluate.bench import Sample, measure, summarise
from outrider.evaluate.machine import commit, machine, provenance, versions
from outrider.evaluate.prompts import BenchPrompt, read_prompts
from outrider.evaluate.ties import TOLERANCE, Difference
from outrider.params import SamplingParams

PROMPTS = [BenchPrompt("a", "x", "?"), BenchPrompt("b", "y", "?")]


def sample(prompt: int, mode: str, repeat: int, decode_s: float, tokens: int = 11, last: int = 0) -> Sample:
    ids = (*range(tokens - 1), last)
    return Sample(
        PROMPTS[prompt],
        mode,
        repeat,
        ids,
        decode_s,
        0.5,
        accepted=3,
        rejected=1,
        passes=5,
        step_s=2.0,
        infer_s=1.9,
        draft_s=0.02,
        coordination_s=0.09,
        steps=30,
    )


def test_speed_is_of_all_prompts_together_and_the_median_of_repeats() -> None:
    samples = [
        *(sample(0, "off", r, s) for r, s in enumerate((1.0, 2.0, 4.0))),
        *(sample(1, "off", r, s) for r, s in enumerate((3.0, 2.0, 4.0))),
        *(sample(p, "auto", r, 1.0) for p in (0, 1) for r in range(3)),
    ]
    found = summarise(samples, ["off", "auto"])
    # off: 20 tokens in 4, 4 and 8 seconds
    assert found["off"].tok_s == 5.0
    assert found["off"].spread == pytest.approx((5.0 - 2.5) / 5.0)
    assert found["off"].ratio == 1.0
    assert found["auto"].ratio == pytest.approx(2.0)
    assert found["auto"].acceptance_rate == 0.75
    assert found["auto"].acceptance_length == 2.0
    assert found["auto"].overhead_fraction == pytest.approx(0.05)
    assert found["auto"].draft_fraction == pytest.approx(0.01)
    assert found["auto"].coordination_ms == pytest.approx(3.0)
    assert found["auto"].identical


def test_a_slow_minute_of_the_machine_is_not_in_the_paired_ratio() -> None:
    samples = [
        *(sample(0, "off", r, s) for r, s in enumerate((1.0, 2.0, 8.0))),
        *(sample(0, "auto", r, s) for r, s in enumerate((0.5, 4.0, 4.0))),
    ]
    found = summarise(samples, ["off", "auto"])
    assert found["auto"].ratio == pytest.approx(0.5)
    assert found["auto"].paired_ratio == pytest.approx(2.0)
    assert found["off"].paired_ratio == 1.0


def test_one_text_that_differs_is_not_identical() -> None:
    samples = [sample(p, mode, 0, 1.0) for p in (0, 1) for mode in ("off", "auto")]
    samples[3] = sample(1, "auto", 0, 1.0, last=99)
    found = summarise(samples, ["off", "auto"])
    assert found["off"].identical
    assert not found["auto"].identical


def test_a_mode_that_is_not_steady_differs_from_itself() -> None:
    samples = [sample(0, "off", 0, 1.0), sample(0, "off", 1, 1.0, last=99)]
    assert not summarise(samples, ["off"])["off"].identical


@pytest.mark.parametrize("modes", [[], ["off", "off"], ["off", "fast"]])
def test_modes_are_checked_before_anything_runs(modes: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        measure(None, PROMPTS, modes, SamplingParams())  # type: ignore[arg-type]


def test_prompts_of_both_formats_plain_and_gzipped(tmp_path: Path) -> None:
    text = '{"question_id": 81, "category": "c", "turns": ["one", "two"]}\n\n{"prompt": "three", "id": "q"}\n'
    (tmp_path / "p.jsonl").write_text(text)
    with gzip.open(tmp_path / "p.jsonl.gz", "wt") as file:
        file.write(text)
    expected = [BenchPrompt("81", "c", "one"), BenchPrompt("q", "prompts", "three")]
    assert read_prompts(tmp_path / "p.jsonl") == read_prompts(tmp_path / "p.jsonl.gz") == expected


def test_per_category_takes_the_first_of_each(tmp_path: Path) -> None:
    lines = [f'{{"category": "{c}", "turns": ["{c}{i}"]}}' for i in range(3) for c in "ab"]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    assert [p.text for p in read_prompts(tmp_path / "p.jsonl", 2)] == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"prompt": "x"}\n{"text": "y"}', 'line 2 has neither "turns"'),
        ('{"turns": []}', "line 1 has neither"),
        ("[1]", "line 1 has neither"),
        ("\n", "has no prompts"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        read_prompts(tmp_path / "p.jsonl")


def test_results_say_where_they_come_from() -> None:
    assert {"cpu", "cores", "memory_gib", "system"} == set(machine())
    assert {"python", "outrider", "openvino", "numpy"} <= set(versions())
    assert set(provenance()) == {"machine", "versions", "commit"}
    assert commit() is None or len(commit() or "") >= 7


def test_a_tie_is_a_gap_within_tolerance() -> None:
    assert str(Difference(3, 0.001)) == "tie at token 3, gap 0.001"
    assert not Difference(3, TOLERANCE * 1.01).tie
    assert str(Difference(3, float("inf"))).startswith("error")
