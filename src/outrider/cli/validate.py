"""`outrider validate`: is the text with speculation that without it?"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.output import write
from outrider.errors import InvalidRequest

if TYPE_CHECKING:
    from outrider.evaluate.prompts import BenchPrompt
    from outrider.evaluate.validate import Validation


def validate(
    prompts: Annotated[Path, typer.Option(help="JSON lines: Spec-Bench's format, or {'prompt': ...}.")],
    model: Annotated[str, typer.Option("-m", "--model", help="The model, named as elsewhere.")] = "smollm2-135m",
    mode: Annotated[str, typer.Option(help="The speculation under test; a fixed window tries hardest.")] = "fixed:4",
    verification: Annotated[str, typer.Option(help="coupled (reproducible), rejection or block.")] = "coupled",
    proposers: Annotated[str, typer.Option(help="What guesses tokens, by comma.")] = "prediction,suffix,lookup",
    draft: Annotated[str | None, typer.Option("--draft", help="What drafts: a model or a draft head.")] = None,
    per_category: Annotated[int, typer.Option(help="Prompts of each category.", min=1)] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=8)] = 48,
    draws: Annotated[int, typer.Option(help="Draws of each distribution test.", min=40)] = 200,
    baseline_url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible server without speculation, as http://host:port/v1.")
    ] = None,
    speculative_url: Annotated[str | None, typer.Option(help="The same with speculation.")] = None,
    served_model: Annotated[str | None, typer.Option(help="Its name at both; by default the first they list.")] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Both servers promise the same text for the same seed.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="Log-probabilities of servers closer than this are tied.", min=0.0)
    ] = 0.1,
    references: Annotated[
        Path | None, typer.Option(help="Reference answers, for ROUGE and exact match.", dir_okay=False)
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="A command that reads an answer and exits with 0 where it is good.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit's XML to this file.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
) -> None:
    """Compare answers with speculation to those without: text, stops, log-probabilities, distribution.

    Either of a model here, or of two servers, whatever engine they run. The exit status is 1 when a check fails.
    OUTRIDER_BASELINE_KEY and OUTRIDER_SPECULATIVE_KEY are sent to the servers.

    Example: outrider validate --prompts prompts.jsonl --mode auto --junit validation.xml
    """
    from outrider import console
    from outrider.evaluate.prompts import read_prompts

    asked = read_prompts(prompts, per_category)
    if (baseline_url is None) != (speculative_url is None):
        raise InvalidRequest("give both --baseline-url and --speculative-url, or neither")
    if baseline_url is not None and speculative_url is not None:
        found: Validation = _servers(
            (baseline_url, speculative_url),
            asked,
            served_model,
            max_tokens,
            draws,
            tolerance,
            seeded,
            references,
            judge,
        )
    else:
        if references is not None or judge is not None:
            raise InvalidRequest("--references and --judge are for two servers; `compare` judges a model here")
        found = _model(asked, model, mode, verification, proposers, draft, max_tokens, draws)
    console.out.print(*console.validation_lines(found), sep="\n")
    title = f"validation of {found.mode}"
    for path, text in (
        (json_file, found.model_dump_json(indent=2) + "\n"),
        (junit_file, found.junit()),
        (html_file, found.html(title)),
    ):
        write(path, text)
    if not found.passed:
        raise typer.Exit(1)


def _model(
    asked: list[BenchPrompt],
    model: str,
    mode: str,
    verification: str,
    proposers: str,
    draft: str | None,
    max_tokens: int,
    draws: int,
) -> Validation:
    from outrider import console
    from outrider.api import Engine, chat
    from outrider.evaluate.validate import validate as collect
    from outrider.params import Speculation

    Speculation.parse(mode)
    with (
        console.progress() as shown,
        Engine(
            model, verification=verification, proposers=proposers, draft=draft, store_tokens=0, progress=shown
        ) as engine,
    ):
        return collect(
            engine,
            [engine.encode(chat(prompt.text)) for prompt in asked],
            mode,
            max_tokens=max_tokens,
            draws=draws,
            reproducible=verification == "coupled",
            watch=lambda name: shown(name, 1, 1),
        )


def _servers(
    urls: tuple[str, str],
    asked: list[BenchPrompt],
    served_model: str | None,
    max_tokens: int,
    draws: int,
    tolerance: float,
    seeded: bool,
    references: Path | None,
    judge: str | None,
) -> Validation:
    from outrider import console
    from outrider.cli.compare import read_references
    from outrider.evaluate.endpoints import NAMES, Endpoint, validate_endpoints

    keys = [os.environ.get(f"OUTRIDER_{name.upper()}_KEY") for name in NAMES]
    baseline, speculative = (Endpoint(url, served_model, key) for url, key in zip(urls, keys, strict=True))
    with console.progress() as shown:
        return validate_endpoints(
            baseline,
            speculative,
            asked,
            max_tokens=max_tokens,
            draws=draws,
            tolerance=tolerance,
            seeded=seeded,
            references=read_references(references) if references is not None else None,
            judge=shlex.split(judge) if judge is not None else None,
            watch=shown,
        )
