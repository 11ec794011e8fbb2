"""The command line: parse, call, print."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider import __version__
from outrider.cli import draft as draft_commands
from outrider.cli.claims import claims as claims_command
from outrider.cli.compare import compare as compare_command
from outrider.cli.output import write
from outrider.cli.plan import plan as plan_command
from outrider.cli.tune import tune as tune_command
from outrider.cli.validate import validate as validate_command
from outrider.errors import InvalidRequest, OutriderError, near_misses

if TYPE_CHECKING:
    from outrider.api import Engine
    from outrider.engine import Completion, Generation, Handle

app = typer.Typer(
    name="outrider",
    help="Speculative decoding for LLM serving: the same text, in less time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(draft_commands.app, name="draft")
app.command("plan")(plan_command)
app.command("claims")(claims_command)
app.command("compare")(compare_command)
app.command("tune")(tune_command)
app.command("validate")(validate_command)

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


def parse_bias(entries: list[str]) -> dict[int, float]:
    """Read `ID=BIAS` entries.

    Raises:
        InvalidRequest: an entry of another form.
    """
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise InvalidRequest(f"--logit-bias {entry!r} is not ID=BIAS, as 198=-100") from None
    return bias


def _engine(model: str, kv_memory: str | None, kv_precision: str, threads: int | None, **settings: Any) -> Engine:
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


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what the engine does to standard error.")] = False,
) -> None:
    """Speculative decoding for LLM serving: the same text, in less time."""
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, format="%(levelname)s %(message)s")
    if version:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.command()
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
    console.out.print(
        f"{manifest.name}: {manifest.architecture}, {manifest.weights}, context {manifest.context_length}, "
        f"{model.bytes / 2**20:.0f} MiB in {model.directory}"
    )


@app.command()
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


@app.command()
def generate(
    model: Model = DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt from a file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    speculation: Mode = "auto",
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    prediction: Annotated[Path | None, typer.Option(help="A file with text that is expected in the answer.")] = None,
    schema: Annotated[Path | None, typer.Option(help="A file with a JSON schema that the answer follows.")] = None,
    verification: Annotated[str, typer.Option(help="coupled (reproducible), rejection or block.")] = "coupled",
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens this fraction as likely as the likeliest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Over 1 discourages tokens of prompt and output.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Subtracted once from tokens of the output.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="Subtracted for each time a token was said.")] = 0.0,
    logit_bias: Annotated[list[str] | None, typer.Option(help="Repeatable.", metavar="ID=BIAS")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="Number of completions.")] = 1,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens; by default up to the context.")] = None,
    min_tokens: Annotated[int, typer.Option(help="Fewest tokens.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the text. Repeatable.")] = None,
    stop_token_ids: Annotated[
        list[int] | None, typer.Option("--stop-token-id", help="A token that ends the text. Repeatable.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of text.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="With --json: log-probabilities with so many others.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Start the text with the prompt.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which the answer ends as it is.")] = None,
    show_accepted: Annotated[bool, typer.Option("--show-accepted", help="Colour the accepted draft tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No line of numbers on standard error.")] = False,
    kv_memory: KVMemory = None,
    kv_precision: KVPrecision = "f16",
    threads: Threads = None,
) -> None:
    """Answer one prompt, token by token as it comes.

    Examples:

      outrider generate -p "What is a tide?" --max-tokens 100 --show-accepted

      cat report.txt | outrider generate --raw --speculation fixed:8
    """
    from outrider import console
    from outrider.api import Options, chat
    from outrider.params import Grammar, SamplingParams

    if system is not None and raw:
        raise InvalidRequest("--system needs the chat template; leave out --raw")
    text = _prompt_text(prompt, file)
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=parse_bias(logit_bias or []),
        seed=seed,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_ids or ()),
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        echo=echo,
    )
    settings = {"speculation": speculation, "verification": verification, "proposers": proposers, "draft": draft}
    options = Options(prediction=_read(prediction) if prediction is not None else None, timeout=timeout)
    if schema is not None:
        options["grammar"] = Grammar(kind="json_schema", source=_read(schema))
    with _engine(model, kv_memory, kv_precision, threads, **settings) as engine:
        asked = text if raw else chat(text, system)
        if as_json:
            typer.echo(json.dumps(_as_json(engine.generate(asked, params, **options)), ensure_ascii=False))
            return
        handle = engine.stream(asked, params, **options)
        answers = _show(handle, params.n, show_accepted)
        for answer in answers:
            if not quiet:
                console.err.print(console.describe(answer), style="dim")


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise InvalidRequest("give the prompt by --prompt or by --file, not both")
    if prompt is not None:
        return prompt
    if file is not None:
        return _read(file)
    if sys.stdin.isatty():
        raise InvalidRequest("no prompt; give one by -p, -f or standard input")
    return sys.stdin.read()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}") from None


def _show(handle: Handle, n: int, show_accepted: bool) -> list[Completion]:
    """Print an answer as it comes; several are collected and printed one after the other."""
    from rich.text import Text

    from outrider import console
    from outrider.engine import Completion

    answers = [Completion(index) for index in range(n)]
    for chunk in handle:
        answers[chunk.index].add(chunk)
        if n > 1:
            continue
        inside = "".join(token.text for token in chunk.tokens)
        if not show_accepted or not inside or inside not in chunk.text:
            console.out.print(Text(chunk.text), end="")
        else:
            head, _, tail = chunk.text.partition(inside)
            for token in chunk.tokens:
                head_text = Text(token.text, style="bold green" if token.accepted else "")
                console.out.print(Text(head) + head_text, end="")
                head = ""
            console.out.print(Text(tail), end="")
    if n == 1:
        console.out.print()
    else:
        for answer in answers:
            console.out.print(Text(f"--- {answer.index}", style="dim"))
            console.out.print(Text(answer.text))
    for answer in answers:
        if answer.error is not None:
            raise OutriderError(answer.error)
    return answers


def _as_json(generation: Generation) -> dict[str, Any]:
    completions = [_completion_json(answer) for answer in generation.completions]
    extra = {"seed": generation.seed, "prompt_tokens": len(generation.prompt_ids)}
    return {**completions[0], **extra} if len(completions) == 1 else {"completions": completions, **extra}


def _completion_json(answer: Completion) -> dict[str, Any]:
    usage, timings = answer.usage, answer.timings
    result: dict[str, Any] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "accepted": usage.accepted,
            "rejected": usage.rejected,
        },
        "acceptance": {
            "rate": usage.acceptance_rate,
            "length": usage.acceptance_length,
            "passes": usage.passes,
        },
        "timings": {
            "queued_s": timings.queued,
            "ttft_s": timings.ttft,
            "decode_s": timings.decode,
            "tok_s": (usage.completion_tokens - 1) / timings.decode if timings.decode else None,
        },
    }
    if answer.error is not None:
        result["error"] = answer.error
    if any(token.logprobs for token in answer.tokens):
        result["logprobs"] = [
            {"id": t.id, "logprob": t.logprobs.logprob, "top": [list(pair) for pair in t.logprobs.top]}
            for t in answer.tokens
            if t.logprobs is not None
        ]
    if answer.prompt_logprobs is not None:
        result["prompt_logprobs"] = [
            None if entry is None else {"logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
            for entry in answer.prompt_logprobs
        ]
    return result


@app.command()
def bench(
    prompts: Annotated[Path, typer.Option(help="JSON lines: Spec-Bench's format, or {'prompt': ...}.")],
    model: Model = DEFAULT_MODEL,
    modes: Annotated[str, typer.Option(help="Modes by comma; the first is the baseline.")] = "off,fixed:4",
    per_category: Annotated[int | None, typer.Option(help="Prompts of each category.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    repeat: Annotated[int, typer.Option(help="Times that everything is done.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of every request.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    kv_memory: KVMemory = None,
    kv_precision: KVPrecision = "f16",
    threads: Threads = None,
) -> None:
    """Measure modes side by side: prompt by prompt in every mode, one engine, one run.

    Example: outrider bench --prompts spec_bench.jsonl --per-category 1 --modes off,fixed:4 --json out.json
    """
    from outrider import console
    from outrider.evaluate import bench as benchmark
    from outrider.evaluate.prompts import read_prompts
    from outrider.params import SamplingParams

    chosen = [mode.strip() for mode in modes.split(",") if mode.strip()]
    asked = read_prompts(prompts, per_category)
    params = SamplingParams(max_tokens=max_tokens, seed=seed, temperature=temperature)
    # what one mode leaves behind must not help the next: no prefix cache, and no memory of answers
    alone = {"prefix_caching": False, "store_tokens": 0, "proposers": proposers, "draft": draft}
    with _engine(model, kv_memory, kv_precision, threads, **alone) as engine:
        with console.progress() as shown:
            samples = benchmark.measure(
                engine,
                asked,
                chosen,
                params,
                repeat,
                watch=lambda done, total, sample: shown(f"{sample.prompt.category}, {sample.mode}", done, total),
            )
        report = benchmark.report(engine, samples, chosen, params, repeat)
    console.out.print(console.bench_table(report))
    for mode, different in report.different.items():
        for prompt_id, verdict in different.items():
            console.out.print(f"{mode}: prompt {prompt_id} differs from {chosen[0]}: {verdict}")
    write(json_file, report.model_dump_json(indent=2) + "\n")


@app.command()
def trace(
    model: Model = DEFAULT_MODEL,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt from a file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    speculation: Mode = "auto",
    proposers: Proposers = DEFAULT_NAMES,
    draft: DraftName = None,
    prediction: Annotated[Path | None, typer.Option(help="A file with text that is expected in the answer.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of the answer.", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each step.")] = False,
) -> None:
    """Answer one prompt and show every step: who drafted, what was verified and why, what came of it.

    Example: outrider trace -p "Repeat word for word: the ferry leaves at seven."
    """
    from dataclasses import asdict

    from outrider import console
    from outrider.api import chat

    text = _prompt_text(prompt, file)
    expected = _read(prediction) if prediction is not None else None
    with _engine(model, None, "f16", None, speculation=speculation, proposers=proposers, draft=draft) as engine:
        asked = text if raw else chat(text)
        answer = engine.generate(asked, prediction=expected, max_tokens=max_tokens, temperature=temperature, seed=seed)
        steps = engine.trace(answer.request)
        if as_json:
            for step in steps:
                typer.echo(json.dumps(asdict(step)))
            return
        pieces = [token.text for token in answer.completions[0].tokens]
        console.out.print(console.trace_table(steps, pieces))
        console.out.print(console.describe(answer.completions[0]))
        console.out.print(console.control_line(engine.controller.counts), style="dim")


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


@app.command(context_settings={"auto_envvar_prefix": "OUTRIDER"})
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
    engine = _engine(model, kv_memory, kv_precision, threads, **settings)
    console.err.print(f"serving {engine.manifest.name} on http://{host}:{port}", style="bold")
    run(engine, server)


@app.command()
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
    with _engine(model, kv_memory, kv_precision, threads, **settings) as engine, console.progress() as shown:
        failed = run_batch(engine, source, target, lambda done, total: shown("answers", done, total))
    console.err.print(f"{target}: done" + (f", {failed} lines with an error" if failed else ""))


def parse_curve(text: str) -> dict[int, float]:
    """Read what passes cost by their tokens: `1=25,5=27,13=34`, in any unit.

    Raises:
        InvalidRequest: another form, no cost of 1, or a cost that is none.
    """
    curve = {}
    for entry in text.split(","):
        width, _, cost = entry.partition("=")
        try:
            curve[int(width)] = float(cost)
        except ValueError:
            raise InvalidRequest(f"--curve: {entry!r} is not TOKENS=COST, as 1=25,5=27,13=34") from None
    if 1 not in curve or not all(width >= 1 and 0 < cost < float("inf") for width, cost in curve.items()):
        raise InvalidRequest(f"--curve {text!r} needs the cost of 1 token, and costs over 0, as 1=25,5=27,13=34")
    return curve


@app.command()
def assess(
    traffic: Annotated[Path, typer.Option(help="Logged requests and answers, JSON lines, in the order of time.")],
    model: Model = DEFAULT_MODEL,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the model and measure what passes cost here.")
    ] = False,
    look: Annotated[
        bool, typer.Option("--look", help="Look at the answers with the model: entropy, and what --draft gets right.")
    ] = False,
    generate: Annotated[
        bool, typer.Option("--generate", help="The traffic has prompts alone: the model answers them first.")
    ] = False,
    draft: Annotated[
        list[str] | None, typer.Option("--draft", help="A draft to look with; implies --look; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer that --generate makes.", min=2)] = 128,
    curve: Annotated[str | None, typer.Option(help="What passes cost by tokens, as 1=25,5=27,13=34.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only so many lines.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a report to this file.")] = None,
) -> None:
    """Say before deployment whether speculation pays for logged traffic, with which proposer and window.

    Without --look, --draft or --generate the model gives the tokenizer only. Without --measure or --curve the verdict
    goes by acceptance.

    Example: outrider assess --traffic log.jsonl --measure --html report.html
    """
    from outrider import console
    from outrider.control import CostModel
    from outrider.evaluate.foresee import answers_to, foresee, load
    from outrider.evaluate.prompts import read_prompts
    from outrider.models import Resolver, Tokenizer
    from outrider.plan import assess as replay
    from outrider.plan import read_traffic
    from outrider.plan.assess import answers_of
    from outrider.plan.report import html

    if measure and curve is not None:
        raise InvalidRequest("give --measure or --curve, not both")
    cost = CostModel(parse_curve(curve)) if curve is not None else None
    foreseen = None
    with console.progress() as shown:
        resolver = Resolver(progress=shown)
        files = resolver.resolve(model)
        if measure:
            from outrider.api import measured_cost

            cost = measured_cost(files)
        tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
        if generate:
            asked = read_prompts(traffic)[:limit]
            answers = answers_to(model, asked, max_tokens, lambda done, total: shown("generate", done, total))
        else:
            answers = answers_of(read_traffic(traffic, limit), tokenizer, files.manifest.eos_ids)
        if look or draft:
            target, drafts = load(files, tokenizer, [resolver.resolve_draft(name) for name in draft or []])
            foreseen = foresee(answers, target, drafts, lambda done, total: shown("look", done, total))
        found = replay(answers, cost, lambda done, total: shown("answers", done, total), foreseen=foreseen)
    console.out.print(console.assessment_table(found))
    for group in found.categories if len(found.categories) > 1 else ():
        console.out.print(f"{group.name}: [bold]{group.verdict}[/]: {group.reason}")
    console.out.print(f"all: [bold]{found.overall.verdict}[/]: {found.overall.reason}")
    if found.overall.more_answers:
        console.out.print(f"{found.overall.more_answers} more answers like these would tell")
    for path, text in (
        (json_file, found.model_dump_json(indent=2)),
        (html_file, html(found, f"{traffic.name}, {model}")),
    ):
        write(path, text + "\n")


@app.command()
def demo(
    model: Model = DEFAULT_MODEL,
    draft: DraftName = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=16)] = 128,
) -> None:
    """Three prompts with and without speculation, side by side and live, then a table."""
    from outrider import console
    from outrider.demo import run_demo

    with _engine(model, None, "f16", None, draft=draft, prefix_caching=False, store_tokens=0) as engine:
        run_demo(engine, console.out, max_tokens)


def main() -> None:
    """Run the command line; an error for people is one line and exit status 2."""
    try:
        app(prog_name="outrider")
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)  # noqa: T201 (the one line)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
