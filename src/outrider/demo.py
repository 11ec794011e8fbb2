"""The demo: one model, three prompts, with and without speculation side by side."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.api import Engine, chat
from outrider.engine import Completion

MODES = ("off", "auto")
_SILENT_REPEATS = 2

_ARTICLE = (
    "The harbour of Port Ellery was built in 1874 by the engineer Thomas Arkwright. It has two stone piers, each "
    "410 metres long, and a lighthouse of 31 metres whose lamp can be seen from 19 nautical miles. In the winter of "
    "1902 a storm broke the northern pier; the repair took fourteen months and cost 86,000 pounds. Today the harbour "
    "serves 62 fishing boats and a ferry that leaves every morning at a quarter past seven."
)

PROMPTS = (
    ("quotes its input", f"Repeat the following text word for word, and nothing else:\n\n{_ARTICLE}"),
    ("code", "Write a Python class for a bank account with methods deposit, withdraw and transfer, and use it."),
    ("chat", "Why does the sea have tides? Explain it to a child."),
)


@dataclass(slots=True)
class Side:
    """One answer on the screen."""

    mode: str
    answer: Completion
    started: float | None = None
    seconds: float = 0.0

    def panel(self, width: int) -> Panel:
        """The answer so far, accepted tokens in green."""
        body = Text()
        for token in self.answer.tokens:
            body.append(token.text, style="green" if token.accepted else "")
        count = len(self.answer.tokens)
        speed = f"{count / self.seconds:.0f} tokens/s" if self.seconds else "waiting"
        name = "without speculation" if self.mode == "off" else "with speculation"
        return Panel(body, title=name, subtitle=f"{count} tokens · {self.seconds:.1f} s · {speed}", width=width)


def run_demo(engine: Engine, console: Console, max_tokens: int) -> None:
    """Show every prompt in both modes, then repeat in silence for a steadier median, then the table."""
    for mode in MODES:  # kernels are compiled on first use
        engine.generate(chat("Count from one to twenty."), max_tokens=24, speculation=mode)
    rows = []
    for title, prompt in PROMPTS:
        console.rule(Text(title))
        console.print(Text(prompt if len(prompt) < 200 else prompt[:200] + " …", style="dim"))
        shown = _side_by_side(engine, console, prompt, max_tokens)
        answers = {mode: [shown[mode]] for mode in MODES}
        for repeat in range(_SILENT_REPEATS):
            for mode in MODES if repeat % 2 else reversed(MODES):
                generation = engine.generate(chat(prompt), max_tokens=max_tokens, speculation=mode)
                answers[mode].append(generation.completions[0])
        rows.append((title, answers))
    console.print(_table(rows, engine))


def _side_by_side(engine: Engine, console: Console, prompt: str, max_tokens: int) -> dict[str, Completion]:
    sides = [Side(mode, Completion(0)) for mode in MODES]
    width = max(36, min(80, (console.width - 1) // len(sides)))

    def view() -> RenderableType:
        if console.width < len(sides) * width:
            return Group(*(side.panel(width) for side in sides))
        beside = Table.grid()
        beside.add_row(*(side.panel(width) for side in sides))
        return beside

    with Live(view(), console=console, refresh_per_second=8, vertical_overflow="visible") as live:
        for side in sides:
            side.started = time.monotonic()
            for chunk in engine.stream(chat(prompt), max_tokens=max_tokens, speculation=side.mode):
                side.answer.add(chunk)
                side.seconds = time.monotonic() - side.started
                live.update(view())
    if not console.is_terminal:  # there the last view is printed without a line's end
        console.print()
    return {side.mode: side.answer for side in sides}


def _speed(answer: Completion) -> float:
    return (len(answer.tokens) - 1) / answer.timings.decode if answer.timings.decode else 0.0


def _table(rows: list[tuple[str, dict[str, list[Completion]]]], engine: Engine) -> Table:
    table = Table(title=f"{engine.manifest.name}: median of {_SILENT_REPEATS + 1} runs each", title_justify="left")
    for name in ("prompt", "tokens/s off", "tokens/s on", "ratio", "accepted", "tokens per pass", "identical"):
        table.add_column(name, justify="left" if name in ("prompt", "identical") else "right")
    on = MODES[1]
    for title, answers in rows:
        slow, fast = (statistics.median(_speed(answer) for answer in answers[mode]) for mode in MODES)
        usage = answers[on][0].usage
        rate = usage.acceptance_rate
        texts = {tuple(answer.token_ids) for mode in MODES for answer in answers[mode]}
        table.add_row(
            title,
            f"{slow:.1f}",
            f"{fast:.1f}",
            f"{fast / slow:.2f}x",
            "-" if rate is None else f"{rate:.0%}",
            f"{usage.acceptance_length or 1:.2f}",
            "yes" if len(texts) == 1 else "no",
        )
    return table
