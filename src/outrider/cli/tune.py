"""`outrider tune`: the best configuration for given traffic on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.output import write
from outrider.errors import InvalidRequest


def tune(
    prompts: Annotated[Path, typer.Option(help="Your traffic: JSON lines, Spec-Bench's format or {'prompt': ...}.")],
    model: Annotated[str, typer.Option("-m", "--model", help="The model, named as elsewhere.")] = "smollm2-135m",
    proposers: Annotated[
        list[str] | None, typer.Option(help="A list of proposers by comma to try; may be repeated.")
    ] = None,
    draft: Annotated[list[str] | None, typer.Option("--draft", help="A draft to try; may be repeated.")] = None,
    modes: Annotated[str, typer.Option(help="Modes to try, by comma.")] = "auto,fixed:2,fixed:4,fixed:8",
    batches: Annotated[str, typer.Option(help="Requests at once, by comma.")] = "1,4",
    per_category: Annotated[int | None, typer.Option(help="Prompts of each category.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    repeat: Annotated[int, typer.Option(help="Times that everything is done.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write settings for serve --config here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the evidence to this file.")] = None,
) -> None:
    """Find the best proposers, draft, mode and window for your traffic on this machine, by trying them all.

    Example: outrider tune --prompts traffic.jsonl --draft smollm2-135m-draft --out serve.toml
    """
    from outrider import console
    from outrider.evaluate.prompts import read_prompts
    from outrider.evaluate.tune import tune as search
    from outrider.params import Speculation

    asked = read_prompts(prompts, per_category)
    chosen = [mode.strip() for mode in modes.split(",") if mode.strip() and mode.strip() != "off"]
    for mode in chosen:
        Speculation.parse(mode)
    try:
        sizes = sorted({int(part) for part in batches.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or not chosen:
        raise InvalidRequest(f"--batches {batches!r} and --modes {modes!r} must name sizes from 1 on, and modes")
    with console.progress() as shown:
        found = search(
            model,
            asked,
            proposers=proposers or ["prediction,suffix,lookup", "lookup"],
            drafts=[None, *(draft or [])],
            modes=chosen,
            batches=sizes,
            max_tokens=max_tokens,
            repeat=repeat,
            watch=lambda done, total: shown("batches", done, total),
        )
    console.out.print(console.tuning_table(found))
    for path, text in ((out, found.toml()), (json_file, found.model_dump_json(indent=2) + "\n")):
        write(path, text)
