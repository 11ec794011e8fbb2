"""After deployment: is the text with speculation that without it, and is the distribution the model's own?

Four kinds of evidence. Equality: greedy and seeded answers, with and without penalties, token for token; a difference
counts as a tie only where the two choices lay within rounding. Stops: a text that is cut at a string ends exactly
there. Log-probabilities: those of speculated answers are those of a plain pass over the same text. Distribution: tokens
drawn with speculation against the model's own probabilities, and against tokens drawn without, each with a correction
for the number of tests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, TypeVar
from xml.etree import ElementTree

import numpy as np
from pydantic import BaseModel

from outrider.api import Engine
from outrider.engine import Completion
from outrider.evaluate.ties import TOLERANCE, find_difference
from outrider.params import MAX_LOGPROBS, SamplingParams
from outrider.plan.page import page, table, verdict

T = TypeVar("T")

ALPHA = 1e-4
"""Chance of a false alarm of all distribution tests of a run together."""
GREEDY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, repetition penalty": {"repetition_penalty": 1.3},
    "greedy, presence and frequency penalty": {"presence_penalty": 0.6, "frequency_penalty": 0.4},
    "greedy, minimum length": {"min_tokens": 12},
}
SEEDED: dict[str, dict[str, Any]] = {
    "seeded, temperature 0.8, top-p 0.9": {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    "seeded, temperature 1.2, top-k 40, min-p 0.02": {"temperature": 1.2, "top_k": 40, "min_p": 0.02, "seed": 12},
    "seeded, penalties and top-p": {
        "temperature": 0.9,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.5,
        "top_p": 0.8,
        "seed": 13,
    },
}
_DRAWS_AT_ONCE = 8
_LEAST_EXPECTED = 5.0


class Check(BaseModel):
    """One kind of evidence."""

    name: str
    cases: int
    ties: int = 0
    """Differences that rounding explains."""
    failures: list[str]
    """What is wrong, one line for each case."""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures


class Validation(BaseModel):
    """What `outrider validate --json` writes."""

    mode: str
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def html(self, title: str) -> str:
        """A page of its own: no script, no request."""
        failed = [check for check in self.checks if not check.passed]
        said = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks passed"
        rows = [
            [
                check.name,
                "passed" if check.passed else "FAILED",
                str(check.cases),
                str(check.ties),
                str(len(check.failures)),
            ]
            for check in self.checks
        ]
        parts = [
            verdict("no" if failed else "yes", "failed" if failed else "passed", f"{self.mode}: {said}"),
            "<section><h2>Checks</h2>",
            table("Ties are differences that rounding explains", ["check", "", "cases", "ties", "failures"], rows),
            "</section>",
        ]
        for check in failed:
            lines = "".join(f"<li>{escape(line)}</li>" for line in check.failures[:50])
            parts.append(f"<section><h2>{escape(check.name)}</h2><ul>{lines}</ul></section>")
        return page(title, *parts, *self.more_html())

    def more_html(self) -> list[str]:
        """What else belongs on the page."""
        return []

    def junit(self) -> str:
        """JUnit's XML, for a pipeline to show."""
        failed = sum(not check.passed for check in self.checks)
        suite = ElementTree.Element(
            "testsuite", name="outrider validate", tests=str(len(self.checks)), failures=str(failed)
        )
        for check in self.checks:
            case = ElementTree.SubElement(suite, "testcase", classname=f"validate.{self.mode}", name=check.name)
            if not check.passed:
                ElementTree.SubElement(case, "failure", message=check.failures[0]).text = "\n".join(check.failures)
        return ElementTree.tostring(suite, encoding="unicode") + "\n"


def validate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    mode: str = "fixed:4",
    *,
    max_tokens: int = 48,
    draws: int = 200,
    reproducible: bool = True,
    watch: Callable[[str], None] | None = None,
) -> Validation:
    """Collect the evidence for one mode of speculation.

    Args:
        engine: under test.
        prompts: token ids.
        mode: of speculation, as `fixed:4`: a fixed window tries hardest.
        max_tokens: of each answer.
        draws: tokens drawn for each distribution test.
        reproducible: whether verification promises the same text for the same seed (`coupled`).
        watch: told which check runs.
    """
    checks = []
    for check in _checks(engine, prompts, mode, max_tokens, draws, reproducible):
        checks.append(check)
        if watch is not None:
            watch(check.name)
    return Validation(mode=mode, checks=checks)


