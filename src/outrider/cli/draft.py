"""`outrider draft`: make a draft for a model, and measure one."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import InvalidRequest

app = typer.Typer(help="Make a draft for a model out of the model itself, and measure drafts.", no_args_is_help=True)


@app.command()
def train(
    target: Annotated[str, typer.Option("--target", "-t", help="The model to draft for; named as --model is.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory that gets the draft.", file_okay=False)],
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
    """Train a draft head: the model writes its own conversations, and a small network learns to foresee it."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidRequest("training needs torch; install it with: pip install 'outrider[train]'")
    from outrider import console
    from outrider.evaluate.prompts import read_prompts
    from outrider.models import Resolver
    from outrider.train.run import Training, TrainSettings
    from outrider.train.target import load_target

    settings = TrainSettings.model_validate(
        {"minutes": budget_minutes, "seed": seed, "device": device, **dict(_pair(entry) for entry in size or [])}
    )
    with console.progress() as progress:
        files = Resolver(progress=progress).resolve(target)
        loaded = load_target(files)
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
