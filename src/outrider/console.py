"""What the terminal shows: progress of a pull, tables of a bench, one line about an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outrider.control import ControlCounts
from outrider.engine import Completion, StepRecord
from outrider.evaluate.bench import BenchReport, ModeResult
from outrider.evaluate.compare import Comparison
from outrider.evaluate.drafts import DraftEvaluation
from outrider.evaluate.endpoints import EndpointValidation
from outrider.evaluate.tune import Tuning
from outrider.evaluate.validate import Validation
from outrider.models import Progress as ProgressCallback
from outrider.plan import Assessment, CapacityPlan
from outrider.plan.claims import Claim
from outrider.plan.simulate import Simulated

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


def trace_table(steps: Sequence[StepRecord], pieces: Sequence[str]) -> Table:
    """The steps of one request: drafts, window, expectation, outcome, time, and the text that each brought.

    Args:
        steps: where the request decoded; other requests of the same passes are counted only.
        pieces: the text of each token of its first completion.
    """
    table = Table(title_justify="left")
    for name in ("at", "batch", "width"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drafted")
    table.add_column("verified", no_wrap=True)
    for name in ("expected", "accepted", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold", ratio=1)
    for record in steps:
        step = record.requests[0]
        text = Text()
        for number, piece in enumerate(pieces[step.position : step.position + step.emitted]):
            text.append(piece.replace("\n", "⏎"), style="bold green" if number < step.accepted else "")
        table.add_row(
            str(step.position),
            str(record.decoding),
            str(record.width),
            " ".join(f"{source}:{length}" for source, length in step.proposed),
            f"{step.source}:{step.window}" if step.window else "",
            f"{step.expected:.1f}" if step.window else "",
            str(step.accepted) if step.window else "",
            f"{1000 * record.seconds:.1f}",
            text,
        )
    return table


def control_line(counts: ControlCounts) -> str:
    """What the guard did and why."""
    return (
        f"{counts.steps} steps could speculate, {counts.speculated} did; guard: {counts.unpromising} falls for drafts "
        f"not worth verifying, {counts.losing} for losses, {counts.shrinks} windows halved, {counts.recoveries} "
        f"recoveries, {counts.slept} drafts not asked for; {counts.padded} tokens of padding"
    )


def assessment_table(found: Assessment) -> Table:
    """The whole traffic: each proposer at a few windows."""
    title = f"{found.answers} answers, {found.overall.tokens} tokens"
    if found.overall.entropy_nats is not None and found.overall.top_share is not None:
        title += f"; entropy {found.overall.entropy_nats:.2f} nats, {found.overall.top_share:.0%} the model's likeliest"
    table = Table(title=title, title_justify="left")
    table.add_column("proposer")
    for name in ("window", "accepted", "tokens per pass", "expected speed"):
        table.add_column(name, justify="right")
    for result in found.overall.proposers:
        for number in sorted({1, 4, 8, 12, result.best_window} - {0}):
            window = result.windows[number - 1]
            table.add_row(
                result.proposer if number == 1 else "",
                f"{number}{' (best)' if number == result.best_window else ''}",
                "-" if window.acceptance is None else f"{window.acceptance:.0%}",
                f"{window.tokens_per_pass:.2f} ({window.tokens_per_pass_low:.2f} to {window.tokens_per_pass_high:.2f})",
                "-"
                if window.speedup is None
                else f"{window.speedup:.2f}x ({window.speedup_low:.2f} to {window.speedup_high:.2f})",
            )
        table.add_section()
    return table


def bench_table(report: BenchReport) -> Table:
    """The bench as people read it: one line for each category and mode."""
    table = Table(title=f"{report.model}, {report.prompts} prompts, {report.repeat} repeat(s)", title_justify="left")
    table.add_column("category")
    table.add_column("mode")
    for name in ("tokens/s", "spread", "ratio", "first token", "accepted", "per pass", "overhead", "between"):
        table.add_column(name, justify="right")
    table.add_column("identical")
    groups = {**report.categories, "all": report.overall}
    for number, (name, modes) in enumerate(groups.items()):
        for mode, result in modes.items():
            table.add_row(name if mode == report.modes[0] else "", mode, *_cells(result))
        if number < len(groups) - 1:
            table.add_section()
    return table


def validation_lines(found: Validation) -> list[str]:
    """Each check with its first failures, and what else was measured."""
    lines = []
    for check in found.checks:
        state = "[green]passed[/]" if check.passed else "[bold red]FAILED[/]"
        ties = f", {check.ties} ties within rounding" if check.ties else ""
        lines.append(f"{state} {escape(check.name)}: {check.cases} cases{ties}")
        lines += [f"       {escape(failure)}" for failure in check.failures[:5]]
    if isinstance(found, EndpointValidation):
        for name, timing in found.timing.items():
            lines.append(
                f"{name}: first text {timing.ttft_s * 1e3:.0f} ms, {timing.itl_s * 1e3:.1f} ms between tokens, gaps "
                f"vary by {timing.gap_variation:.2f}, {timing.tokens_per_second:.1f} tokens/s"
            )
        lines.append(f"speculation is {found.speedup:.2f}x as fast")
        for measure, own in found.quality.items():
            scores = ", ".join(f"{name} {q.mean:.3f} ({q.low:.3f} to {q.high:.3f})" for name, q in own.items())
            lines.append(f"{measure}: {scores}")
    return lines


def tuning_table(found: Tuning) -> Table:
    """Configurations from best to worst, with their speed at each batch size."""
    sizes = sorted({trial.batch for trial in found.trials})
    table = Table(
        title=f"{found.model}, {found.prompts} prompts, {found.repeat} repeat(s): speed over none",
        title_justify="left",
    )
    for name in ("proposers", "draft", "mode"):
        table.add_column(name)
    for name in (*(f"batch {size}" for size in sizes), "all"):
        table.add_column(name, justify="right", no_wrap=True)
    ratios = {(t.proposers, t.draft, t.mode, t.batch): t.ratio for t in found.trials}
    for place, choice in enumerate(found.ranking):
        cells = [
            f"{1.0 if choice.mode == 'off' else ratios[choice.proposers, choice.draft, choice.mode, size]:.2f}x"
            for size in sizes
        ]
        table.add_row(
            choice.proposers, choice.draft or "", choice.mode, *cells, f"{choice.score:.2f}x",
            style="bold" if place == 0 else None,
        )  # fmt: skip
    return table


def claims_table(rows: Sequence[Claim]) -> Table:
    """Published figures and what becomes of them."""
    table = Table(title="published figures, worked out again", title_justify="left", show_lines=True)
    for name in ("claim", "published", "found", "verdict"):
        table.add_column(name)
    for row in rows:
        table.add_row(row.name, row.published, row.found, f"[bold]{row.verdict}[/]: {row.why}")
    return table


def comparison_table(found: Comparison) -> Table:
    """Speculation against quantization."""
    table = Table(
        title=f"{found.prompts} prompts, {found.repeat} repeat(s)",
        caption=f"fastest with every text as the full model's: {found.lossless}",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", min_width=len("speculation"))
    for name in ("tok/s", "ratio", "MiB", "same\ntext", "same\nup to", "ROUGE-L", "perplexity"):
        table.add_column(name, justify="right", min_width=max(map(len, name.splitlines())))
    for name, row in found.rows.items():
        table.add_row(
            name,
            f"{row.tok_s:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.weights_mib:.0f}",
            f"{row.identical_share:.0%}",
            f"{row.same_tokens.mean:.0%}",
            f"{row.rouge_l:.3f}",
            f"{row.perplexity:.3f}",
        )
    return table


def plan_tables(found: CapacityPlan, simulated: Mapping[str, Simulated]) -> list[Table]:
    """A capacity plan: memory, what a replica does within the targets, windows by batch, the traffic played."""
    memory = found.memory
    room = Table(title="memory", title_justify="left", show_header=False)
    room.add_row("weights", f"{memory.target_weights_gib:.1f} GiB, draft {memory.draft_weights_gib:.1f} GiB")
    room.add_row("a token's KV", f"{memory.kv_kib_per_token:.0f} KiB, draft {memory.draft_kv_kib_per_token:.0f} KiB")
    room.add_row(
        "sequences",
        f"{memory.max_batch} of {memory.max_batch_without_draft}: {memory.batch_lost} ({memory.batch_lost_share:.0%}) "
        "lost to the draft",
    )
    service = Table(title="the most that a replica does within the targets", title_justify="left")
    for name in ("", "batch", "K", "ITL", "TTFT", "tok/s", "req/s", "dev", "$/day", "$/M tok"):
        service.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, point in (("off", found.without), ("on", found.with_speculation)):
        service.add_row(
            name + ("" if point.meets_targets else ", missed"),
            str(point.batch),
            str(point.window),
            f"{point.itl_seconds * 1e3:.1f} ms",
            f"{point.ttft_seconds:.2f} s",
            f"{point.tokens_per_second:.0f}",
            f"{point.requests_per_second:.2f}",
            str(point.devices),
            f"{point.dollars_per_day:.0f}",
            f"{point.dollars_per_million_tokens:.2f}",
        )
    schedule = Table(title="fastest window by batch", title_justify="left")
    schedule.add_column("batch")
    schedule.add_column("window", justify="right")
    for low, high, window in found.schedule:
        schedule.add_row(f"{low} to {high}" if high > low else str(low), str(window))
    played = Table(title="the traffic played through one replica", title_justify="left")
    for name in ("", "tokens/s", "TTFT p50/95/99", "ITL p50/95", "batch", "waited"):
        played.add_column(name, justify="right" if name else "left")
    for name, s in simulated.items():
        played.add_row(
            name,
            f"{s.tokens_per_second:.0f}",
            f"{s.ttft_p50_seconds:.2f} / {s.ttft_p95_seconds:.2f} / {s.ttft_p99_seconds:.2f} s",
            f"{s.itl_p50_seconds * 1e3:.1f} / {s.itl_p95_seconds * 1e3:.1f} ms",
            f"{s.mean_batch:.1f}",
            f"{s.waited_share:.0%}",
        )
    return [room, service, schedule, played]


def draft_table(found: DraftEvaluation) -> Table:
    """A draft on its own: acceptance by position and tokens per pass, and under it what they are worth."""
    pays = "never pays here" if found.break_even is None else f"pays above an acceptance of {found.break_even:.0%}"
    best = (
        f"best window {found.best_window}, {found.expected_speedup:.2f}x expected" if found.best_window else "best off"
    )
    table = Table(
        title=f"{found.draft} for {found.target}, window {found.window}",
        caption=f"a draft token costs {found.cost_ratio:.1%} of a pass and {pays}; {best}; "
        f"{found.coordination_ms:.2f} ms of a step in neither model",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("category")
    for number in range(1, found.window + 1):
        table.add_column(f"token {number}", justify="right")
    for name in ("accepted", "per pass"):
        table.add_column(name, justify="right")
    for category, result in {**found.categories, "all": found.overall}.items():
        shares = [f"{share:.0%}" for share in result.acceptance]
        shares += ["-"] * (found.window - len(shares))
        table.add_row(category, *shares, f"{result.acceptance_rate:.0%}", f"{result.tokens_per_pass:.2f}")
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
        f"{result.coordination_ms:.2f} ms",
        "yes" if result.identical else "[bold red]no[/]",
    ]
