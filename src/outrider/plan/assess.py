"""Output predictability before deployment: logged answers replayed through the proposers, no forward pass needed.

A proposer that names its tokens drafts the same whether its drafts are accepted or not, since it sees the text only. So
one walk over an answer, with a draft of the longest window at every token, says exactly what every smaller window would
have done: from each token the draft's first right tokens are accepted, one token of the target's own follows, and the
next pass starts there. That is what greedy serving of the same answer does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import BaseModel

from outrider.control import CostModel, Load
from outrider.models import Message
from outrider.plan.traffic import Exchange
from outrider.proposers import Context, Prediction, PromptLookup, Proposer, Suffix, SuffixStore, agreement

WINDOWS = range(1, 13)
STOP_BELOW = 0.3
"""Acceptance under which speculation is not worth deploying, where the cost of passes is not known."""
SHRINK_BELOW = 0.5
_DRAWS = 1000
_STORE = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as tokens."""

    category: str
    prompt: Sequence[int]
    tokens: Sequence[int]
    prediction: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Walk:
    """What one proposer drafted along one answer: at each token after the first, how long and how much of it right."""

    drafted: Sequence[int]
    right: Sequence[int]

    def steps(self, window: int) -> tuple[int, int, int]:
        """(passes, draft tokens verified, draft tokens accepted) with this largest window."""
        at = passes = drafted = accepted = 0
        while at < len(self.right):
            passes += 1
            left = len(self.right) - at - 1  # one token of what is left is the target's own
            verified = min(window, self.drafted[at], left)
            held = min(verified, self.right[at])
            drafted += verified
            accepted += held
            at += held + 1
        return passes, drafted, accepted

    def widths(self, window: int) -> list[int]:
        """Tokens in each pass."""
        at = 0
        found = []
        while at < len(self.right):
            verified = min(window, self.drafted[at], len(self.right) - at - 1)
            found.append(1 + verified)
            at += min(verified, self.right[at]) + 1
        return found


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What looking at the answers with the model and drafts showed; see `evaluate.foresee`."""

    entropy_nats: Sequence[float]
    """Mean entropy of the model over each answer's tokens."""
    top_share: Sequence[float]
    """Share of each answer's tokens that the model itself finds likeliest."""
    walks: dict[str, list[Walk]]
    """By draft."""
    seconds: dict[str, float]
    """That a token of each draft takes."""


class WindowResult(BaseModel):
    """One window over the answers of a group."""

    window: int
    acceptance: float | None
    """Accepted of drafted tokens."""
    tokens_per_pass: float
    tokens_per_pass_low: float
    tokens_per_pass_high: float
    """95% interval over answers (bootstrap)."""
    speedup: float | None
    """Expected decode speed over none, where the cost of passes is known."""
    speedup_low: float | None
    speedup_high: float | None


class ProposerResult(BaseModel):
    """One proposer over the answers of a group."""

    proposer: str
    acceptance_by_position: list[float | None]
    """Of the tokens at each position of a draft that were reached, the share that was right."""
    windows: list[WindowResult]
    best_window: int
    """Fastest where cost is known, else the widest whose acceptance is 0.5 or more; 0 for none."""


class Group(BaseModel):
    """A category, or all of the traffic."""

    name: str
    answers: int
    tokens: int
    proposers: list[ProposerResult]
    verdict: str
    """`deploy`, `deploy with K`, `do not deploy`, or `unclear`."""
    reason: str
    more_answers: int
    """Answers like these that would make an unclear verdict firm; 0 where it is."""
    entropy_nats: float | None = None
    """Mean entropy of the model over the answers' tokens, where it was asked."""
    top_share: float | None = None
    """Share of the answers' tokens that the model itself finds likeliest."""


class Assessment(BaseModel):
    """What `outrider assess --json` writes."""

    answers: int
    cost_curve: dict[int, float] | None
    """Seconds of a pass by width, relative to one token; None where it was not given."""
    overall: Group
    categories: list[Group]


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def chat(self, messages: Sequence[Message]) -> list[int]: ...


