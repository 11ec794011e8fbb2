"""`outrider claims`: published figures, worked out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def claims(
    results: Annotated[Path, typer.Option(help="Directory with measurements of this project.", file_okay=False)] = Path(
        "benchmarks/results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the docs.")] = False,
) -> None:
    """Published figures of speculative decoding, each computed or measured again, with a verdict.

    Example: outrider claims --markdown
    """
    from outrider import console
    from outrider.plan.claims import claims as work_out
    from outrider.plan.claims import markdown

    rows = work_out(results if results.is_dir() else None)
    if as_json:
        typer.echo(json.dumps([row.model_dump() for row in rows], indent=2))
    elif as_markdown:
        typer.echo(markdown(rows), nl=False)
    else:
        console.out.print(console.claims_table(rows))
