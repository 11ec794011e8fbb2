"""Modes side by side: every prompt in every mode in turn, one engine, one run, ratios of medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from pydantic import BaseModel

from outrider.api import Engine, chat
from outrider.errors import InvalidRequest
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt
from outrider.evaluate.ties import find_difference
from outrider.params import SamplingParams, Speculation


class ModeResult(BaseModel):
    """One mode over some prompts."""

    tok_s: float
    """Decoded tokens per second (after the first token), median over repeats."""
    ratio: float
    """`tok_s` over that of the first mode."""
    paired_ratio: float
    """Median over repeats of the speed over the first mode's in the same repeat: what the machine's slow minutes do to
    both of them cancels out."""
    spread: float
    """Highest minus lowest `tok_s` over repeats, as a share of the median; 0 with one repeat."""
    ttft_s: float
    """Median time to first token."""
    acceptance_rate: float | None
    """Accepted of drafted tokens; None where nothing was drafted."""
    acceptance_length: float
    """Tokens emitted per target pass after the first."""
    identical: bool
    """Whether every text is the first mode's, token for token."""
    overhead_fraction: float
    """Share of step time spent outside the model's forward pass."""
    draft_fraction: float
    """Share of step time spent asking proposers; part of the overhead."""
    coordination_ms: float
    """Milliseconds of a step that went neither into the target nor into a draft's own passes."""


class BenchReport(BaseModel):
    """What `outrider bench --json` writes."""

    model: str
    modes: list[str]
    prompts: int
    max_tokens: int
    repeat: int
    seed: int
    temperature: float
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    commit: str | None
    overall: dict[str, ModeResult]
    categories: dict[str, dict[str, ModeResult]]
    different: dict[str, dict[str, str]]
    """For each mode the prompts whose text was not the first mode's, and whether rounding explains it."""
    reliability: dict[str, float]
    """By proposer the mean distance of predicted from observed acceptance, over ten bins of the prediction."""
    control: dict[str, int]
    """What guard, rule and policy did in all modes together; see `ControlCounts`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt in one mode, once."""

    prompt: BenchPrompt
    mode: str
    repeat: int
    tokens: tuple[int, ...]
    decode_s: float
    ttft_s: float
    accepted: int
    rejected: int
    passes: int
    step_s: float
    infer_s: float
    draft_s: float
    coordination_s: float
    steps: int


Watcher = Callable[[int, int, Sample], None]
"""Told after each sample: how many are done, of how many, and the sample."""


def measure(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    modes: Sequence[str],
    params: SamplingParams,
    repeat: int = 1,
    watch: Watcher | None = None,
) -> list[Sample]:
    """Run every prompt in every mode, `repeat` times; the modes' order turns so that none is always first.

    Raises:
        InvalidRequest: a mode that does not exist or stands twice, or no modes.
    """
    if not modes or len(set(modes)) != len(modes):
        raise InvalidRequest(f"modes {','.join(modes)!r} must be one or more different modes")
    for mode in modes:
        Speculation.parse(mode)
    for mode in modes:  # kernels are compiled on first use, one for each width
        engine.generate(chat("Count from one to twenty."), max_tokens=24, speculation=mode)
    samples: list[Sample] = []
    total = len(prompts) * len(modes) * repeat
    for round_number in range(repeat):
        for number, prompt in enumerate(prompts):
            shift = (round_number + number) % len(modes)
            for mode in (*modes[shift:], *modes[:shift]):
                samples.append(_sample(engine, prompt, mode, round_number, params))
                if watch is not None:
                    watch(len(samples), total, samples[-1])
    return samples


def _sample(engine: Engine, prompt: BenchPrompt, mode: str, repeat: int, params: SamplingParams) -> Sample:
    before = engine.snapshot()
    answer = engine.generate(chat(prompt.text), params, speculation=mode).completions[0]
    after = engine.snapshot()
    return Sample(
        prompt=prompt,
        mode=mode,
        repeat=repeat,
        tokens=tuple(answer.token_ids),
        decode_s=answer.timings.decode or 0.0,
        ttft_s=answer.timings.ttft or 0.0,
        accepted=answer.usage.accepted,
        rejected=answer.usage.rejected,
        passes=answer.usage.passes,
        step_s=after.seconds - before.seconds,
        infer_s=after.infer_seconds - before.infer_seconds,
        draft_s=after.draft_seconds - before.draft_seconds,
        coordination_s=after.coordination_seconds - before.coordination_seconds,
        steps=after.steps - before.steps,
    )


