"""An assessment and a capacity plan as pages."""

from __future__ import annotations

from html import escape

from outrider.plan.assess import Assessment, Group, ProposerResult
from outrider.plan.capacity import CapacityPlan, ServicePoint
from outrider.plan.page import chart, page, table, verdict
from outrider.plan.simulate import Simulated


def html(assessment: Assessment, title: str) -> str:
    """The assessment's page."""
    groups = [assessment.overall, *assessment.categories]
    if len(assessment.categories) == 1:
        groups = groups[:1]
    intro = (
        f"<p class=soft>{assessment.answers} answers, {assessment.overall.tokens} tokens, replayed without the model. "
        "Intervals are 95%, over answers.</p>"
    )
    return page(title, intro, *(_section(group) for group in groups))


def _section(group: Group) -> str:
    kind = "no" if group.verdict.startswith("do not") else "unclear" if group.verdict == "unclear" else "yes"
    more = f". {group.more_answers} more answers like these would tell" if group.more_answers else ""
    said = verdict(kind, group.verdict, group.reason + more)
    return f"<section><h2>{escape(group.name)}</h2>{said}{_curves(group)}{_windows(group)}</section>"


def _known(group: Group) -> bool:
    return any(window.speedup is not None for result in group.proposers for window in result.windows)


def _windows(group: Group) -> str:
    known = _known(group)
    heads = ["proposer", "window", "accepted", "tokens per pass", *(["expected speed"] if known else [])]
    rows = []
    for result in group.proposers:
        for number in sorted({1, 2, 4, 8, 12, result.best_window} - {0}):
            window = result.windows[number - 1]
            cells = [
                result.proposer + (" (best)" if number == result.best_window else ""),
                str(number),
                "-" if window.acceptance is None else f"{window.acceptance:.0%}",
                f"{window.tokens_per_pass:.2f} ({window.tokens_per_pass_low:.2f} to {window.tokens_per_pass_high:.2f})",
            ]
            if known:
                cells.append(f"{window.speedup:.2f}x ({window.speedup_low:.2f} to {window.speedup_high:.2f})")
            rows.append(cells)
    caption = f"{group.answers} answers, {group.tokens} tokens"
    if group.entropy_nats is not None and group.top_share is not None:
        caption += f"; entropy {group.entropy_nats:.2f} nats a token, {group.top_share:.0%} the model's likeliest"
    return table(caption, heads, rows)


def _curves(group: Group) -> str:
    """Tokens per pass (or speed, where cost is known) by window, a line for each proposer."""
    known = _known(group)

    def values(result: ProposerResult) -> list[float]:
        return [(window.speedup if known else window.tokens_per_pass) or 0.0 for window in result.windows]

    name = "expected speed over none, by window" if known else "tokens per pass, by window"
    ticks = [str(w) if w in (1, 4, 8, 12) else "" for w in range(1, 13)]
    return chart(name, {result.proposer: values(result) for result in group.proposers}, ticks, marked=1.0)


def plan_html(found: CapacityPlan, simulated: dict[str, Simulated], title: str) -> str:
    """The capacity plan's page.

    Args:
        found: the plan.
        simulated: what playing the traffic gave, `without` and `with` speculation.
        title: of the page.
    """
    memory, deployment = found.memory, found.deployment
    kind = "no" if found.verdict.startswith("do not") else "yes"
    head, _, text = found.verdict.partition(": ")
    batches = list(dict.fromkeys(cell.batch for cell in found.cells))
    fastest = {b: max((c for c in found.cells if c.batch == b), key=lambda c: c.tokens_per_second) for b in batches}
    plain = {cell.batch: cell for cell in found.cells if cell.window == 0}
    service = [_service(name, point) for name, point in (("off", found.without), ("on", found.with_speculation))]
    ticks = [str(b) if number % 3 == 0 else "" for number, b in enumerate(batches)]
    room = [
        ["target weights", f"{memory.target_weights_gib:.1f} GiB"],
        ["draft weights", f"{memory.draft_weights_gib:.1f} GiB ({memory.draft_weights_gib_per_device:.2f} a device)"],
        ["a token's KV cache", f"{memory.kv_kib_per_token:.0f} KiB, draft {memory.draft_kv_kib_per_token:.0f} KiB"],
        [
            "KV cache of a request",
            f"{memory.kv_gib_per_sequence:.3f} GiB, draft {memory.draft_kv_gib_per_sequence:.3f}",
        ],
        ["sequences", f"{memory.max_batch} of {memory.max_batch_without_draft} ({memory.batch_lost_share:.0%} lost)"],
    ]
    intro = (
        f"<p class=soft>{escape(deployment.target.name)} on {deployment.tensor_parallel} x "
        f"{escape(deployment.accelerator.name)}, weights {deployment.precision}, "
        f"{deployment.requests_per_second:g} requests/s of {deployment.prompt_tokens:.0f} + "
        f"{deployment.output_tokens:.0f} tokens.</p>"
    )
    parts = [
        verdict(kind, head, text or head),
        intro,
        "<section><h2>Within the targets</h2>",
        table("The most that one replica does", ["", *_SERVICE], service),
        "</section><section><h2>Memory</h2>",
        table(f"{memory.total_gib:.0f} GiB that may be used", ["what", "takes"], room),
        "</section><section><h2>By batch</h2>",
        chart(
            "speed per request over none, at the fastest window, by batch",
            {"speed": [fastest[b].speedup for b in batches]},
            ticks,
            marked=1.0,
            digits=2,
        ),
        chart(
            "tokens per second of a replica, by batch",
            {
                "off": [plain[b].tokens_per_second for b in batches],
                "fastest window": [fastest[b].tokens_per_second for b in batches],
            },
            ticks,
            digits=0,
        ),
        table(
            "Window by batch",
            ["batch", "window"],
            [[f"{low} to {high}" if high > low else str(low), str(window)] for low, high, window in found.schedule],
        ),
        f"<p>No window pays {escape(found.why_negative)}.</p>" if found.why_negative else "",
        "</section>",
    ]
    if simulated:
        rows = [
            [
                name,
                f"{s.tokens_per_second:.0f}",
                f"{s.ttft_p50_seconds:.3f} / {s.ttft_p95_seconds:.3f} / {s.ttft_p99_seconds:.3f}",
                f"{s.itl_p50_seconds * 1e3:.1f} / {s.itl_p95_seconds * 1e3:.1f}",
                f"{s.mean_batch:.1f}",
                f"{s.waited_share:.0%}",
            ]
            for name, s in simulated.items()
        ]
        heads = ["", "tokens/s", "TTFT p50 / 95 / 99, s", "ITL p50 / 95, ms", "batch", "had to wait"]
        parts += ["<section><h2>Traffic played through</h2>", table("Continuous batching", heads, rows), "</section>"]
    return page(title, *parts)


_SERVICE = ("batch", "window", "ITL, ms", "TTFT, s", "tokens/s", "requests/s", "devices", "$/day", "$/M tokens", "met")


def _service(name: str, point: ServicePoint) -> list[str]:
    return [
        name,
        str(point.batch),
        str(point.window),
        f"{point.itl_seconds * 1e3:.1f}",
        f"{point.ttft_seconds:.3f}",
        f"{point.tokens_per_second:.0f}",
        f"{point.requests_per_second:.2f}",
        str(point.devices),
        f"{point.dollars_per_day:.0f}",
        f"{point.dollars_per_million_tokens:.2f}",
        "yes" if point.meets_targets else "no",
    ]
