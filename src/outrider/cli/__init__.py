"""The command line: parse, call, print."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from outrider import __version__
from outrider.cli.assess import assess
from outrider.cli.bench import bench, demo
from outrider.cli.claims import claims
from outrider.cli.compare import compare
from outrider.cli.draft import app as draft
from outrider.cli.generate import generate, trace
from outrider.cli.models import models, pull
from outrider.cli.plan import plan
from outrider.cli.serve import batch, serve
from outrider.cli.tune import tune
from outrider.cli.validate import validate
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    help="Speculative decoding for LLM serving: the same text, in less time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    pull, models, demo, generate, bench, trace, serve, batch, assess, plan, validate, compare, tune, claims,
)  # fmt: skip
for _command in _COMMANDS:  # the server's settings come from the environment too
    app.command(context_settings={"auto_envvar_prefix": "OUTRIDER"} if _command is serve else None)(_command)
app.add_typer(draft, name="draft")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what the engine does to standard error.")] = False,
) -> None:
    """Speculative decoding for LLM serving: the same text, in less time."""
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="%(levelname)s %(message)s")
    if version:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error for people is one line and exit status 2."""
    try:
        app(prog_name="outrider")
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)  # noqa: T201 (the one line)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