def _checks(
    engine: Engine, prompts: Sequence[Sequence[int]], mode: str, max_tokens: int, draws: int, reproducible: bool
) -> Iterator[Check]:
    for name, fields in (GREEDY | (SEEDED if reproducible else {})).items():
        yield _equal(engine, prompts, mode, name, SamplingParams(**fields, max_tokens=max_tokens))
    yield _stops(engine, prompts, mode, max_tokens)
    yield _logprobs(engine, prompts, mode, max_tokens)
    yield _fit(engine, prompts, mode, draws)
    yield _two_samples(engine, prompts, mode, draws)


def _one(engine: Engine, prompt: Sequence[int], params: SamplingParams, mode: str) -> Completion:
    return engine.generate(prompt, params, speculation=mode, tenant=None).completions[0]


# --- equality ------------------------------------------------------------------------------------------------


def _equal(engine: Engine, prompts: Sequence[Sequence[int]], mode: str, name: str, params: SamplingParams) -> Check:
    failures = []
    ties = 0
    for number, prompt in enumerate(prompts):
        plain, fast = (_one(engine, prompt, params, each) for each in ("off", mode))
        difference = find_difference(engine, prompt, plain.token_ids, fast.token_ids, params)
        if difference is not None and difference.tie:
            ties += 1
        elif difference is not None:
            failures.append(f"prompt {number}: {difference}")
        elif (plain.text, plain.finish_reason) != (fast.text, fast.finish_reason):
            failures.append(f"prompt {number}: same tokens, other text or reason ({fast.finish_reason})")
    return Check(name=name, cases=len(prompts), ties=ties, failures=failures)


