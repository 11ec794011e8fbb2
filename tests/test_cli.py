"""The command line: what people type, what they see, and one line when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider import __version__, cli
from outrider.api import Engine
from outrider.cli import options
from outrider.cli.options import parse_size
from outrider.errors import InvalidRequest

RUN = CliRunner()


@pytest.fixture
def loaded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Commands use the session's engine; what they asked for is kept."""
    asked: dict[str, Any] = {}

    def give(*args: Any, **settings: Any) -> Any:
        asked.update(settings, args=args)
        return nullcontext(engine)

    monkeypatch.setattr(options, "open_engine", give)
    monkeypatch.setenv("COLUMNS", "200")
    return asked


def outrider(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "outrider", *args],
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate", "-m", "smollm", "-p", "x"], "unknown model 'smollm'. Did you mean smollm2-135m"),
        (["generate", "-p", "x", "--temperature", "-1"], "temperature=-1.0"),
        (["generate", "-p", "x", "-f", "y"], "not both"),
        (["generate", "-f", "missing.txt"], "cannot read missing.txt"),
        (["generate", "-p", "x", "--logit-bias", "5"], "--logit-bias '5' is not ID=BIAS"),
        (["generate", "-p", "x", "--raw", "--system", "y"], "--system needs the chat template"),
        (["generate", "-p", "x", "--kv-memory", "lots"], "'lots' is not a size"),
        (["generate", "-p", "x", "--kv-precision", "f64"], "--kv-precision 'f64' is not known"),
        (["generate", "-p", "x", "--speculation", "yes"], "speculation='yes'"),
        (["bench", "--prompts", "missing.jsonl"], "cannot read missing.jsonl"),
        (["generate", "-p", "x", "--prediction", "missing.txt"], "cannot read missing.txt"),
        (["trace", "-p", "x", "--raw", "-f", "y"], "not both"),
        (["serve", "--config", "missing.toml"], "cannot read missing.toml"),
        (["serve", "--profile", "fast"], "--profile 'fast' is not known; use interactive, batch, latency"),
        (["generate", "-p", "x", "--schema", "missing.json"], "cannot read missing.json"),
        (["serve", "--host", "0.0.0.0"], "host='0.0.0.0' is open to others"),
        (["batch", "-i", "missing.jsonl", "-o", "out.jsonl", "-m", "no-such"], "unknown model 'no-such'"),
        (["pull", "hf:nobody"], "'hf:nobody' is not a repository"),
    ],
)
def test_an_error_is_one_line_and_status_2(args: list[str], message: str, tmp_path: Path) -> None:
    done = outrider(*args, OUTRIDER_HOME=str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_version_and_help() -> None:
    assert outrider("--version").stdout == f"outrider {__version__}\n"
    text = RUN.invoke(cli.app, ["generate", "--help"], env={"COLUMNS": "200"}).output
    for name in ("temperature", "top-p", "top-k", "min-p", "repetition-penalty", "seed", "stop", "max-tokens"):
        assert f"--{name}" in text


def test_importing_the_package_is_light() -> None:
    code = "import sys, outrider, outrider.cli; assert not {'openvino', 'torch', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1.5g", 3 << 29), ("8kb", 8192)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "0", "M", "1T", "inf"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a size"):
        parse_size(text)


def test_models_lists_what_can_be_pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    output = RUN.invoke(cli.app, ["models"]).output
    assert "smollm2-135m-q4" in output
    assert "not pulled yet" in output


@pytest.mark.model
def test_pull_and_models_name_what_is_here(smollm2: Any) -> None:
    assert f"in {smollm2.directory}" in RUN.invoke(cli.app, ["pull", "smollm2-135m"]).output.replace("\n", "")
    output = RUN.invoke(cli.app, ["models", "--verify"], env={"COLUMNS": "300"}).output
    assert "135M" in output
    assert "(verified)" in output


