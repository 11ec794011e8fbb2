"""An assessment as a page of its own: no script, no request, readable on paper and phone."""

from __future__ import annotations

from html import escape

from outrider.plan.assess import Assessment, Group, ProposerResult

_COLOURS = ("#0b6b57", "#b0541e", "#5b4bb5", "#8a6d00")
_STYLE = """
:root { --paper: #fbfaf7; --ink: #1d2127; --soft: #5a626d; --line: #d9d6cd; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e8e6e1; --soft: #a4abb5; --line: #343a42; } }
@media print { :root { --paper: #fff; --ink: #000; } section { break-inside: avoid; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { font-size: 1.1rem; border-left: 5px solid #0b6b57; padding: .3rem .8rem; }
.no { border-color: #a33; } .unclear { border-color: #b08a00; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
caption, .soft, figcaption { color: var(--soft); text-align: left; font-size: .9rem; }
svg { max-width: 34rem; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
svg .axis { stroke: var(--line); }
"""


def html(assessment: Assessment, title: str) -> str:
    """The whole page."""
    groups = [assessment.overall, *assessment.categories]
    if len(assessment.categories) == 1:
        groups = groups[:1]
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p class=soft>{assessment.answers} answers, {assessment.overall.tokens} tokens, replayed without the model.",
        "Intervals are 95%, over answers.</p>",
    ]
    parts += [_section(group) for group in groups]
    return " ".join(parts) + "</body></html>\n"


def _section(group: Group) -> str:
    kind = "no" if group.verdict.startswith("do not") else "unclear" if group.verdict == "unclear" else "yes"
    more = f" {group.more_answers} more answers like these would tell." if group.more_answers else ""
    head = f"<section><h2>{escape(group.name)}</h2><p class='verdict {kind}'><b>{escape(group.verdict)}</b>: "
    return head + f"{escape(group.reason)}.{more}</p>{_chart(group)}{_table(group)}</section>"


def _table(group: Group) -> str:
    known = any(window.speedup is not None for result in group.proposers for window in result.windows)
    heads = ["proposer", "window", "accepted", "tokens per pass", *(["expected speed"] if known else [])]
    rows = []
    for result in group.proposers:
        for number in sorted({1, 2, 4, 8, 12, result.best_window} - {0}):
            window = result.windows[number - 1]
            cells = [
                escape(result.proposer) + (" (best)" if number == result.best_window else ""),
                str(number),
                "-" if window.acceptance is None else f"{window.acceptance:.0%}",
                f"{window.tokens_per_pass:.2f} ({window.tokens_per_pass_low:.2f} to {window.tokens_per_pass_high:.2f})",
            ]
            if known:
                cells.append(f"{window.speedup:.2f}x ({window.speedup_low:.2f} to {window.speedup_high:.2f})")
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    header = "".join(f"<th scope=col>{head}</th>" for head in heads)
    caption = f"<caption>{group.answers} answers, {group.tokens} tokens</caption>"
    return f"<div class=scroll><table>{caption}<tr>{header}</tr>{''.join(rows)}</table></div>"


def _chart(group: Group) -> str:
    """Tokens per pass (or speed, where cost is known) by window, a line for each proposer."""
    known = any(window.speedup is not None for result in group.proposers for window in result.windows)

    def values(result: ProposerResult) -> list[float]:
        return [(window.speedup if known else window.tokens_per_pass) or 0.0 for window in result.windows]

    high = max(1.2, *(value for result in group.proposers for value in values(result))) * 1.08
    low = min(1.0, *(value for result in group.proposers for value in values(result))) * 0.95

    def x(window: float) -> float:
        return 40 + (window - 1) * 44

    def y(value: float) -> float:
        return 190 - (value - low) / (high - low) * 170

    name = "expected speed over none" if known else "tokens per pass"
    parts = [f'<figure><svg viewBox="0 0 640 215" role=img aria-label="{name} by window">']
    parts.append(f'<line class=axis x1=40 x2=524 y1="{y(1.0):.1f}" y2="{y(1.0):.1f}" />')
    parts.append(
        f'<text x=8 y="{y(1.0) + 4:.1f}">1.0</text><text x=8 y="{y(high / 1.08) + 4:.1f}">{high / 1.08:.1f}</text>'
    )
    parts += [f'<text x="{x(w):.0f}" y=210>{w}</text>' for w in (1, 4, 8, 12)]
    for number, result in enumerate(group.proposers):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(w + 1):.1f},{y(value):.1f}" for w, value in enumerate(values(result)))
        parts.append(f'<polyline points="{points}" fill=none stroke="{colour}" stroke-width=2 />')
        top = 16 + 16 * number
        parts.append(f'<text x=535 y={top} style="fill:{colour}">{escape(result.proposer)}</text>')
    return "".join(parts) + f"</svg><figcaption>{name}, by window</figcaption></figure>"