def answers_of(exchanges: Sequence[Exchange], encoder: Encoder, eos_ids: Sequence[int]) -> list[Answer]:
    """Tokens of logged traffic. An answer ends with the end-of-text token, as the model says it."""
    answers = []
    for exchange in exchanges:
        if exchange.messages:
            turns = [Message(role=turn["role"], content=turn["content"]) for turn in exchange.messages]
            prompt = encoder.chat(turns)
        else:
            prompt = encoder.encode(exchange.prompt)
        tokens = [*encoder.encode(exchange.response, special=False), *eos_ids[:1]]
        prediction = encoder.encode(exchange.prediction, special=False) if exchange.prediction else ()
        answers.append(Answer(exchange.category, prompt, tokens, prediction))
    return answers


def walk(proposer: Proposer, answer: Answer, name: str) -> Walk:
    """Draft at every token of an answer. The first token comes from the prompt's own pass."""
    tokens = [*answer.prompt, *answer.tokens[:1]]
    context = Context(name, tokens, len(answer.prompt), prediction=answer.prediction)
    drafted, right = [], []
    longest = WINDOWS[-1]
    for position in range(1, len(answer.tokens)):
        (draft,) = proposer.propose([context], [longest])
        held = agreement(draft.tokens, answer.tokens[position : position + longest])
        drafted.append(min(len(draft.tokens), len(answer.tokens) - position))
        right.append(held)
        tokens.append(answer.tokens[position])
    proposer.release(context)
    return Walk(drafted, right)


def assess(
    answers: Sequence[Answer],
    cost: CostModel | None = None,
    watch: Callable[[int, int], None] | None = None,
    *,
    foreseen: Foreseen | None = None,
    seed: int = 0,
) -> Assessment:
    """Replay answers, in the order of time, through lookup, suffix (cold and warm) and predictions where there are any.

    Args:
        answers: logged traffic.
        cost: what passes cost; without it the verdict goes by acceptance.
        watch: told how many are done.
        foreseen: what the model and drafts showed of the same answers.
        seed: of the bootstrap.
    """
    proposers: dict[str, Proposer] = {
        "lookup": PromptLookup(),
        "suffix": Suffix(),
        "suffix, warm": Suffix(SuffixStore(_STORE)),
    }
    if any(answer.prediction for answer in answers):
        proposers["prediction"] = Prediction()
    walks: dict[str, list[Walk]] = {name: [] for name in proposers}
    for number, answer in enumerate(answers):
        for name, proposer in proposers.items():
            walks[name].append(walk(proposer, answer, f"a{number}"))
        if watch is not None:
            watch(number + 1, len(answers))
    if foreseen is not None:
        walks |= foreseen.walks
    names = list(dict.fromkeys(answer.category for answer in answers))
    everything = range(len(answers))
    groups = [
        _group(name, answers, walks, [i for i in everything if answers[i].category == name], cost, seed, foreseen)
        for name in names
    ]
    curve = None
    if cost is not None:
        plain = cost.seconds(Load(1, 0, 1))
        curve = {width: cost.seconds(Load(width, 0, 1)) / plain for width in range(1, WINDOWS[-1] + 2)}
    return Assessment(
        answers=len(answers),
        cost_curve=curve,
        overall=_group("all", answers, walks, everything, cost, seed, foreseen),
        categories=groups,
    )


def _group(
    name: str,
    answers: Sequence[Answer],
    walks: dict[str, list[Walk]],
    chosen: Iterable[int],
    cost: CostModel | None,
    seed: int,
    foreseen: Foreseen | None,
) -> Group:
    indexes = list(chosen)
    drafting = foreseen.seconds if foreseen is not None else {}
    results = [
        _proposer(source, [own[i] for i in indexes], cost, seed, drafting.get(source, 0.0))
        for source, own in walks.items()
    ]
    verdict, reason, more = _verdict(results, len(indexes), cost is not None)
    return Group(
        name=name,
        answers=len(indexes),
        tokens=sum(len(answers[i].tokens) for i in indexes),
        proposers=results,
        verdict=verdict,
        reason=reason,
        more_answers=more,
        entropy_nats=_mean(foreseen.entropy_nats, indexes) if foreseen is not None else None,
        top_share=_mean(foreseen.top_share, indexes) if foreseen is not None else None,
    )


def _mean(values: Sequence[float], chosen: Sequence[int]) -> float:
    return sum(values[i] for i in chosen) / max(1, len(chosen))


