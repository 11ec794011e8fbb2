"""Speculation against quantization, on the same prompts in one run: what each gains, and what it costs in text.

Quantization makes every pass cheaper and changes what the model says. Speculation makes fewer passes and does not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from pydantic import BaseModel

from outrider.api import Engine, chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt
from outrider.evaluate.text import Interval, interval, rouge
from outrider.params import SamplingParams

FULL = "full"


class Contender(BaseModel):
    """One way to run the model."""

    name: str
    model: str
    speculation: str
    draft: str | None = None


class ComparedRow(BaseModel):
    """What one contender did."""

    model: str
    speculation: str
    tok_s: float
    """Decoded tokens per second, median over repeats."""
    ratio: float
    """Over the full model without speculation."""
    spread: float
    weights_mib: float
    identical_share: float
    """Share of texts that are the full model's, token for token."""
    same_tokens: Interval
    """Share of each text up to the first token that is not the full model's."""
    rouge_l: float
    """ROUGE-L against references, or against the full model's texts where there are none."""
    rouge_l_interval: Interval
    perplexity: float
    """Of the full model's texts."""


class Comparison(BaseModel):
    """What `outrider compare --json` writes."""

    prompts: int
    references: int
    """Prompts that had one; ROUGE is against the full model's texts where there is none."""
    max_tokens: int
    repeat: int
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    commit: str | None
    rows: dict[str, ComparedRow]

    @property
    def lossless(self) -> str:
        """The fastest contender whose texts are all the full model's."""
        kept = {name: row for name, row in self.rows.items() if row.identical_share == 1.0}
        return max(kept, key=lambda name: kept[name].ratio)


def contenders(full: str, quantized: Mapping[str, str], draft: str | None, mode: str) -> list[Contender]:
    """The full model and its quantized forms, each without and with speculation.

    Args:
        full: the model whose text counts.
        quantized: by label, as `{"8-bit": "smollm2-135m-q8"}`.
        draft: what drafts, beside lookup and suffix; for the full model only.
        mode: of speculation.
    """
    found = [
        Contender(name=FULL, model=full, speculation="off", draft=draft),
        Contender(name=f"{FULL} + speculation", model=full, speculation=mode, draft=draft),
    ]
    for label, model in quantized.items():
        found.append(Contender(name=label, model=model, speculation="off"))
        found.append(Contender(name=f"{label} + speculation", model=model, speculation=mode))
    return found


@dataclass(slots=True)
class _Taken:
    tokens: dict[str, list[int]] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)


def compare(
    chosen: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    *,
    references: Mapping[str, str] | None = None,
    max_tokens: int = 96,
    repeat: int = 3,
    kv_memory: int = 256 << 20,
    watch: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Run every contender on every prompt in turn.

    Args:
        chosen: the first is the one whose text counts.
        prompts: what is asked.
        references: good answers by prompt id, for ROUGE.
        max_tokens: of each answer.
        repeat: times that everything is done.
        kv_memory: of each engine.
        watch: told how many answers are done, of how many.
    """
    params = SamplingParams(max_tokens=max_tokens)
    taken = {each.name: _Taken() for each in chosen}
    total, done = len(chosen) * len(prompts) * repeat, 0
    with ExitStack() as stack:
        engines: dict[tuple[str, str | None], Engine] = {}
        for each in chosen:
            key = each.model, each.draft
            if key not in engines:
                engines[key] = stack.enter_context(
                    Engine(each.model, draft=each.draft, store_tokens=0, prefix_caching=False, kv_memory=kv_memory)
                )
            engines[key].generate(chat("Count from one to twenty."), max_tokens=24, speculation=each.speculation)
        for round_number in range(repeat):
            for each in chosen:
                taken[each.name].seconds.append(0.0)
                taken[each.name].counted.append(0)
            for number, prompt in enumerate(prompts):
                shift = (round_number + number) % len(chosen)
                for each in (*chosen[shift:], *chosen[:shift]):
                    engine = engines[each.model, each.draft]
                    answer = engine.generate(chat(prompt.text), params, speculation=each.speculation).completions[0]
                    own = taken[each.name]
                    own.tokens.setdefault(prompt.id, answer.token_ids)
                    own.text.setdefault(prompt.id, answer.text)
                    own.seconds[-1] += answer.timings.decode or 0.0
                    own.counted[-1] += len(answer.tokens) - 1
                    done += 1
                    if watch is not None:
                        watch(done, total)
        base = taken[chosen[0].name]
        first_speed = _speed(base)
        perplexities: dict[tuple[str, str | None], float] = {}
        rows = {}
        for each in chosen:
            key = each.model, each.draft
            if key not in perplexities:
                perplexities[key] = perplexity(engines[key], prompts, base.tokens)
            rows[each.name] = _row(
                each, taken[each.name], base, first_speed, references or {}, perplexities[key], engines[key]
            )
    return Comparison(
        prompts=len(prompts),
        references=sum(prompt.id in (references or {}) for prompt in prompts),
        max_tokens=max_tokens,
        repeat=repeat,
        **provenance(),  # type: ignore[arg-type]  # pydantic checks them
        rows=rows,
    )


def perplexity(engine: Engine, prompts: Sequence[BenchPrompt], texts: Mapping[str, Sequence[int]]) -> float:
    """Of texts under a model: the exponential of the mean loss of a token."""
    loss, count = 0.0, 0
    for prompt in prompts:
        ids = engine.encode(chat(prompt.text))
        scored = engine.generate([*ids, *texts[prompt.id]], max_tokens=0, echo=True, logprobs=0, speculation="off")
        found = scored.completions[0].prompt_logprobs or ()
        for entry in found[len(ids) :]:
            assert entry is not None
            loss -= entry.logprob
            count += 1
    return math.exp(loss / max(1, count))


def _speeds(taken: _Taken) -> list[float]:
    return [count / seconds for count, seconds in zip(taken.counted, taken.seconds, strict=True) if seconds]


def _speed(taken: _Taken) -> float:
    return statistics.median(_speeds(taken))


def _row(
    each: Contender,
    own: _Taken,
    base: _Taken,
    first_speed: float,
    references: Mapping[str, str],
    ppl: float,
    engine: Engine,
) -> ComparedRow:
    shares = [_same_share(own.tokens[name], base.tokens[name]) for name in base.tokens]
    scores = [rouge(own.text[name], references.get(name, base.text[name]))["rougeL"] for name in base.text]
    speeds = _speeds(own)
    scored = interval(scores)
    return ComparedRow(
        model=each.model,
        speculation=each.speculation,
        tok_s=_speed(own),
        ratio=_speed(own) / first_speed,
        spread=(max(speeds) - min(speeds)) / statistics.median(speeds),
        weights_mib=engine.weights_bytes / 2**20,
        identical_share=sum(own.tokens[name] == base.tokens[name] for name in base.tokens) / len(base.tokens),
        same_tokens=interval(shares),
        rouge_l=scored.mean,
        rouge_l_interval=scored,
        perplexity=ppl,
    )


def _same_share(tokens: Sequence[int], wanted: Sequence[int]) -> float:
    same = next((i for i, (a, b) in enumerate(zip(tokens, wanted, strict=False)) if a != b), None)
    if same is None:
        same = min(len(tokens), len(wanted))
    return same / max(1, len(wanted))
