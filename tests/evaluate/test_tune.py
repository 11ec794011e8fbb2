"""Tuning: the best that never loses, and settings that the server takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider import cli
from outrider.evaluate.tune import Trial, Tuning, rank

RUN = CliRunner()


def trial(mode: str, batch: int, ratio: float, proposers: str = "lookup", draft: str | None = None) -> Trial:
    return Trial(proposers=proposers, draft=draft, mode=mode, batch=batch, tok_s=ratio, ratio=ratio, spread=0.0)


def test_what_loses_nowhere_goes_before_what_gains_more() -> None:
    ranking = rank(
        [
            trial("off", 1, 1.0), trial("off", 4, 1.0),
            trial("fixed:4", 1, 2.0), trial("fixed:4", 4, 0.9),
            trial("auto", 1, 1.3), trial("auto", 4, 0.99),
        ]
    )  # fmt: skip
    assert [choice.mode for choice in ranking] == ["auto", "off", "fixed:4"]
    assert ranking[0].score == pytest.approx((1.3 * 0.99) ** 0.5)
    assert ranking[2].worst == 0.9


def test_none_at_all_wins_where_everything_loses() -> None:
    ranking = rank([trial("off", 1, 1.0), trial("auto", 1, 0.9), trial("fixed:2", 1, 0.8, "suffix", "d")])
    assert ranking[0].mode == "off"


@pytest.mark.model
def test_the_settings_are_those_of_the_server(tmp_path: Path) -> None:
    prompts, out, evidence = tmp_path / "p.jsonl", tmp_path / "serve.toml", tmp_path / "e.json"
    prompts.write_text('{"prompt": "Repeat: one two three four, one two three four"}\n{"prompt": "Hello!"}\n')
    args = ["tune", "--prompts", str(prompts), "--modes", "auto", "--batches", "1,2", "--max-tokens", "12"]
    args += ["--proposers", "lookup", "--repeat", "1", "--out", str(out), "--json", str(evidence)]
    done = RUN.invoke(cli.app, args)
    assert done.exit_code == 0, done.output
    settings = tomllib.loads(out.read_text())
    assert settings["model"] == "smollm2-135m"
    assert settings["speculation"] in ("auto", "off")
    found = Tuning.model_validate(json.loads(evidence.read_text()))
    assert {(t.mode, t.batch) for t in found.trials} == {("off", 1), ("off", 2), ("auto", 1), ("auto", 2)}


def test_refusals(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "x"}\n')
    done = RUN.invoke(cli.app, ["tune", "--prompts", str(prompts), "--batches", "0"])
    assert "must name sizes from 1 on" in str(done.exception)
