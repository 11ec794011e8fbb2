"""Batch files: in order, whole lines, errors in their place, and on from where a run was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.api import Engine, chat
from outrider.errors import InvalidRequest
from outrider.server.batch import run_batch

pytestmark = pytest.mark.model
MODEL = "smollm2-135m"


def line(name: str, text: str, **fields: Any) -> str:
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 12,
    }
    asked = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {**body, **fields}}
    return json.dumps(asked)


def run(engine: Engine, lines: list[str], folder: Path) -> tuple[int, list[dict[str, Any]], list[tuple[int, int]]]:
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    seen: list[tuple[int, int]] = []
    failed = run_batch(
        engine, folder / "in.jsonl", folder / "out.jsonl", lambda done, total: seen.append((done, total))
    )
    answers = [json.loads(each) for each in (folder / "out.jsonl").read_text().splitlines()]
    return failed, answers, seen


def test_answers_stand_in_the_order_of_the_requests_with_errors_in_their_place(engine: Engine, tmp_path: Path) -> None:
    asked = [line(f"q{i}", f"Name the number {i}.", max_tokens=4 + 5 * (i % 3)) for i in range(8)]
    asked[3] = line("q3", "x", temperature=9)
    asked[5] = json.dumps({"custom_id": "q5", "url": "/v1/files", "body": {}})
    plain = {"model": MODEL, "prompt": "One two", "max_tokens": 3}
    asked.append(json.dumps({"custom_id": "text", "url": "/v1/completions", "body": plain}))
    failed, answers, seen = run(engine, asked, tmp_path)
    assert failed == 2
    assert [answer["custom_id"] for answer in answers] == [*(f"q{i}" for i in range(8)), "text"]
    statuses = [answer["response"]["status_code"] for answer in answers]
    assert statuses == [200, 200, 200, 400, 200, 400, 200, 200, 200]
    assert "temperature" in answers[3]["response"]["body"]["error"]["message"]
    assert "/v1/files" in answers[5]["response"]["body"]["error"]["message"]
    alone = engine.generate(chat("Name the number 4."), max_tokens=9)
    assert answers[4]["response"]["body"]["choices"][0]["message"]["content"] == alone.text
    assert seen[0] == (0, 9)
    assert seen[-1] == (9, 9)


def test_a_run_that_was_cut_goes_on_behind_the_last_whole_line(engine: Engine, tmp_path: Path) -> None:
    asked = [line(f"q{i}", f"Say {i}.") for i in range(5)]
    _, whole, _ = run(engine, asked, tmp_path)
    written = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out.jsonl").write_text("".join(written[:2]) + written[2][:30])
    _, again, seen = run(engine, asked, tmp_path)
    assert seen == [(2, 5), (3, 5), (4, 5), (5, 5)]

    def texts(answers: list[dict[str, Any]]) -> list[str]:
        return [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers]

    assert texts(again) == texts(whole)
    _, _, nothing = run(engine, asked, tmp_path)
    assert nothing == [(5, 5)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1 needs"),
        ([line("a", "x"), line("a", "y")], "line 2: custom_id 'a' stands there before"),
        ([line("other", "x")], "answers other requests"),
    ],
)
def test_files_that_do_not_fit_are_refused_before_anything_runs(
    engine: Engine, tmp_path: Path, lines: list[str], message: str
) -> None:
    (tmp_path / "out.jsonl").write_text('{"custom_id": "q0", "response": {"status_code": 200}}\n')
    with pytest.raises(InvalidRequest, match=message):
        run(engine, lines, tmp_path)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1
