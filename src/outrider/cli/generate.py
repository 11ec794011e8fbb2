"""`outrider generate` and `outrider trace`: one answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    prompt_text,
    read_text,
)
from outrider.errors import InvalidRequest, OutriderError

if TYPE_CHECKING:
    from outrider.engine import Completion, Generation, Handle


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
    text = prompt_text(prompt, file)
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
    extra = Options(prediction=read_text(prediction) if prediction is not None else None, timeout=timeout)
    if schema is not None:
        extra["grammar"] = Grammar(kind="json_schema", source=read_text(schema))
    with options.open_engine(model, kv_memory, kv_precision, threads, **settings) as engine:
        asked = text if raw else chat(text, system)
        if as_json:
            typer.echo(json.dumps(_as_json(engine.generate(asked, params, **extra)), ensure_ascii=False))
            return
        handle = engine.stream(asked, params, **extra)
        answers = _show(handle, params.n, show_accepted)
        for answer in answers:
            if not quiet:
                console.err.print(console.describe(answer), style="dim")


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

    text = prompt_text(prompt, file)
    expected = read_text(prediction) if prediction is not None else None
    with options.open_engine(
        model, None, "f16", None, speculation=speculation, proposers=proposers, draft=draft
    ) as engine:
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
