"""`outrider compare`: speculation against quantization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.output import write
from outrider.errors import InvalidRequest


def parse_quantized(entries: list[str]) -> dict[str, str]:
    """Read `LABEL=MODEL` entries.

    Raises:
        InvalidRequest: another form.
    """
    found = {}
    for entry in entries:
        label, sign, model = entry.partition("=")
        if not (label and sign and model):
            raise InvalidRequest(f"--quantized {entry!r} is not LABEL=MODEL, as 4-bit=smollm2-135m-q4")
        found[label] = model
    return found


def read_references(path: Path) -> dict[str, str]:
    """Read reference answers, JSON lines with `question_id` and `reference`.

    Raises:
        InvalidRequest: the file cannot be read or has another form.
    """
    found = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                entry = json.loads(line)
                reference = entry["reference"]
                text = "\n".join(reference) if isinstance(reference, list) else str(reference)
                found[str(entry.get("question_id", entry.get("id")))] = text
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} has no references ({error!r}); a line has question_id and reference") from None
    return found


def compare(
    prompts: Annotated[Path, typer.Option(help="JSON lines: Spec-Bench's format, or {'prompt': ...}.")],
    model: Annotated[str, typer.Option("-m", "--model", help="The full model, whose text counts.")] = "smollm2-135m",
    quantized: Annotated[
        list[str] | None, typer.Option(help="A quantized form of it as LABEL=MODEL; may be repeated.")
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="What drafts for the full model.")] = None,
    speculation: Annotated[str, typer.Option(help="Mode of speculation.")] = "auto",
    references: Annotated[Path | None, typer.Option(help="Reference answers, for ROUGE.", dir_okay=False)] = None,
    per_category: Annotated[int | None, typer.Option(help="Prompts of each category.", min=1)] = None,
    only: Annotated[str | None, typer.Option(help="Only prompts of this category.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 96,
    repeat: Annotated[int, typer.Option(help="Times that everything is done.", min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
) -> None:
    """Compare speculation with quantization on the same prompts in one run: speed, memory, text.

    Example: outrider compare --prompts spec_bench.jsonl --per-category 1 --quantized 4-bit=smollm2-135m-q4
    """
    from outrider import console
    from outrider.evaluate.compare import compare as run
    from outrider.evaluate.compare import contenders
    from outrider.evaluate.prompts import read_prompts

    asked = [p for p in read_prompts(prompts, per_category) if only is None or p.category == only]
    if not asked:
        raise InvalidRequest(f"{prompts} has no prompts of category {only!r}")
    forms = parse_quantized(quantized) if quantized else {"8-bit": f"{model}-q8", "4-bit": f"{model}-q4"}
    good = read_references(references) if references is not None else {}
    with console.progress() as shown:
        found = run(
            contenders(model, forms, draft, speculation),
            asked,
            references=good,
            max_tokens=max_tokens,
            repeat=repeat,
            watch=lambda done, total: shown("answers", done, total),
        )
    console.out.print(console.comparison_table(found))
    write(json_file, found.model_dump_json(indent=2) + "\n")
