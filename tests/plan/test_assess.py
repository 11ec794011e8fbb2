"""Assessment: exact against the engine itself, verdicts, intervals, and the forms of logs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.control import CostModel
from outrider.errors import InvalidRequest
from outrider.plan import Exchange, assess, read_traffic
from outrider.plan.assess import Answer, Walk, walk
from outrider.plan.report import html
from outrider.proposers import PromptLookup, Suffix
from outrider.testing import ScriptedRunner
from outrider.testing.runner import hashed_logits
from support import Harness

V = 12
SCRIPT = hashed_logits(V, order=2, seed=6)  # twelve tokens, order two: it repeats itself soon


@pytest.mark.parametrize("window", [1, 2, 4, 7, 12])
@pytest.mark.parametrize("make", [PromptLookup, Suffix])
def test_the_replay_of_an_answer_is_what_the_engine_does(make: Any, window: int) -> None:
    """Passes, draft tokens and accepted ones, each the same."""
    for seed in range(5):
        prompt = np.random.default_rng(seed).integers(0, V, 20).tolist()
        runner = ScriptedRunner(SCRIPT, vocabulary=V, context_length=256, num_blocks=128)
        harness = Harness(runner, proposer=make(), speculation=f"fixed:{window}")
        said = harness.answer(prompt, max_tokens=60)
        found = walk(make(), Answer("x", prompt, said.token_ids), "r")
        usage = said.usage
        assert found.steps(window) == (usage.passes, usage.accepted + usage.rejected, usage.accepted)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40), st.integers(1, 12))
def test_every_token_is_in_one_pass(steps: list[tuple[int, int]], window: int) -> None:
    trail = Walk([d for d, _ in steps], [min(d, r) for d, r in steps])
    passes, drafted, accepted = trail.steps(window)
    assert passes + accepted == len(steps)
    assert accepted <= drafted
    widths = trail.widths(window)
    assert len(widths) == passes
    assert sum(widths) == passes + drafted
    assert all(1 <= width <= window + 1 for width in widths)


def repeating(count: int, length: int = 40) -> list[Answer]:
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(count):
        prompt = rng.integers(0, 5000, length).tolist()
        answers.append(Answer("quotes", prompt, prompt[5:]))
    return answers


def random_text(count: int, length: int = 40) -> list[Answer]:
    rng = np.random.default_rng(1)
    return [
        Answer("free", rng.integers(0, 5000, 30).tolist(), rng.integers(0, 5000, length).tolist()) for _ in range(count)
    ]


FLAT = CostModel({1: 1.0, 5: 1.1, 13: 1.3})
STEEP = CostModel({1: 1.0, 2: 2.0, 13: 13.0})


def test_quotes_are_worth_deploying_and_random_text_is_not() -> None:
    found = assess([*repeating(20), *random_text(20)], FLAT)
    verdicts = {group.name: group for group in found.categories}
    assert verdicts["quotes"].verdict.startswith("deploy with ")
    assert "x (" in verdicts["quotes"].reason
    assert verdicts["free"].verdict == "do not deploy"
    assert found.overall.answers == 40
    assert found.overall.tokens == sum(group.tokens for group in found.categories)


def test_where_verifying_costs_as_much_as_decoding_nothing_is() -> None:
    found = assess(repeating(20), STEEP)
    assert found.overall.verdict == "do not deploy"
    assert all(result.best_window == 0 for result in found.overall.proposers)


def test_without_a_cost_the_fields_thresholds_decide() -> None:
    assert assess(repeating(5)).overall.verdict.startswith("deploy with")
    free = assess(random_text(5)).overall
    assert free.verdict == "do not deploy"
    assert "under 30%" in free.reason
    assert assess(repeating(5)).cost_curve is None


def test_few_answers_that_disagree_are_unclear_and_more_are_asked_for() -> None:
    rare = [*repeating(1), *random_text(6)]
    dear = CostModel({1: 1.0, 2: 1.06, 13: 1.9})
    found = assess(rare, dear).overall
    assert found.verdict == "unclear"
    assert found.more_answers > 0
    firm = assess(rare * (2 + found.more_answers // 4), dear).overall
    assert firm.verdict != "unclear"


def test_a_warm_store_knows_repeated_answers() -> None:
    again = random_text(5) * 2
    results = {result.proposer: result for result in assess(again, FLAT).overall.proposers}
    assert results["suffix, warm"].windows[7].tokens_per_pass > 1.5
    assert results["suffix"].windows[7].tokens_per_pass < 1.1


def test_predictions_are_replayed_where_there_are_any() -> None:
    told = [Answer(a.category, a.prompt, a.tokens, a.tokens) for a in random_text(5)]
    results = {result.proposer: result for result in assess(told, FLAT).overall.proposers}
    assert results["prediction"].windows[7].tokens_per_pass > 6
    assert "prediction" not in {result.proposer for result in assess(random_text(2)).overall.proposers}


def test_acceptance_by_position_is_given_that_those_before_were_right() -> None:
    result = assess(repeating(10)).overall.proposers[0]
    assert all(share is None or 0.0 <= share <= 1.0 for share in result.acceptance_by_position)
    assert result.acceptance_by_position[3] == 1.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_interval_holds_the_value(seed: int) -> None:
    for result in assess([*repeating(3), *random_text(3)], FLAT, seed=seed).overall.proposers:
        for window in result.windows:
            assert window.tokens_per_pass_low <= window.tokens_per_pass <= window.tokens_per_pass_high + 1e-9


def test_an_answer_of_one_token_has_no_pass() -> None:
    assert assess([Answer("x", [1, 2], [3])], FLAT).overall.verdict == "do not deploy"


LINES: list[tuple[dict[str, Any], Exchange]] = [
    ({"prompt": "p", "response": "r", "category": "c"}, Exchange("c", (), "p", "r")),
    (
        {"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "r"}], "prediction": "q"},
        Exchange("traffic", ({"role": "user", "content": "p"},), "", "r", "q"),
    ),
    (
        {
            "request": {"messages": [{"role": "user", "content": "p"}]},
            "response": {"choices": [{"message": {"content": "r"}}]},
        },
        Exchange("traffic", ({"role": "user", "content": "p"},), "", "r"),
    ),
    (
        {"request": {"body": {"prompt": "p"}}, "response": {"body": {"choices": [{"text": "r"}]}}},
        Exchange("traffic", (), "p", "r"),
    ),
]


def test_every_form_of_log_is_read(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(line) for line, _ in LINES) + "\n\n"
    (tmp_path / "log.jsonl").write_text(text)
    with gzip.open(tmp_path / "log.jsonl.gz", "wt") as file:
        file.write(text)
    expected = [exchange for _, exchange in LINES]
    assert read_traffic(tmp_path / "log.jsonl") == read_traffic(tmp_path / "log.jsonl.gz") == expected
    assert read_traffic(tmp_path / "log.jsonl", limit=2) == expected[:2]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '"x"', "{}", '{"prompt": 1, "response": "r"}', '{"messages": []}', '{"messages": [{"role": "user"}]}',
     '{"request": {}, "response": {"choices": []}}', '{"messages": [{"role": "assistant", "content": "r"}]}'],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"prompt": "p", "response": "r"}\n' + line + "\n")
    with pytest.raises(InvalidRequest, match="line 2 is no exchange"):
        read_traffic(tmp_path / "log.jsonl")


def test_the_report_asks_nothing_of_the_network_and_escapes_names() -> None:
    answers = [Answer("<b>bold</b>", a.prompt, a.tokens) for a in repeating(3)]
    page = html(assess([*answers, *random_text(3)], FLAT), "a <title>")
    assert "http" not in page
    assert "<script" not in page
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert page.count("<svg") == 3
