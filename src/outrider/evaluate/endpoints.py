"""Two OpenAI-compatible servers side by side, one with speculation and one without: text, distribution, quality, time.

Whatever engine serves them: what is compared is what a client sees. Every prompt goes to both in turn, streamed, so
that the machine's moods and the order fall on both alike.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from outrider.errors import InvalidRequest
from outrider.evaluate.prompts import BenchPrompt
from outrider.evaluate.text import Interval, exact_match, interval, passes, rouge
from outrider.evaluate.validate import ALPHA, Check, Validation, same_distribution
from outrider.plan.page import table

NAMES = ("baseline", "speculative")


@dataclass(slots=True)
class Said:
    """One streamed answer."""

    text: str = ""
    tokens: list[tuple[str, float, float | None]] = field(default_factory=list)
    """Each token's text, its log-probability, and how far behind it the next likeliest was; empty where the server
    gives none."""
    moments: list[float] = field(default_factory=list)
    """When each chunk with text came, in seconds from the request."""
    finish_reason: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.moments, self.moments[1:], strict=False)]


class Endpoint:
    """One server.

    Args:
        url: up to and with `/v1`.
        model: by its name there; None takes the first that it lists.
        key: sent as a bearer token.
        timeout: seconds that it may be silent.

    Raises:
        InvalidRequest: not a URL, or nobody answers there.
    """

    def __init__(self, url: str, model: str | None = None, key: str | None = None, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{url!r} is no address; write http://host:port/v1")
        self.url = url.rstrip("/")
        self._parts = parts
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.model = model or self._first_model()
        self.gives_logprobs = True

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Lines of an answer.

        Raises:
            InvalidRequest: nobody there, or an error status; it carries what the server said.
        """
        connection = self._connect()
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, self._path + path, data, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(400).decode(errors="replace")
                raise InvalidRequest(f"{self.url}{path} answered {answer.status}: {said}")
            yield from answer
        except OSError as error:
            raise InvalidRequest(f"{self.url} cannot be reached: {error}") from None
        finally:
            connection.close()

    def _first_model(self) -> str:
        found = json.loads(b"".join(self._send("GET", "/models")))
        return str(found["data"][0]["id"])

    def ask(self, prompt: str, **fields: Any) -> Said:
        """Stream one answer to one message."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            **fields,
        }
        if self.gives_logprobs:
            body |= {"logprobs": True, "top_logprobs": 2}
        started = time.perf_counter()
        said = Said()
        try:
            for line in self._send("POST", "/chat/completions", body):
                if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                    _take(said, json.loads(line[5:]), time.perf_counter() - started)
        except InvalidRequest as error:
            if not self.gives_logprobs or "logprob" not in str(error):
                raise
            self.gives_logprobs = False  # a server without them says so once
            return self.ask(prompt, **fields)
        return said

    def draw(self, prompt: str, count: int, **fields: Any) -> list[str]:
        """So many short answers at once, as text."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "n": count, **fields}
        found = json.loads(b"".join(self._send("POST", "/chat/completions", body)))
        return [str(choice["message"]["content"]) for choice in found["choices"]]


def _take(said: Said, event: Mapping[str, Any], moment: float) -> None:
    if "error" in event:
        raise InvalidRequest(f"the server broke off: {event['error']}")
    for choice in event.get("choices", ()):
        text = choice.get("delta", {}).get("content") or ""
        if text:
            said.text += text
            said.moments.append(moment)
        for token in (choice.get("logprobs") or {}).get("content") or ():
            others = [top["logprob"] for top in token.get("top_logprobs", ()) if top["token"] != token["token"]]
            behind = token["logprob"] - max(others) if others else None
            said.tokens.append((token["token"], token["logprob"], behind))
        said.finish_reason = choice.get("finish_reason") or said.finish_reason


class Timing(BaseModel):
    """What a client waits for."""

    ttft_s: float
    """Median time to the first text."""
    itl_s: float
    """Median over answers of the mean time between tokens (of chunks, where the server does not tell tokens)."""
    gap_variation: float
    """Median over answers of the coefficient of variation of the gaps between chunks: burstiness."""
    tokens_per_second: float


