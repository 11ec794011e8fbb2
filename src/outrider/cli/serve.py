"""`outrider serve` and `outrider batch`: many answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_NAMES,
    DraftName,
    KVMemory,
    KVPrecision,
    Mode,
    Model,
    Proposers,
    Threads,
    parse_size,
)
from outrider.errors import InvalidRequest, near_misses


def _from_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from a TOML file: flags count before the environment, that before the file."""
    if path is None:
        return None
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from None
    known = [param.name for param in ctx.command.params if param.name is not None and param.name != "config"]
    for name in found:
        if name not in known:
            raise InvalidRequest(f"{path}: unknown setting {name!r}.{near_misses(name, known)}")
    ctx.default_map = {**(ctx.default_map or {}), **found}
    return path


PROFILES: dict[str, dict[str, Any]] = {
    "interactive": {"objective": "latency", "max_running": 8, "max_queue": 64, "stretch": 1.8, "pace": "smooth"},
    "batch": {
        "objective": "throughput",
        "max_running": 32,
        "max_queue": 4096,
        "stretch": 8.0,
        "chunk_tokens": 512,
        "pace": "burst",
    },
    "latency": {"objective": "latency", "max_running": 2, "max_queue": 16, "stretch": 1.3, "pace": "burst"},
}
"""Defaults by kind of workload (docs/serve.md says what each trades)."""


def _from_profile(ctx: typer.Context, name: str | None) -> str | None:
    """Take defaults from a profile; everything else that is said counts before it."""
    if name is None:
        return None
    if name not in PROFILES:
        raise InvalidRequest(f"--profile {name!r} is not known; use {', '.join(PROFILES)}")
    ctx.default_map = {**PROFILES[name], **(ctx.default_map or {})}
    return name


