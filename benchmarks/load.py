"""Throughput by number of running sequences, mixed and adversarial traffic: `auto` and `fixed:4` against `off`.

Modes are interleaved.

python benchmarks/load.py --prompts spec_bench.jsonl --json benchmarks/results/load.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from outrider.api import Engine, Prompt, chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts

SIZES = (1, 2, 4, 8)
MODES = ("off", "fixed:4", "auto")


def full_batch_speed(engine: Engine, prompts: list[Prompt], size: int, mode: str, **fields: Any) -> tuple[float, float]:
    """Tokens per second of the steps in which as many sequences decode as may, and draft tokens for each of them.

    Other steps do not count: answers of equal length that start together end together without speculation, and leave
    a ragged end with it, which traffic that goes on has not.
    """
    before = engine.stats.recent[-1].started
    engine.generate_batch(prompts, speculation=mode, **fields)
    steps = [step for step in engine.stats.recent if step.started > before and step.decoding == size]
    emitted, drafted = sum(step.emitted for step in steps), sum(step.drafted for step in steps)
    return emitted / sum(step.seconds for step in steps), drafted / (size * len(steps))


def compare(engine: Engine, prompts: list[Prompt], size: int, repeat: int, **fields: Any) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {mode: [] for mode in MODES}
    windows: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(repeat):
        for mode in MODES[number % 3 :] + MODES[: number % 3]:
            speed, window = full_batch_speed(engine, prompts, size, mode, **fields)
            speeds[mode].append(speed)
            windows[mode].append(window)
    median = {mode: statistics.median(values) for mode, values in speeds.items()}
    paired = {mode: [a / b for a, b in zip(values, speeds["off"], strict=True)] for mode, values in speeds.items()}
    return {
        "tok_s": {mode: round(value, 1) for mode, value in median.items()},
        # of neighbours in time, so that a slow minute falls on both
        "ratio": {mode: round(statistics.median(values), 3) for mode, values in paired.items()},
        "ratios": {mode: [round(value, 3) for value in values] for mode, values in paired.items()},
        "spread": {mode: round((max(v) - min(v)) / median[mode], 2) for mode, v in speeds.items()},
        "mean_window": {mode: round(statistics.median(values), 2) for mode, values in windows.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    by_category = {prompt.category: chat(prompt.text) for prompt in read_prompts(args.prompts, 1)}
    mixed: list[Prompt] = [by_category[name] for name in ("coding", "extraction", "qa", "translation", "writing")]
    mixed += [by_category[name] for name in ("math", "stem", "roleplay")]
    quoting = [chat(f"Repeat word for word: {text}") for text in (
        "The ferry leaves at a quarter past seven, calls at both islands, and is back in the harbour before noon.",
        "Tenants must give three months of notice in writing, and the notice must name the last day of the lease.",
    )]  # fmt: skip
    rng = np.random.default_rng(0)
    random_tokens = [rng.integers(20, 49_000, 100).tolist() for _ in range(2)]
    result: dict[str, Any] = {"what": "throughput of full batches, decoding", **provenance(), "batch": {}}
    for size, stream in [*((size, mixed * (1 if size < 4 else 2)) for size in SIZES), (4, [*quoting, *mixed[4:6]] * 4)]:
        with Engine(args.model, prefix_caching=False, store_tokens=0, max_running=size) as engine:
            for mode in MODES:
                engine.generate_batch(stream, max_tokens=4, speculation=mode)
            found = compare(engine, stream, size, args.repeat, max_tokens=48, ignore_eos=stream[0] is mixed[0])
            if stream[0] is mixed[0]:
                result["batch"][size] = found
            else:
                result["two quoting, two free"] = found
            if size == 1:
                same = {"ignore_eos": True, "max_tokens": 64}
                result["random tokens"] = compare(engine, random_tokens, 1, args.repeat, **same)
                hot = {"temperature": 1.5, "seed": 1, "ignore_eos": True, "max_tokens": 96}
                result["temperature 1.5"] = compare(engine, mixed[:2], 1, args.repeat, **hot)
        print(json.dumps(result, indent=2), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
