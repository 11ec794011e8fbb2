"""`outrider assess`: does speculation pay for this traffic?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.options import DEFAULT_MODEL, Model
from outrider.cli.output import write
from outrider.errors import InvalidRequest


def parse_curve(text: str) -> dict[int, float]:
    """Read what passes cost by their tokens: `1=25,5=27,13=34`, in any unit.

    Raises:
        InvalidRequest: another form, no cost of 1, or a cost that is none.
    """
    curve = {}
    for entry in text.split(","):
        width, _, cost = entry.partition("=")
        try:
            curve[int(width)] = float(cost)
        except ValueError:
            raise InvalidRequest(f"--curve: {entry!r} is not TOKENS=COST, as 1=25,5=27,13=34") from None
    if 1 not in curve or not all(width >= 1 and 0 < cost < float("inf") for width, cost in curve.items()):
        raise InvalidRequest(f"--curve {text!r} needs the cost of 1 token, and costs over 0, as 1=25,5=27,13=34")
    return curve


def assess(
    traffic: Annotated[Path, typer.Option(help="Logged requests and answers, JSON lines, in the order of time.")],
    model: Model = DEFAULT_MODEL,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the model and measure what passes cost here.")
    ] = False,
    look: Annotated[
        bool, typer.Option("--look", help="Look at the answers with the model: entropy, and what --draft gets right.")
    ] = False,
    generate: Annotated[
        bool, typer.Option("--generate", help="The traffic has prompts alone: the model answers them first.")
    ] = False,
    draft: Annotated[
        list[str] | None, typer.Option("--draft", help="A draft to look with; implies --look; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer that --generate makes.", min=2)] = 128,
    curve: Annotated[str | None, typer.Option(help="What passes cost by tokens, as 1=25,5=27,13=34.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only so many lines.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
) -> None:
    """Say before deployment whether speculation pays for logged traffic, with which proposer and window.

    Without --look, --draft or --generate the model gives the tokenizer only. Without --measure or --curve the verdict
    goes by acceptance.

    Example: outrider assess --traffic log.jsonl --measure --html report.html
    """
    from outrider import console
    from outrider.control import CostModel
    from outrider.evaluate.foresee import answers_to, foresee, load
    from outrider.evaluate.prompts import read_prompts
    from outrider.models import Resolver, Tokenizer
    from outrider.plan import assess as replay
    from outrider.plan import read_traffic
    from outrider.plan.assess import answers_of
    from outrider.plan.report import html

    if measure and curve is not None:
        raise InvalidRequest("give --measure or --curve, not both")
    cost = CostModel(parse_curve(curve)) if curve is not None else None
    foreseen = None
    with console.progress() as shown:
        resolver = Resolver(progress=shown)
        files = resolver.resolve(model)
        if measure:
            from outrider.api import measured_cost

            cost = measured_cost(files)
        tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
        if generate:
            asked = read_prompts(traffic)[:limit]
            answers = answers_to(model, asked, max_tokens, lambda done, total: shown("generate", done, total))
        else:
            answers = answers_of(read_traffic(traffic, limit), tokenizer, files.manifest.eos_ids)
        if look or draft:
            target, drafts = load(files, tokenizer, [resolver.resolve_draft(name) for name in draft or []])
            foreseen = foresee(answers, target, drafts, lambda done, total: shown("look", done, total))
        found = replay(answers, cost, lambda done, total: shown("answers", done, total), foreseen=foreseen)
    console.out.print(console.assessment_table(found))
    for group in found.categories if len(found.categories) > 1 else ():
        console.out.print(f"{group.name}: [bold]{group.verdict}[/]: {group.reason}")
    console.out.print(f"all: [bold]{found.overall.verdict}[/]: {found.overall.reason}")
    if found.overall.more_answers:
        console.out.print(f"{found.overall.more_answers} more answers like these would tell")
    for path, text in (
        (json_file, found.model_dump_json(indent=2)),
        (html_file, html(found, f"{traffic.name}, {model}")),
    ):
        write(path, text + "\n")
