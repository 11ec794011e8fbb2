"""What commands have in common: options, sizes, prompts, an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import InvalidRequest

if TYPE_CHECKING:
    from outrider.api import Engine

DEFAULT_MODEL = "smollm2-135m"
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

Model = Annotated[
    str,
    typer.Option("-m", "--model", help="Built-in name, hf:org/name[@revision], a .gguf file, or an IR directory."),
]
KVMemory = Annotated[str | None, typer.Option(help="Memory for the KV cache, as 512M or 2G.", metavar="SIZE")]
KVPrecision = Annotated[str, typer.Option(help="How keys and values are stored: f16, f32 or u8 (not exact).")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; by default one per physical core.", min=1)]
Proposers = Annotated[str, typer.Option(help="What guesses tokens, by comma.")]
DraftName = Annotated[
    str | None, typer.Option("--draft", help="What drafts: a smaller model, named as --model is, or a draft head.")
]
Mode = Annotated[
    str, typer.Option(help="off, auto, threshold, or fixed:K for a window of K tokens; auto:K bounds the window.")
]
DEFAULT_NAMES = "prediction,suffix,lookup"


def parse_size(text: str | None) -> int | None:
    """Read a number of bytes: 1048576, 512M, 2GiB.

    Raises:
        InvalidRequest: not a size.
    """
    if text is None:
        return None
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise InvalidRequest(f"{text!r} is not a size; write a number of bytes, or one with K, M or G, as 512M")
    return size


def open_engine(model: str, kv_memory: str | None, kv_precision: str, threads: int | None, **settings: Any) -> Engine:
    """Load a model as the options say, with progress, and say what its draft costs."""
    from outrider import console
    from outrider.api import Engine

    if kv_precision not in ("f16", "f32", "u8"):
        raise InvalidRequest(f"--kv-precision {kv_precision!r} is not known; use f16, f32 or u8")
    with console.progress() as shown:
        engine = Engine(
            model,
            kv_memory=parse_size(kv_memory),
            kv_precision=kv_precision,  # type: ignore[arg-type]  # checked above
            threads=threads,
            progress=shown,
            **settings,
        )
    if engine.draft is not None:
        console.err.print(str(engine.draft), style="dim")
        if engine.draft.advice is not None:
            console.err.print(f"warning: {engine.draft.advice}", style="yellow")
    return engine


def prompt_text(prompt: str | None, file: Path | None) -> str:
    """The prompt that was given, or standard input."""
    if prompt is not None and file is not None:
        raise InvalidRequest("give the prompt by --prompt or by --file, not both")
    if prompt is not None:
        return prompt
    if file is not None:
        return read_text(file)
    if sys.stdin.isatty():
        raise InvalidRequest("no prompt; give one by -p, -f or standard input")
    return sys.stdin.read()


def read_text(file: Path) -> str:
    """What a file says.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}") from None