class EndpointValidation(Validation):
    """What `outrider validate --baseline-url --speculative-url --json` writes."""

    baseline_url: str
    speculative_url: str
    timing: dict[str, Timing]
    quality: dict[str, dict[str, Interval]]
    """By measure, of each server."""

    @property
    def speedup(self) -> float:
        """Inter-token latency of the baseline over that of speculation."""
        return self.timing["baseline"].itl_s / max(1e-9, self.timing["speculative"].itl_s)

    def more_html(self) -> list[str]:
        """Time and quality of both servers."""
        rows = [
            [
                name,
                f"{t.ttft_s * 1e3:.0f}",
                f"{t.itl_s * 1e3:.1f}",
                f"{t.gap_variation:.2f}",
                f"{t.tokens_per_second:.1f}",
            ]
            for name, t in self.timing.items()
        ]
        heads = ["server", "TTFT, ms", "ITL, ms", "variation of gaps", "tokens/s"]
        parts = [
            "<section><h2>Time</h2>",
            table(f"Speculation is {self.speedup:.2f}x as fast", heads, rows),
            "</section>",
        ]
        if self.quality:
            scores = [
                [measure, *(f"{own[name].mean:.3f} ({own[name].low:.3f} to {own[name].high:.3f})" for name in NAMES)]
                for measure, own in self.quality.items()
            ]
            parts += [
                "<section><h2>Quality</h2>",
                table("With 95% intervals", ["measure", *NAMES], scores),
                "</section>",
            ]
        return parts


def validate_endpoints(
    baseline: Endpoint,
    speculative: Endpoint,
    prompts: Sequence[BenchPrompt],
    *,
    max_tokens: int = 96,
    draws: int = 120,
    tolerance: float = 0.1,
    seeded: bool = False,
    references: Mapping[str, str] | None = None,
    judge: Sequence[str] | None = None,
    watch: Callable[[str, int, int], None] | None = None,
) -> EndpointValidation:
    """Collect the evidence.

    Args:
        baseline: without speculation.
        speculative: with it.
        prompts: what is asked.
        max_tokens: of each answer.
        draws: answers drawn from each server for a distribution test; 0 for none.
        tolerance: log-probabilities closer than this count as tied.
        seeded: the same seed must give the same text; true of Outrider with coupled verification.
        references: good answers by prompt id, for ROUGE and exact match.
        judge: a command that reads an answer and exits with 0 where it is good.
        watch: told what is done, of how many.
    """
    servers = dict(zip(NAMES, (baseline, speculative), strict=True))
    answers: dict[str, dict[str, Said]] = {name: {} for name in NAMES}
    for name in NAMES:
        servers[name].ask(prompts[0].text, max_tokens=8, temperature=0.0)
    for number, prompt in enumerate(prompts):
        for name in NAMES if number % 2 else NAMES[::-1]:
            answers[name][prompt.id] = servers[name].ask(prompt.text, max_tokens=max_tokens, temperature=0.0)
        if watch is not None:
            watch("answers", number + 1, len(prompts))
    checks = [_greedy(answers, tolerance), _logprobs(answers, tolerance)]
    if seeded:
        checks.append(_seeded(servers, prompts, max_tokens))
    if draws:
        checks.append(_drawn(servers, prompts, draws, watch))
    quality, quality_check = _quality(answers, references or {}, judge)
    if quality_check is not None:
        checks.append(quality_check)
    return EndpointValidation(
        mode=f"{speculative.url} against {baseline.url}",
        checks=[check for check in checks if check.cases],
        baseline_url=baseline.url,
        speculative_url=speculative.url,
        timing={name: _timing(list(answers[name].values())) for name in NAMES},
        quality=quality,
    )


def _greedy(answers: Mapping[str, Mapping[str, Said]], tolerance: float) -> Check:
    failures = []
    ties = 0
    for prompt, plain in answers["baseline"].items():
        fast = answers["speculative"][prompt]
        if (plain.text, plain.finish_reason) == (fast.text, fast.finish_reason):
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(plain.tokens, fast.tokens, strict=False)) if a[0] != b[0]),
            None,
        )
        behind = plain.tokens[place][2] if place is not None else None
        if behind is not None and behind < tolerance:
            ties += 1
        elif place is None and not plain.tokens:
            failures.append(f"prompt {prompt}: texts differ, and the server gives no log-probabilities to judge it by")
        elif place is None:
            failures.append(f"prompt {prompt}: same tokens, other text or reason ({fast.finish_reason})")
        else:
            failures.append(
                f"prompt {prompt}, token {place}: {fast.tokens[place][0]!r} instead of {plain.tokens[place][0]!r}, "
                f"which led by {behind}"
            )
    return Check(name="greedy text", cases=len(answers["baseline"]), ties=ties, failures=failures)


