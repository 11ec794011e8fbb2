"""`outrider draft`: make a draft for a model, and measure one."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.output import write
from outrider.errors import InvalidRequest

app = typer.Typer(help="Make a draft for a model out of the model itself, and measure drafts.", no_args_is_help=True)


class DraftKind(StrEnum):
    """What is trained."""

    head = "head"
    model = "model"


@app.command()
def train(
    target: Annotated[str, typer.Option("--target", "-t", help="The model to draft for; named as --model is.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory that gets the draft.", file_okay=False)],
    kind: Annotated[
        DraftKind, typer.Option(help="head: a small network on the target's hidden states; model: a pruned target.")
    ] = DraftKind.head,
    traffic: Annotated[
        Path | None, typer.Option(help="Prompts of real traffic to mix in, as JSON lines.", dir_okay=False)
    ] = None,
    budget_minutes: Annotated[
        float, typer.Option(help="Minutes that it may take, collecting included.", min=0.01)
    ] = 90,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run that was killed left off.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda, for the training.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    size: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the training, as inner=1024 or steps=5; may be repeated."),
    ] = None,
) -> None:
    """Train a draft: the model writes its own conversations, and a small network learns to foresee it."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidRequest("training needs torch; install it with: pip install 'outrider[train]'")
    from outrider import console
    from outrider.evaluate.prompts import read_prompts
    from outrider.models import Resolver
    from outrider.train.base import TrainSettings
    from outrider.train.run import Training
    from outrider.train.target import load_target

    given: dict[str, Any] = {"kind": kind.value, "minutes": budget_minutes, "seed": seed, "device": device}
    settings = TrainSettings(**given | dict(_pair(entry) for entry in size or []))
    with console.progress() as progress:
        files = Resolver(progress=progress).resolve(target)
        loaded = load_target(files, settings.kind)
        asked = [loaded.ask(prompt.text) for prompt in read_prompts(traffic)] if traffic is not None else []
        training = Training(
            loaded,
            out,
            settings,
            resume=resume,
            traffic=asked,
            progress=progress,
            say=console.out.print,
            command=shlex.join(["outrider", *sys.argv[1:]]),
        )
        card = training.run()
    console.out.print(
        f"{out}: {card.parameters / 1e6:.1f}M parameters, {card.tokens_per_pass:.2f} tokens per pass of "
        f"{card.steps} drafted on held-out answers; try it with --draft {out}"
    )


def _pair(entry: str) -> tuple[str, Any]:
    name, sign, value = entry.partition("=")
    if not sign:
        raise InvalidRequest(f"--set {entry!r} is no name=value")
    return name.strip(), value.strip()


@app.command("eval")
def evaluate(
    draft: Annotated[str, typer.Option("--draft", "-d", help="A draft head or a smaller model.")],
    prompts: Annotated[Path, typer.Option(help="JSON lines: Spec-Bench's format, or {'prompt': ...}.")],
    target: Annotated[str, typer.Option("--target", "-t", help="The model that it drafts for.")],
    window: Annotated[int, typer.Option("--window", "-k", help="Tokens drafted in a row.", min=1, max=32)] = 4,
    per_category: Annotated[int | None, typer.Option(help="Prompts of each category.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 96,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of every request.", min=0)] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
) -> None:
    """Measure a draft alone: acceptance by position, tokens per pass, and what they are worth here."""
    from outrider import console
    from outrider.api import Engine
    from outrider.evaluate.drafts import evaluate_draft
    from outrider.evaluate.prompts import read_prompts
    from outrider.params import SamplingParams

    asked = read_prompts(prompts, per_category)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    with (
        console.progress() as progress,
        Engine(target, draft=draft, proposers=(), store_tokens=0, prefix_caching=False, progress=progress) as engine,
    ):
        found = evaluate_draft(engine, asked, window, params, lambda done, total: progress("prompts", done, total))
    console.out.print(console.draft_table(found))
    write(json_file, found.model_dump_json(indent=2) + "\n")


@app.command()
def overlap(
    work: Annotated[Path, typer.Option(help="The work folder of a training, whose shards are looked through.")],
    target: Annotated[str, typer.Option("--target", "-t", help="The model that was trained for.")],
    prompts: Annotated[Path, typer.Option(help="Prompts that must not have been trained on, as JSON lines.")],
    words: Annotated[int, typer.Option(help="Words in a row that count as a copy.", min=3)] = 13,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
) -> None:
    """Look for copies of prompts in what a draft was trained on."""
    from outrider import console
    from outrider.evaluate.prompts import read_prompts
    from outrider.models import Resolver, Tokenizer
    from outrider.train.collect import Shards
    from outrider.train.overlap import find_overlap

    files = Resolver().resolve(target)
    tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
    texts = (tokenizer.decode(answer.tokens.tolist()) for answer in Shards(work / "shards").read())
    found = find_overlap({prompt.id: prompt.text for prompt in read_prompts(prompts)}, texts, words)
    console.out.print(
        f"{found.prompts} prompts, {found.answers} answers of {found.words:,} words: "
        f"{len(found.copies)} prompts share {words} words in a row with an answer"
    )
    for prompt, piece in list(found.copies.items())[:20]:
        console.out.print(f"  prompt {prompt}: {piece!r}", markup=False)
    write(json_file, found.model_dump_json(indent=2) + "\n")
