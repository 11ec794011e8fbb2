"""What the terminal shows: progress of a pull, tables of a bench, one line about an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.engine import Completion
from outrider.evaluate.bench import BenchReport, ModeResult
from outrider.models import Progress as ProgressCallback

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A bar for each stage on standard error, gone when all is done; nothing where nobody watches."""
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
        console=err, transient=True, disable=not err.is_terminal,
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}

    def show(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=None)
        bars.update(tasks[stage], completed=done, total=total or None)

    with bars:
        yield show


def describe(answer: Completion) -> str:
    """One line: tokens, speed, first token, acceptance."""
    usage, timings = answer.usage, answer.timings
    parts = [f"{usage.completion_tokens} tokens"]
    if timings.decode:
        parts.append(f"{(usage.completion_tokens - 1) / timings.decode:.1f} tokens/s")
    if timings.ttft is not None:
        parts.append(f"first token after {timings.ttft:.2f} s")
    if usage.acceptance_rate is not None:
        drafted = usage.accepted + usage.rejected
        parts.append(f"accepted {usage.accepted} of {drafted} drafted ({usage.acceptance_rate:.0%})")
        parts.append(f"{usage.acceptance_length:.2f} tokens per pass")
    parts.append(f"ended by {answer.finish_reason}")
    return " · ".join(parts)


def bench_table(report: BenchReport) -> Table:
    """The bench as people read it: one line for each category and mode."""
    table = Table(title=f"{report.model}, {report.prompts} prompts, {report.repeat} repeat(s)", title_justify="left")
    table.add_column("category")
    table.add_column("mode")
    for name in ("tokens/s", "spread", "ratio", "first token", "accepted", "per pass", "overhead"):
        table.add_column(name, justify="right")
    table.add_column("identical")
    groups = {**report.categories, "all": report.overall}
    for number, (name, modes) in enumerate(groups.items()):
        for mode, result in modes.items():
            table.add_row(name if mode == report.modes[0] else "", mode, *_cells(result))
        if number < len(groups) - 1:
            table.add_section()
    return table


def _cells(result: ModeResult) -> list[str]:
    rate = result.acceptance_rate
    return [
        f"{result.tok_s:.1f}",
        f"{result.spread:.0%}",
        f"{result.ratio:.2f}x",
        f"{result.ttft_s * 1000:.0f} ms",
        "-" if rate is None else f"{rate:.0%}",
        f"{result.acceptance_length:.2f}",
        f"{result.overhead_fraction:.1%}",
        "yes" if result.identical else "[bold red]no[/]",
    ]
