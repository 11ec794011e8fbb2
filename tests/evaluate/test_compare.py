"""Texts judged, and speculation compared with quantization."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider import cli
from outrider.cli.compare import parse_quantized, read_references
from outrider.errors import InvalidRequest
from outrider.evaluate.compare import _same_share, contenders
from outrider.evaluate.text import exact_match, interval, passes, rouge
from outrider.plan.claims import HOLDS, NOT, ONLY_IF, claims, markdown, speedup, tokens_per_pass

RUN = CliRunner()


def test_rouge_of_the_same_of_nothing_and_of_half() -> None:
    assert rouge("the cat sat", "the cat sat") == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}
    assert set(rouge("dogs", "the cat sat").values()) == {0.0}
    half = rouge("the cat", "the cat sat down")
    assert half["rouge1"] == pytest.approx(2 * 1.0 * 0.5 / 1.5)


def test_exact_match_is_of_words() -> None:
    assert exact_match(" The  cat\n", "the cat")
    assert not exact_match("the cat", "the cats")


def test_an_interval_holds_its_mean() -> None:
    found = interval([0.0, 1.0] * 50)
    assert found.low < 0.5 == found.mean < found.high
    assert found.high - found.low < 0.25
    assert interval([]).mean == 0.0


def test_a_users_judge_is_asked_and_bounded(tmp_path: Path) -> None:
    judge = [sys.executable, "-c", "import sys; sys.exit('42' not in sys.stdin.read())"]
    assert passes(judge, "the answer is 42")
    assert not passes(judge, "it is 41")
    assert not passes([sys.executable, "-c", "while True: pass"], "", seconds=0.5)
    assert not passes([sys.executable, "-c", "x = bytearray(1 << 31)"], "")
    assert not passes([sys.executable, "-c", "import os, sys; sys.exit('HOME' in os.environ or 1)"], "")
    with pytest.raises(InvalidRequest, match="cannot be started"):
        passes([str(tmp_path / "none")], "")


def test_the_share_up_to_the_first_difference() -> None:
    assert _same_share([1, 2, 3], [1, 2, 3]) == 1.0
    assert _same_share([1, 2, 9], [1, 2, 3, 4]) == 0.5
    assert _same_share([1, 2], [1, 2, 3, 4]) == 0.5


def test_each_form_runs_without_and_with_speculation() -> None:
    names = [each.name for each in contenders("m", {"4-bit": "q"}, "d", "auto")]
    assert names == ["full", "full + speculation", "4-bit", "4-bit + speculation"]
    assert parse_quantized(["4-bit=q"]) == {"4-bit": "q"}
    with pytest.raises(InvalidRequest, match="LABEL=MODEL"):
        parse_quantized(["q"])


def test_references_are_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"question_id": 7, "reference": ["a", "b"]}\n')
    assert read_references(path) == {"7": "a\nb"}
    path.write_text('{"question_id": 7}\n')
    with pytest.raises(InvalidRequest, match="no references"):
        read_references(path)


@pytest.mark.model
def test_the_same_model_twice_differs_in_nothing(tmp_path: Path) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "o.json"
    prompts.write_text('{"prompt": "Repeat: one two three four, one two three four"}\n')
    args = ["compare", "--prompts", str(prompts), "--quantized", "again=smollm2-135m", "--max-tokens", "12"]
    done = RUN.invoke(cli.app, [*args, "--repeat", "1", "--json", str(out)])
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    assert set(rows) == {"full", "full + speculation", "again", "again + speculation"}
    assert all(row["identical_share"] == row["rouge_l"] == 1.0 for row in rows.values())
    assert len({round(row["perplexity"], 3) for row in rows.values()}) == 1
    assert rows["full"]["ratio"] == 1.0


# --- claims ------------------------------------------------------------------------------------------------------


def test_the_two_readings_of_acceptance() -> None:
    assert tokens_per_pass(0.6, 5) == pytest.approx(2.3834, abs=1e-4)
    assert tokens_per_pass(1.0, 5) == 6
    assert speedup(0.8, 4, 0.1) == pytest.approx(3.3616 / 1.4)


def test_every_claim_has_a_verdict(tmp_path: Path) -> None:
    rows = claims()
    names = " ".join(row.name + row.published for row in rows)
    for part in (
        "60 to 80%",
        "1 + K x",
        "1.2 to 1.5x",
        "a=0.8",
        "a=0.9",
        "a=0.6",
        "0.3",
        "K=8",
        "62.7%",
        "70B",
        "5 to 15",
        "4 to 5x",
    ):
        assert part in names
    assert {row.verdict for row in rows} <= {HOLDS, ONLY_IF, NOT}
    assert "4.00 against 2.38" in next(row.found for row in rows if row.name == "tokens per pass")
    table = markdown(rows)
    assert table.count("\n") == len(rows) + 2
    done = RUN.invoke(cli.app, ["claims", "--json", "--results", str(tmp_path)])
    assert [entry["name"] for entry in json.loads(done.stdout)] == [row.name for row in rows]
