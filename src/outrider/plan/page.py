"""Pages that stand alone: no script, no request, readable on paper and phone. What the reports have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#0b6b57", "#b0541e", "#5b4bb5", "#8a6d00")
STYLE = """
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


def page(title: str, *parts: str) -> str:
    """The whole page; the parts are HTML already."""
    head = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
    )
    return head + "\n".join(parts) + "</body></html>\n"


def verdict(kind: str, head: str, text: str) -> str:
    """The sentence that matters; `kind` is `yes`, `no` or `unclear`."""
    return f"<p class='verdict {kind}'><b>{escape(head)}</b>: {escape(text)}.</p>"


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself on a small screen."""
    header = "".join(f"<th scope=col>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><caption>{escape(caption)}</caption><tr>{header}</tr>{body}</table></div>"


def chart(
    name: str,
    lines: Mapping[str, Sequence[float]],
    ticks: Sequence[str],
    *,
    marked: float | None = None,
    digits: int = 1,
) -> str:
    """Lines over places in a row.

    Args:
        name: what is drawn, over what.
        lines: values by name, one for each place.
        ticks: what is written under each place; an empty text for none.
        marked: a value with a line of its own across.
        digits: of the values at the axis.
    """
    values = [value for line in lines.values() for value in line] + ([marked] if marked is not None else [])
    high, low = max(values), min(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    high, low = high + room, max(0.0, low - room) if low >= 0 else low - room
    count = max(2, len(ticks))

    def x(place: int) -> float:
        return 46 + place * 478 / (count - 1)

    def y(value: float) -> float:
        return 190 - (value - low) / (high - low) * 170

    parts = [f'<figure><svg viewBox="0 0 640 215" role=img aria-label="{escape(name)}">']
    for value in sorted({round(max(values), 6), round(min(values), 6), *([marked] if marked is not None else [])}):
        parts.append(f'<text x=4 y="{y(value) + 4:.1f}">{value:.{digits}f}</text>')
        parts.append(f'<line class=axis x1=46 x2=524 y1="{y(value):.1f}" y2="{y(value):.1f}" />')
    parts += [f'<text x="{x(place) - 4:.0f}" y=208>{escape(tick)}</text>' for place, tick in enumerate(ticks) if tick]
    for number, (label, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill=none stroke="{colour}" stroke-width=2 />')
        parts.append(f'<text x=532 y={16 + 16 * number} style="fill:{colour}">{escape(label)}</text>')
    return "".join(parts) + f"</svg><figcaption>{escape(name)}</figcaption></figure>"
