"""The best configuration for given traffic on the running machine, found by trying, with the evidence.

Every configuration answers the same prompts in batches of the sizes that are asked for; within one engine the modes
take turns. A configuration wins by the geometric mean of its speed over none at all sizes, and must not lose at any.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from outrider.api import Engine, Prompt, chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt

NOISE = 0.02
"""A ratio this little under 1 passes for no loss."""


class Trial(BaseModel):
    """One configuration at one batch size."""

    proposers: str
    draft: str | None
    mode: str
    batch: int
    tok_s: float
    """Tokens of all answers per second, prompts included; median over repeats."""
    ratio: float
    """Over none in the same engine."""
    spread: float


class Choice(BaseModel):
    """A configuration over all batch sizes."""

    proposers: str
    draft: str | None
    mode: str
    score: float
    """Geometric mean of the ratios."""
    worst: float
    """Lowest of them."""


class Tuning(BaseModel):
    """What `outrider tune --json` writes."""

    model: str
    prompts: int
    max_tokens: int
    repeat: int
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    commit: str | None
    trials: list[Trial]
    ranking: list[Choice]
    best: Choice

    def toml(self) -> str:
        """Settings for `outrider serve --config`."""
        lines = [
            f"# {self.best.score:.2f}x over no speculation on {self.prompts} prompts, {self.best.worst:.2f}x at worst",
            f"model = {json.dumps(self.model)}",
            f"speculation = {json.dumps(self.best.mode)}",
            f"proposers = {json.dumps(self.best.proposers)}",
        ]
        if self.best.draft is not None:
            lines.append(f"draft = {json.dumps(self.best.draft)}")
        return "\n".join(lines) + "\n"


def batch_speed(engine: Engine, prompts: Sequence[Prompt], mode: str, fields: Mapping[str, Any]) -> tuple[float, float]:
    """Answer prompts together: tokens per second, prompts included, and draft tokens for each decoding pass."""
    before = engine.snapshot()
    started = time.perf_counter()
    answers = engine.generate_batch(prompts, speculation=mode, **fields)
    seconds = time.perf_counter() - started
    after = engine.snapshot()
    passes = sum(answer.usage.passes for answer in answers)
    return sum(len(answer.token_ids) for answer in answers) / seconds, (after.drafted - before.drafted) / max(1, passes)


def tune(
    model: str,
    prompts: Sequence[BenchPrompt],
    *,
    proposers: Sequence[str],
    drafts: Sequence[str | None],
    modes: Sequence[str],
    batches: Sequence[int],
    max_tokens: int = 64,
    repeat: int = 3,
    watch: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Try every configuration.

    Args:
        model: as everywhere.
        prompts: the traffic.
        proposers: lists of names by comma; an empty text for none.
        drafts: names of drafts, None for none.
        modes: of speculation, `off` aside.
        batches: requests at once.
        max_tokens: of each answer.
        repeat: times that everything is done.
        watch: told how many batches are done, of how many.
    """
    asked = [chat(prompt.text) for prompt in prompts]
    groups = {size: [asked[i : i + size] for i in range(0, len(asked), size)] for size in batches}
    every = ("off", *modes)
    setups = [(names, draft) for draft in drafts for names in proposers if names or draft]
    total = len(setups) * len(every) * repeat * sum(len(own) for own in groups.values())
    done = 0
    trials: list[Trial] = []
    fields = {"max_tokens": max_tokens}
    for names, draft in setups:
        with Engine(
            model, proposers=names, draft=draft, prefix_caching=False, store_tokens=0, max_running=max(batches)
        ) as engine:
            for mode in every:
                engine.generate(chat("Count from one to twenty."), max_tokens=24, speculation=mode)
            speeds: dict[tuple[str, int], list[float]] = {(mode, size): [] for mode in every for size in batches}
            for number in range(repeat):
                for size, own in groups.items():
                    taken = dict.fromkeys(every, 0.0)
                    for place, group in enumerate(own):
                        shift = (number + place) % len(every)
                        for mode in (*every[shift:], *every[:shift]):
                            speed, _ = batch_speed(engine, group, mode, fields)
                            taken[mode] += 1.0 / speed
                            done += 1
                            if watch is not None:
                                watch(done, total)
                    for mode in every:
                        speeds[mode, size].append(len(own) / taken[mode])
        for (mode, size), values in speeds.items():
            middle = statistics.median(values)
            trials.append(
                Trial(
                    proposers=names,
                    draft=draft,
                    mode=mode,
                    batch=size,
                    tok_s=middle,
                    ratio=middle / statistics.median(speeds["off", size]),
                    spread=(max(values) - min(values)) / middle,
                )
            )
    ranking = rank(trials)
    return Tuning(
        model=model,
        prompts=len(prompts),
        max_tokens=max_tokens,
        repeat=repeat,
        **provenance(),  # type: ignore[arg-type]  # pydantic checks them
        trials=trials,
        ranking=ranking,
        best=ranking[0],
    )


def rank(trials: Sequence[Trial]) -> list[Choice]:
    """Configurations from best to worst; those that lose at no batch size come first, and none at all is one."""
    by_setup: dict[tuple[str, str | None, str], list[Trial]] = {}
    for trial in trials:
        key = ("", None, "off") if trial.mode == "off" else (trial.proposers, trial.draft, trial.mode)
        by_setup.setdefault(key, []).append(trial)
    choices = [
        Choice(
            proposers=names,
            draft=draft,
            mode=mode,
            score=math.exp(statistics.fmean(math.log(trial.ratio) for trial in own)),
            worst=min(trial.ratio for trial in own),
        )
        for (names, draft, mode), own in by_setup.items()
    ]
    return sorted(choices, key=lambda choice: (choice.worst >= 1.0 - NOISE, choice.score), reverse=True)
