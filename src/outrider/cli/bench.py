"""`outrider bench` and `outrider demo`: modes side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import options
from outrider.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_NAMES,
    DraftName,
    KVMemory,
    KVPrecision,
    Model,
    Proposers,
    Threads,
)
from outrider.cli.output import write


def bench(
    prompts: Annotated[Path, typer.Option(help="JSON lines: Spec-Bench's format, or {'prompt': ...}.")],
    model: Model = DEFAULT_MODEL,
    modes: Annotated[str, typer.Option(help="Modes by comma; the first is the baseline.")] = "off,fixed:4",
    per_category: Annotated[int | None, typer.Option(help="Prompts of each category.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    repeat: Annotated[int, typer.Option(help="Times that everything is done.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of every request.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    kv_memory: KVMemory = None,
    kv_precision: KVPrecision = "f16",
    threads: Threads = None,
) -> None:
    """Measure modes side by side: prompt by prompt in every mode, one engine, one run.

    Example: outrider bench --prompts spec_bench.jsonl --per-category 1 --modes off,fixed:4 --json out.json
    """
    from outrider import console
    from outrider.evaluate import bench as benchmark
    from outrider.evaluate.prompts import read_prompts
    from outrider.params import SamplingParams

    chosen = [mode.strip() for mode in modes.split(",") if mode.strip()]
    asked = read_prompts(prompts, per_category)
    params = SamplingParams(max_tokens=max_tokens, seed=seed, temperature=temperature)
    # what one mode leaves behind must not help the next: no prefix cache, and no memory of answers
    alone = {"prefix_caching": False, "store_tokens": 0, "proposers": proposers, "draft": draft}
    with options.open_engine(model, kv_memory, kv_precision, threads, **alone) as engine:
        with console.progress() as shown:
            samples = benchmark.measure(
                engine,
                asked,
                chosen,
                params,
                repeat,
                watch=lambda done, total, sample: shown(f"{sample.prompt.category}, {sample.mode}", done, total),
            )
        report = benchmark.report(engine, samples, chosen, params, repeat)
    console.out.print(console.bench_table(report))
    for mode, different in report.different.items():
        for prompt_id, verdict in different.items():
            console.out.print(f"{mode}: prompt {prompt_id} differs from {chosen[0]}: {verdict}")
    write(json_file, report.model_dump_json(indent=2) + "\n")


def demo(
    model: Model = DEFAULT_MODEL,
    draft: DraftName = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=16)] = 128,
) -> None:
    """Three prompts with and without speculation, side by side and live, then a table."""
    from outrider import console
    from outrider.demo import run_demo

    with options.open_engine(model, None, "f16", None, draft=draft, prefix_caching=False, store_tokens=0) as engine:
        run_demo(engine, console.out, max_tokens)
