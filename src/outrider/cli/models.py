"""`outrider pull` and `outrider models`."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    name: Annotated[str, typer.Argument(help="Built-in name, hf:org/name[@revision], .gguf file or directory.")],
) -> None:
    """Fetch a model, check it, convert it, keep it for offline use.

    Example: outrider pull smollm2-135m
    """
    from outrider import console
    from outrider.models import HeadFiles, Resolver

    with console.progress() as shown:
        model = Resolver(progress=shown).resolve_draft(name)
    if isinstance(model, HeadFiles):
        card = model.card
        console.out.print(
            f"{card.name}: draft head for {card.target}, {card.parameters / 1e6:.1f}M parameters, "
            f"{card.tokens_per_pass:.2f} tokens per pass on held-out answers, {model.bytes / 2**20:.0f} MiB in "
            f"{model.directory}"
        )
        return
    manifest = model.manifest
    use = f", drafts for {manifest.drafts_for}" if manifest.drafts_for else ""
    console.out.print(
        f"{manifest.name}{use}: {manifest.architecture}, {manifest.weights}, context {manifest.context_length}, "
        f"{model.bytes / 2**20:.0f} MiB in {model.directory}"
    )


def models(
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its recorded hash.")] = False,
) -> None:
    """List the models that are here, and those that can be pulled by name."""
    from rich.table import Table

    from outrider import console
    from outrider.models import Resolver
    from outrider.models.resolve import BUILT_IN

    resolver = Resolver()
    table = Table("name", "weights", "parameters", "context", "size", "where")
    here = set()
    for model in resolver.cached():
        manifest = model.manifest
        here.add(manifest.name)
        if verify:
            resolver.store.verify(model)
        table.add_row(
            manifest.name,
            manifest.weights,
            f"{manifest.parameters / 1e6:.0f}M" if manifest.parameters else "-",
            str(manifest.context_length),
            f"{model.bytes / 2**20:.0f} MiB",
            str(model.directory) + (" (verified)" if verify else ""),
        )
    for built_in in BUILT_IN.values():
        if built_in.name not in here:
            table.add_row(built_in.name, built_in.rewritten_as or "Q4_1", "", "", "", "not pulled yet")
    console.out.print(table)