def _proposer(name: str, walks: Sequence[Walk], cost: CostModel | None, seed: int, drafting: float) -> ProposerResult:
    windows = [_window(walks, window, cost, seed, drafting) for window in WINDOWS]
    reached = [sum(d > p and r >= p for w in walks for d, r in zip(w.drafted, w.right, strict=True)) for p in range(12)]
    held = [sum(r > p for w in walks for r in w.right) for p in range(12)]
    best = 0
    if cost is not None:
        fastest = max(windows, key=lambda result: result.speedup or 0.0)
        best = fastest.window if (fastest.speedup or 0.0) > 1.0 else 0
    else:
        best = max((w.window for w in windows if (w.acceptance or 0.0) >= SHRINK_BELOW), default=0)
        if best == 0 and (windows[0].acceptance or 0.0) >= STOP_BELOW:
            best = 1
    return ProposerResult(
        proposer=name,
        acceptance_by_position=[h / n if n else None for h, n in zip(held, reached, strict=True)],
        windows=windows,
        best_window=best,
    )


def _window(walks: Sequence[Walk], window: int, cost: CostModel | None, seed: int, drafting: float) -> WindowResult:
    steps = np.array([walk.steps(window) for walk in walks], float).reshape(-1, 3)
    tokens = np.array([len(walk.right) for walk in walks], float)
    passes, drafted, accepted = steps.T
    draws = np.random.default_rng(seed).integers(0, len(walks), (_DRAWS, len(walks)))
    low, middle, high = _ratio(tokens, passes, draws)
    speed: tuple[float | None, float | None, float | None] = (None, None, None)
    if cost is not None:
        known = {width: cost.seconds(Load(width, 0, 1)) for width in range(1, window + 2)}
        seconds = np.array([sum(known[w] + drafting * (w - 1) for w in walk.widths(window)) for walk in walks])
        speed = _ratio(tokens * known[1], seconds, draws)
    return WindowResult(
        window=window,
        acceptance=float(accepted.sum() / drafted.sum()) if drafted.sum() else None,
        tokens_per_pass=middle,
        tokens_per_pass_low=low,
        tokens_per_pass_high=high,
        speedup_low=speed[0],
        speedup=speed[1],
        speedup_high=speed[2],
    )


def _ratio(top: np.ndarray, bottom: np.ndarray, draws: np.ndarray) -> tuple[float, float, float]:
    """A ratio of sums with its 95% interval: (low, itself, high). 1 where there is nothing to divide."""
    if not bottom.sum():
        return 1.0, 1.0, 1.0
    drawn = bottom[draws].sum(axis=1)
    ratios = top[draws].sum(axis=1)[drawn > 0] / drawn[drawn > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(top.sum() / bottom.sum()), float(high)


def _verdict(results: Sequence[ProposerResult], answers: int, cost_known: bool) -> tuple[str, str, int]:
    """What to do, why, and how many more answers would make it firm."""
    if not cost_known:
        rates = {result.proposer: result.windows[3].acceptance or 0.0 for result in results}
        name = max(rates, key=rates.__getitem__)
        best = next(result for result in results if result.proposer == name)
        said = f"{name} has {rates[name]:.0%} of its tokens accepted at a window of 4"
        if rates[name] < STOP_BELOW:
            return "do not deploy", f"{said}, under 30%; give the cost of passes for a verdict by break-even", 0
        return f"deploy with {best.best_window or 1}", said, 0
    pairs = [(result, window) for result in results for window in result.windows]
    result, window = max(pairs, key=lambda pair: pair[1].speedup or 0.0)
    assert window.speedup is not None
    assert window.speedup_low is not None
    assert window.speedup_high is not None
    said = (
        f"{result.proposer} with a window of {window.window}: {window.speedup:.2f}x "
        f"({window.speedup_low:.2f} to {window.speedup_high:.2f})"
    )
    if window.speedup_low > 1.0:
        return f"deploy with {window.window}", said, 0
    if window.speedup <= 1.0:
        return "do not deploy", f"the best is {said}", 0
    half = (window.speedup_high - window.speedup_low) / 2
    more = math.ceil(answers * ((half / (window.speedup - 1.0)) ** 2 - 1.0)) if window.speedup > 1.001 else 10 * answers
    return "unclear", f"{said}, which may be none", max(1, more)