def _stops(engine: Engine, prompts: Sequence[Sequence[int]], mode: str, max_tokens: int) -> Check:
    """Cut each answer at a string out of its own middle."""
    failures = []
    cases = ties = 0
    for number, prompt in enumerate(prompts):
        whole = _one(engine, prompt, SamplingParams(max_tokens=max_tokens), "off").text
        word = whole[len(whole) // 2 :][:3]
        if not word:
            continue
        cases += 1
        cut = _one(engine, prompt, SamplingParams(max_tokens=max_tokens, stop=(word,)), mode)
        expected = whole[: whole.index(word)]
        if cut.text == expected and cut.finish_reason == "stop":
            continue
        params = SamplingParams(max_tokens=max_tokens)
        uncut = _one(engine, prompt, params, mode)
        plain = _one(engine, prompt, params, "off")
        difference = find_difference(engine, prompt, plain.token_ids, uncut.token_ids, params)
        if difference is not None and difference.tie:
            ties += 1
        else:
            failures.append(f"prompt {number}: stop {word!r} gave {len(cut.text)} characters, not {len(expected)}")
    return Check(name="stop strings", cases=cases, ties=ties, failures=failures)


def _logprobs(engine: Engine, prompts: Sequence[Sequence[int]], mode: str, max_tokens: int) -> Check:
    """Of a speculated answer: each against a plain pass over the text before its token."""
    failures = []
    cases = 0
    params = SamplingParams(max_tokens=max_tokens, logprobs=3)
    asked = SamplingParams(max_tokens=1, logprobs=MAX_LOGPROBS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        fast = _one(engine, prompt, params, mode)
        places = np.linspace(0, len(fast.tokens) - 1, min(6, len(fast.tokens))).astype(int)
        for place in sorted(set(places.tolist())):
            token = fast.tokens[place]
            again = _one(engine, [*prompt, *fast.token_ids[:place]], asked, "off").tokens[0]
            assert again.logprobs is not None
            cases += 1
            known = dict(again.logprobs.top)
            said = token.logprobs.logprob if token.logprobs is not None else None
            if said is None or token.id not in known or abs(known[token.id] - said) > TOLERANCE:
                failures.append(
                    f"prompt {number}, token {place}: log-probability {said}, a plain pass gives {known.get(token.id)}"
                )
    return Check(name="log-probabilities", cases=cases, failures=failures)


# --- distribution --------------------------------------------------------------------------------------------


def _draw(
    engine: Engine, prompt: Sequence[int], mode: str, draws: int, seed: int, temperature: float, tokens: int
) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < draws:
        params = SamplingParams(
            temperature=temperature, max_tokens=tokens, n=_DRAWS_AT_ONCE, seed=seed + len(found), ignore_eos=True
        )
        answers = engine.generate(prompt, params, speculation=mode, tenant=None).completions
        found += [answer.token_ids for answer in answers]
    return found


def _fit(engine: Engine, prompts: Sequence[Sequence[int]], mode: str, draws: int) -> Check:
    """First, second and third tokens, each given the commonest ones before it, against the model's probabilities."""
    tests = 3 * len(prompts)
    failures = []
    asked = SamplingParams(max_tokens=1, logprobs=MAX_LOGPROBS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        drawn = _draw(engine, prompt, mode, draws, 1_000 * number, 1.0, 3)
        path: list[int] = []
        for place in range(3):
            seen = Counter(tokens[place] for tokens in drawn if tokens[:place] == path)
            total = sum(seen.values())
            entry = _one(engine, [*prompt, *path], asked, "off").tokens[0].logprobs
            assert entry is not None
            chances = {token: math.exp(logprob) for token, logprob in entry.top}
            p = _goodness(seen, chances, total)
            if p < ALPHA / tests:
                failures.append(f"prompt {number}, token {place}: p = {p:.2g} against the model's own probabilities")
            path.append(seen.most_common(1)[0][0])
    return Check(name="distribution, against the model's probabilities", cases=tests, failures=failures)


def _two_samples(engine: Engine, prompts: Sequence[Sequence[int]], mode: str, draws: int) -> Check:
    """Second and third tokens with and without speculation, drawn with different seeds, at temperature 0.5."""
    tests = 2 * len(prompts)
    failures = []
    for number, prompt in enumerate(prompts):
        plain = _draw(engine, prompt, "off", draws, 500_000 + 1_000 * number, 0.5, 3)
        fast = _draw(engine, prompt, mode, draws, 700_000 + 1_000 * number, 0.5, 3)
        for place in (1, 2):
            one, other = (Counter(tokens[place] for tokens in drawn) for drawn in (plain, fast))
            p = same_distribution(one, other)
            if p < ALPHA / tests:
                failures.append(f"prompt {number}, token {place}: p = {p:.2g} against plain draws")
    return Check(name="distribution, against draws without speculation", cases=tests, failures=failures)


def _goodness(seen: Counter[int], chances: dict[int, float], total: int) -> float:
    """p-value of counts given probabilities; the unlikely tokens are taken together."""
    likely = [token for token, chance in chances.items() if chance * total >= _LEAST_EXPECTED]
    observed = [float(seen[token]) for token in likely]
    expected = [chances[token] * total for token in likely]
    rest = total - sum(expected)
    if rest >= _LEAST_EXPECTED:
        observed.append(total - sum(observed))
        expected.append(rest)
    elif total - sum(observed) > rest + 10 * math.sqrt(max(rest, 1.0)):
        return 0.0  # what hardly ever comes came often
    if len(observed) < 2:
        return 1.0
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return chi2_tail(statistic, len(observed) - 1)


def same_distribution(one: Counter[T], other: Counter[T]) -> float:
    """p-value of two counts coming from one distribution; rare tokens are taken together."""
    both = one + other
    totals = sum(one.values()), sum(other.values())
    common = [token for token, count in both.items() if count >= 2 * _LEAST_EXPECTED]
    rows = [(float(one[token]), float(other[token])) for token in common]
    rest = totals[0] - sum(a for a, _ in rows), totals[1] - sum(b for _, b in rows)
    if sum(rest) >= 2 * _LEAST_EXPECTED:
        rows.append(rest)
    if len(rows) < 2:
        return 1.0
    kept = [sum(column) for column in zip(*rows, strict=True)]
    statistic = 0.0
    for row in rows:
        for count, total in zip(row, kept, strict=True):
            expected = sum(row) * total / sum(kept)
            statistic += (count - expected) ** 2 / expected
    return chi2_tail(statistic, len(rows) - 1)


def chi2_tail(statistic: float, degrees: int) -> float:
    """Chance of a chi-square variable above this; Wilson and Hilferty's cube root, good to a few percent of log p."""
    spread = 2.0 / (9.0 * degrees)
    z = ((statistic / degrees) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))