def summarise(samples: Sequence[Sample], modes: Sequence[str]) -> dict[str, ModeResult]:
    """One result for each mode, over all the samples given."""
    first_texts = {s.prompt.id: s.tokens for s in samples if s.mode == modes[0] and s.repeat == 0}
    speeds = {mode: _speeds([s for s in samples if s.mode == mode]) for mode in modes}
    base = statistics.median(speeds[modes[0]])
    results = {}
    for mode in modes:
        own = [s for s in samples if s.mode == mode]
        median = statistics.median(speeds[mode])
        drafted = sum(s.accepted + s.rejected for s in own)
        passes = sum(s.passes for s in own)
        results[mode] = ModeResult(
            tok_s=median,
            ratio=median / base if base else 0.0,
            paired_ratio=statistics.median(
                ours / theirs if theirs else 0.0 for ours, theirs in zip(speeds[mode], speeds[modes[0]], strict=True)
            ),
            spread=(max(speeds[mode]) - min(speeds[mode])) / median if median else 0.0,
            ttft_s=statistics.median(s.ttft_s for s in own),
            acceptance_rate=sum(s.accepted for s in own) / drafted if drafted else None,
            acceptance_length=sum(len(s.tokens) - 1 for s in own) / passes if passes else 1.0,
            identical=all(s.tokens == first_texts[s.prompt.id] for s in own),
            overhead_fraction=1.0 - sum(s.infer_s for s in own) / sum(s.step_s for s in own),
            draft_fraction=sum(s.draft_s for s in own) / sum(s.step_s for s in own),
            coordination_ms=1e3 * sum(s.coordination_s for s in own) / sum(s.steps for s in own),
        )
    return results


def _speeds(samples: Sequence[Sample]) -> list[float]:
    """Tokens per second of each repeat, over all its prompts together."""
    by_repeat: dict[int, list[Sample]] = {}
    for sample in samples:
        by_repeat.setdefault(sample.repeat, []).append(sample)
    speeds = []
    for group in by_repeat.values():
        seconds = sum(s.decode_s for s in group)
        speeds.append(sum(len(s.tokens) - 1 for s in group) / seconds if seconds else 0.0)
    return speeds


def report(
    engine: Engine, samples: Sequence[Sample], modes: Sequence[str], params: SamplingParams, repeat: int
) -> BenchReport:
    """Put the samples together, overall and by category."""
    categories = list(dict.fromkeys(s.prompt.category for s in samples))
    return BenchReport(
        model=engine.manifest.name,
        modes=list(modes),
        prompts=len({s.prompt.id for s in samples}),
        max_tokens=params.max_tokens or 0,
        repeat=repeat,
        seed=params.seed or 0,
        temperature=params.temperature,
        **provenance(),  # type: ignore[arg-type]  # pydantic checks them
        overall=summarise(samples, modes),
        categories={name: summarise([s for s in samples if s.prompt.category == name], modes) for name in categories},
        different={mode: _differences(engine, samples, mode, modes[0], params) for mode in modes},
        reliability=engine.controller.reliability(),
        control=asdict(engine.controller.counts),
    )


def _differences(
    engine: Engine, samples: Sequence[Sample], mode: str, first_mode: str, params: SamplingParams
) -> dict[str, str]:
    """Judge each prompt whose text in this mode is not the first mode's."""
    first_texts = {s.prompt.id: s.tokens for s in samples if s.mode == first_mode and s.repeat == 0}
    found = {}
    for sample in samples:
        if sample.mode == mode and sample.prompt.id not in found:
            prompt = engine.encode(chat(sample.prompt.text))
            difference = find_difference(engine, prompt, first_texts[sample.prompt.id], sample.tokens, params)
            if difference is not None:
                found[sample.prompt.id] = str(difference)
    return found