def serve(
    model: Model = DEFAULT_MODEL,
    config: Annotated[  # noqa: ARG001 (its callback reads it)
        Path | None,
        typer.Option(
            callback=_from_file, is_eager=True, help="TOML with settings by the names of these options (with _)."
        ),
    ] = None,
    profile: Annotated[  # noqa: ARG001 (its callback reads it)
        str | None,
        typer.Option(
            callback=_from_profile, is_eager=True, help="interactive, batch or latency: defaults for the rest."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to bind; others than this machine need --api-key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port.", min=0, max=65535)] = 8000,
    api_key: Annotated[list[str] | None, typer.Option(help="A client's key, or sha256:HASH. Repeatable.")] = None,
    admin_key: Annotated[list[str] | None, typer.Option(help="A key that may change the server. Repeatable.")] = None,
    speculation: Mode = "auto",
    verification: Annotated[str, typer.Option(help="coupled (reproducible), rejection or block.")] = "coupled",
    objective: Annotated[
        str, typer.Option(help="What auto makes fast in a batch: throughput or latency.")
    ] = "throughput",
    shrink_below: Annotated[float, typer.Option(help="Acceptance below which threshold shrinks the window.")] = 0.5,
    disable_below: Annotated[float, typer.Option(help="Acceptance below which threshold stops for a while.")] = 0.3,
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    store_tokens: Annotated[int, typer.Option(help="Tokens of earlier answers to remember; 0 for none.", min=0)] = 1
    << 20,
    store_file: Annotated[Path | None, typer.Option(help="Keep them here between starts.")] = None,
    pace: Annotated[str, typer.Option(help="smooth spreads accepted bursts, burst sends them at once.")] = "smooth",
    max_running: Annotated[int, typer.Option(help="Most sequences in a batch.", min=1)] = 16,
    max_queue: Annotated[int, typer.Option(help="Most requests that wait; one more gets 429.", min=0)] = 256,
    chunk_tokens: Annotated[int, typer.Option(help="Most prompt tokens in a pass.", min=1)] = 256,
    stretch: Annotated[float, typer.Option(help="How much longer a pass may take because a prompt is in it.")] = 2.5,
    timeout: Annotated[float, typer.Option(help="Seconds after which an answer ends as it is.")] = 600.0,
    drain: Annotated[float, typer.Option(help="Seconds that open answers have after a signal to stop.")] = 30.0,
    max_body: Annotated[str, typer.Option(help="Largest request body, as 4M.", metavar="SIZE")] = "4M",
    max_n: Annotated[int, typer.Option(help="Most completions of one request.", min=1)] = 8,
    share_memory: Annotated[
        bool, typer.Option("--share-memory", help="Draft all keys' answers to all: only where all may read all.")
    ] = False,
    on_engine_death: Annotated[str, typer.Option(help="exit (status 70) or stay (503 to everybody).")] = "exit",
    log_format: Annotated[str, typer.Option(help="text or json: a line for each answer, without its words.")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="OpenTelemetry collector, as http://collector:4318/v1/traces.")
    ] = None,
    kv_memory: KVMemory = None,
    kv_precision: KVPrecision = "f16",
    threads: Threads = None,
) -> None:
    """Serve OpenAI's API, metrics and a page.

    Example: outrider serve -m smollm2-135m --port 8000
    """
    from outrider import console
    from outrider.server import ServerConfig
    from outrider.server.logs import configure
    from outrider.server.run import serve as run

    server = ServerConfig(
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        admin_keys=tuple(admin_key or ()),
        pace=pace,  # type: ignore[arg-type]  # checked by the settings
        timeout=timeout,
        drain=drain,
        max_body=parse_size(max_body) or 0,
        max_n=max_n,
        share_memory=share_memory,
        on_engine_death=on_engine_death,  # type: ignore[arg-type]  # checked by the settings
        otlp_endpoint=otlp_endpoint,
    )
    if log_format not in ("text", "json") or log_level not in ("debug", "info", "warning", "error"):
        raise InvalidRequest(
            f"--log-format {log_format!r} and --log-level {log_level!r} must be text or json, and debug, info, warning "
            "or error"
        )
    configure(log_format, log_level)  # type: ignore[arg-type]  # checked above
    settings = {
        "speculation": speculation,
        "verification": verification,
        "objective": objective,
        "shrink_below": shrink_below,
        "disable_below": disable_below,
        "proposers": proposers,
        "draft": draft,
        "store_tokens": store_tokens,
        "store_file": store_file,
        "max_running": max_running,
        "max_queue": max_queue,
        "chunk_tokens": chunk_tokens,
        "stretch": stretch,
    }
    engine = options.open_engine(model, kv_memory, kv_precision, threads, **settings)
    console.err.print(f"serving {engine.manifest.name} on http://{host}:{port}", style="bold")
    run(engine, server)


def batch(
    source: Annotated[Path, typer.Option("-i", "--input", help="Requests in OpenAI's batch format, JSON lines.")],
    target: Annotated[Path, typer.Option("-o", "--output", help="Answers, in order; a run that was cut goes on.")],
    model: Model = DEFAULT_MODEL,
    speculation: Mode = "auto",
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    max_running: Annotated[int, typer.Option(help="Most sequences in a batch.", min=1)] = 16,
    kv_memory: KVMemory = None,
    kv_precision: KVPrecision = "f16",
    threads: Threads = None,
) -> None:
    """Answer a file of requests: as many at once as fit, in order, resumable.

    Example: outrider batch -i requests.jsonl -o answers.jsonl
    """
    from outrider import console
    from outrider.server.batch import run_batch

    settings = {"speculation": speculation, "proposers": proposers, "draft": draft, "max_running": max_running}
    with (
        options.open_engine(model, kv_memory, kv_precision, threads, **settings) as engine,
        console.progress() as shown,
    ):
        failed = run_batch(engine, source, target, lambda done, total: shown("answers", done, total))
    console.err.print(f"{target}: done" + (f", {failed} lines with an error" if failed else ""))