@pytest.mark.model
def test_generate_prints_the_text_and_a_line_of_numbers(loaded: dict[str, Any], engine: Engine) -> None:
    done = RUN.invoke(cli.app, ["generate", "-p", "Say hello.", "--max-tokens", "8"])
    assert done.exit_code == 0, done.output
    expected = engine.generate([{"role": "user", "content": "Say hello."}], max_tokens=8).text
    assert done.stdout == expected + "\n"
    assert "8 tokens · " in done.stderr
    assert loaded["speculation"] == "auto"


@pytest.mark.model
def test_generate_reads_standard_input_and_files(loaded: dict[str, Any], engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("The capital of France is")
    args = ["generate", "--raw", "--max-tokens", "5", "-q"]
    expected = engine.generate("The capital of France is", max_tokens=5).text + "\n"
    assert RUN.invoke(cli.app, args, input="The capital of France is").stdout == expected
    assert RUN.invoke(cli.app, [*args, "-f", str(tmp_path / "p.txt")]).stdout == expected


@pytest.mark.model
def test_generate_json(loaded: dict[str, Any]) -> None:
    args = [
        "generate",
        "-p",
        "Count",
        "--max-tokens",
        "12",
        "--json",
        "--logprobs",
        "2",
        "--seed",
        "7",
        "--temperature",
        "0.7",
        "--top-p",
        "0.9",
    ]
    found = json.loads(RUN.invoke(cli.app, args).stdout)
    assert found["seed"] == 7
    assert len(found["token_ids"]) == found["usage"]["completion_tokens"] == 12
    assert found["finish_reason"] == "length"
    assert set(found["acceptance"]) == {"rate", "length", "passes"}
    assert found["timings"]["ttft_s"] > 0
    assert len(found["logprobs"][0]["top"]) == 2
    again = json.loads(RUN.invoke(cli.app, args).stdout)
    assert again["text"] == found["text"]


@pytest.mark.model
def test_show_accepted_colours_what_was_drafted(loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from outrider import console

    monkeypatch.setattr(console, "out", Console(force_terminal=True, soft_wrap=True, color_system="standard"))
    args = ["generate", "-p", "Repeat: one two three four, one two three four, one two three four"]
    plain = RUN.invoke(cli.app, [*args, "--max-tokens", "24", "-q"]).stdout
    shown = RUN.invoke(cli.app, [*args, "--max-tokens", "24", "-q", "--show-accepted"]).stdout
    assert "\x1b[1;32m" in shown
    assert "\x1b[1;32m" not in plain
    import re

    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == plain


@pytest.mark.model
@pytest.mark.parametrize("extra", [[], ["--show-accepted"]])
def test_an_end_of_text_that_comes_alone_is_printed_as_nothing(loaded: dict[str, Any], extra: list[str]) -> None:
    args = ["generate", "-p", "Say hi.", "--max-tokens", "60", "-q", "--speculation", "off", *extra]
    loaded.clear()
    done = RUN.invoke(cli.app, args)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("\n")


@pytest.mark.model
def test_several_completions_are_printed_one_by_one(loaded: dict[str, Any]) -> None:
    done = RUN.invoke(
        cli.app, ["generate", "-p", "Hi", "-n", "2", "--temperature", "1", "--seed", "3", "--max-tokens", "5", "-q"]
    )
    assert "--- 0" in done.stdout
    assert "--- 1" in done.stdout


@pytest.mark.model
def test_bench_writes_what_it_says(loaded: dict[str, Any], tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"category": "qa", "question_id": 1, "turns": ["What is a tide?"]}\n'
        '{"prompt": "Repeat: a b c d e f g, a b c d e f g, a b c d e f g"}\n'
    )
    out = tmp_path / "out.json"
    args = ["bench", "--prompts", str(prompts), "--modes", "off,fixed:2,auto", "--max-tokens", "16", "--json", str(out)]
    done = RUN.invoke(cli.app, args)
    assert done.exit_code == 0, done.output
    assert "fixed:2" in done.stdout
    report = json.loads(out.read_text())
    assert {"machine", "versions", "commit", "overall", "categories"} <= set(report)
    assert set(report["categories"]) == {"qa", "prompts"}
    wanted = {
        "tok_s", "ratio", "paired_ratio", "spread", "ttft_s", "acceptance_rate", "acceptance_length", "identical",
        "overhead_fraction", "draft_fraction", "coordination_ms",
    }  # fmt: skip
    for group in (report["overall"], *report["categories"].values()):
        assert list(group) == ["off", "fixed:2", "auto"]
        for result in group.values():
            assert wanted <= set(result)
            assert result["identical"]
        assert group["off"]["ratio"] == 1.0
        assert group["off"]["acceptance_rate"] is None
    assert report["overall"]["auto"]["acceptance_length"] > 1.0


@pytest.mark.model
def test_the_demo_shows_both_sides_and_a_table(loaded: dict[str, Any]) -> None:
    done = RUN.invoke(cli.app, ["demo", "--max-tokens", "16"])
    assert done.exit_code == 0, done.output
    for text in ("without speculation", "with speculation", "quotes its input", "code", "chat", "identical"):
        assert text in done.stdout


@pytest.mark.model
def test_trace_shows_every_step(loaded: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "expected.txt").write_text("The ferry leaves at seven and is back at noon.")
    asked = ["trace", "-p", "Repeat: The ferry leaves at seven and is back at noon.", "--max-tokens", "16"]
    asked += ["--prediction", str(tmp_path / "expected.txt")]
    done = RUN.invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    for text in ("drafted", "verified", "expected", "accepted", "guard:"):
        assert text in done.stdout
    done = RUN.invoke(cli.app, [*asked, "--json"])
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    own = [step["requests"][0] for step in steps]
    assert [step["position"] for step in own] == sorted({step["position"] for step in own})
    assert own[0]["position"] == 1  # the first token comes from the prompt's own pass
    assert own[-1]["position"] + own[-1]["emitted"] <= 16
    for step in own:
        assert 0 <= step["accepted"] <= step["window"]
        assert step["emitted"] <= step["accepted"] + 1
        assert bool(step["source"]) == bool(step["window"])


def test_flags_count_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from types import SimpleNamespace

    from outrider.server import run

    seen: dict[str, Any] = {}

    def engine(*args: Any, **settings: Any) -> Any:
        seen.update(settings)
        return SimpleNamespace(manifest=SimpleNamespace(name="toy"))

    monkeypatch.setattr(options, "open_engine", engine)
    monkeypatch.setattr(run, "serve", lambda engine, config: seen.update(config=config))
    (tmp_path / "o.toml").write_text('port = 1111\nmax_queue = 7\nspeculation = "threshold"\napi_key = ["a", "b"]\n')
    monkeypatch.setenv("OUTRIDER_PORT", "2222")
    monkeypatch.setenv("OUTRIDER_SPECULATION", "fixed:3")
    done = RUN.invoke(cli.app, ["serve", "--config", str(tmp_path / "o.toml"), "--port", "3333"])
    assert done.exit_code == 0, done.output
    assert seen["config"].port == 3333
    assert seen["speculation"] == "fixed:3"
    assert seen["max_queue"] == 7
    assert seen["config"].api_keys == ("a", "b")
    done = RUN.invoke(cli.app, ["serve", "--config", str(tmp_path / "o.toml"), "--profile", "batch"])
    assert done.exit_code == 0, done.output
    assert (seen["max_queue"], seen["max_running"], seen["stretch"]) == (7, 32, 8.0)
    assert seen["config"].pace == "burst"


def test_an_unknown_setting_in_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("prot = 1\n")
    done = outrider("serve", "--config", str(tmp_path / "o.toml"))
    assert done.returncode == 2
    assert "unknown setting 'prot'. Did you mean port" in done.stderr