def _logprobs(answers: Mapping[str, Mapping[str, Said]], tolerance: float) -> Check:
    failures = []
    cases = 0
    for prompt, plain in answers["baseline"].items():
        for place, (a, b) in enumerate(zip(plain.tokens, answers["speculative"][prompt].tokens, strict=False)):
            if a[0] != b[0]:
                break
            cases += 1
            if abs(a[1] - b[1]) > tolerance:
                failures.append(f"prompt {prompt}, token {place}: log-probability {b[1]:.4f} instead of {a[1]:.4f}")
    return Check(name="log-probabilities", cases=cases, failures=failures)


def _seeded(servers: Mapping[str, Endpoint], prompts: Sequence[BenchPrompt], max_tokens: int) -> Check:
    failures = []
    for number, prompt in enumerate(prompts):
        plain, fast = (
            servers[name].ask(prompt.text, max_tokens=max_tokens, temperature=0.9, seed=number).text for name in NAMES
        )
        if plain != fast:
            failures.append(f"prompt {prompt.id}: seed {number} gives another text")
    return Check(name="seeded text", cases=len(prompts), failures=failures)


def _drawn(
    servers: Mapping[str, Endpoint],
    prompts: Sequence[BenchPrompt],
    draws: int,
    watch: Callable[[str, int, int], None] | None,
) -> Check:
    """The first words of answers at temperature 1, drawn from both."""
    tests = len(prompts)
    failures = []
    for number, prompt in enumerate(prompts):
        counts = []
        for name in NAMES:
            seen: Counter[str] = Counter()
            while sum(seen.values()) < draws:
                seen.update(servers[name].draw(prompt.text, 8, temperature=1.0, max_tokens=2))
            counts.append(seen)
        p = same_distribution(counts[0], counts[1])
        if p < ALPHA / tests:
            failures.append(f"prompt {prompt.id}: p = {p:.2g} that both draw from one distribution")
        if watch is not None:
            watch("draws", number + 1, tests)
    return Check(name="distribution of the first tokens", cases=tests, failures=failures)


def _quality(
    answers: Mapping[str, Mapping[str, Said]], references: Mapping[str, str], judge: Sequence[str] | None
) -> tuple[dict[str, dict[str, Interval]], Check | None]:
    """Measures of both servers; a measure fails where speculation is worse beyond what chance explains."""
    values: dict[str, dict[str, list[float]]] = {}
    for name in NAMES:
        for prompt, said in answers[name].items():
            found: dict[str, float] = {}
            if prompt in references:
                found |= rouge(said.text, references[prompt])
                found["exact match"] = float(exact_match(said.text, references[prompt]))
            if judge is not None:
                found["judge"] = float(passes(judge, said.text))
            for measure, value in found.items():
                values.setdefault(measure, {}).setdefault(name, []).append(value)
    failures = []
    for measure, own in values.items():
        worse = interval([b - a for a, b in zip(own["baseline"], own["speculative"], strict=True)])
        if worse.high < 0:
            failures.append(f"{measure}: worse by {-worse.mean:.4f} ({-worse.high:.4f} to {-worse.low:.4f})")
    quality = {measure: {name: interval(own[name]) for name in NAMES} for measure, own in values.items()}
    check = Check(name="quality", cases=len(values), failures=failures) if values else None
    return quality, check


def _timing(answers: Sequence[Said]) -> Timing:
    kept = [said for said in answers if len(said.moments) > 2]
    if not kept:
        return Timing(ttft_s=0.0, itl_s=0.0, gap_variation=0.0, tokens_per_second=0.0)
    counts = [(len(said.tokens) or len(said.moments)) - 1 for said in kept]
    spans = [said.moments[-1] - said.moments[0] for said in kept]
    return Timing(
        ttft_s=statistics.median(said.moments[0] for said in kept),
        itl_s=statistics.median(span / max(1, count) for span, count in zip(spans, counts, strict=True)),
        gap_variation=statistics.median(
            statistics.pstdev(said.gaps) / max(1e-9, statistics.fmean(said.gaps)) for said in kept
        ),
        tokens_per_second=sum(counts) / max(1e-9, sum(spans)),
    )
