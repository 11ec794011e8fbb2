"""A trace played through an engine: arrivals, queueing, continuous batching, with and without speculation.

The closed form says what a full batch does; here requests come as they come, so that percentiles under load are real.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from outrider.errors import InvalidRequest
from outrider.plan.capacity import Costs

CHUNK_TOKENS = 2048
"""Prompt tokens in a pass at most."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


class Simulated(BaseModel):
    """What came out."""

    requests: int
    makespan_seconds: float
    tokens_per_second: float
    ttft_p50_seconds: float
    ttft_p95_seconds: float
    ttft_p99_seconds: float
    itl_p50_seconds: float
    itl_p95_seconds: float
    mean_batch: float
    mean_window: float
    waited_share: float
    """Share of requests that waited for memory or a place in the batch."""


@dataclass(slots=True)
class _Running:
    arrival: Arrival
    unread: int
    """Prompt tokens that have not gone through the model."""
    said: float = 0.0
    first_at: float = 0.0


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """Read Azure's CSV (`TIMESTAMP,ContextTokens,GeneratedTokens`) or Mooncake's JSON lines (`timestamp` in ms,
    `input_length`, `output_length`), plain or gzipped.

    Raises:
        InvalidRequest: the file cannot be read or has another form.
    """
    found: list[Arrival] = []
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            if path.name.removesuffix(".gz").endswith(".csv"):
                first: datetime | None = None
                for row in csv.DictReader(file):
                    moment = datetime.fromisoformat(row["TIMESTAMP"][:26])
                    first = first or moment
                    prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
                    found.append(Arrival((moment - first).total_seconds(), max(1, prompt), max(1, output)))
                    if limit is not None and len(found) == limit:
                        break
            else:
                for line in file:
                    entry = json.loads(line)
                    prompt, output = int(entry["input_length"]), int(entry["output_length"])
                    found.append(Arrival(float(entry["timestamp"]) / 1e3, max(1, prompt), max(1, output)))
                    if limit is not None and len(found) == limit:
                        break
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no trace ({error!r}); a CSV has TIMESTAMP,ContextTokens,GeneratedTokens, JSON lines have "
            "timestamp, input_length, output_length"
        ) from None
    if not found:
        raise InvalidRequest(f"{path} has no requests")
    return sorted(found, key=lambda arrival: arrival.at_seconds)


def at_rate(trace: Sequence[Arrival], requests_per_second: float) -> list[Arrival]:
    """The same requests in the same rhythm, faster or slower."""
    span = trace[-1].at_seconds - trace[0].at_seconds
    if span <= 0:
        return list(trace)
    scale = (len(trace) - 1) / span / requests_per_second
    start = trace[0].at_seconds
    return [Arrival((a.at_seconds - start) * scale, a.prompt_tokens, a.output_tokens) for a in trace]


def poisson(
    requests: int, requests_per_second: float, prompt_tokens: float, output_tokens: float, seed: int = 0
) -> list[Arrival]:
    """Requests at random moments, with lengths spread as an exponential around their means."""
    rng = np.random.default_rng(seed)
    moments = rng.exponential(1.0 / requests_per_second, requests).cumsum()
    prompts = np.maximum(1, rng.exponential(prompt_tokens, requests)).astype(int)
    outputs = np.maximum(1, rng.exponential(output_tokens, requests)).astype(int)
    return [Arrival(float(t), int(p), int(o)) for t, p, o in zip(moments, prompts, outputs, strict=True)]


def simulate(
    trace: Sequence[Arrival],
    costs: Costs,
    *,
    kv_tokens: float,
    max_batch: int,
    window_of: Callable[[int], int],
    tokens_per_pass: Callable[[int], float],
) -> Simulated:
    """Play a trace.

    Args:
        trace: requests by arrival.
        costs: of passes.
        kv_tokens: that the memory holds, over all sequences.
        max_batch: sequences at most.
        window_of: window by how many sequences decode; always 0 for none.
        tokens_per_pass: expected tokens of a pass by window.

    Raises:
        InvalidRequest: a request alone is larger than the memory.
    """
    for arrival in trace:
        if arrival.prompt_tokens + arrival.output_tokens > kv_tokens:
            raise InvalidRequest(
                f"a request of {arrival.prompt_tokens} + {arrival.output_tokens} tokens does not fit into a KV cache "
                f"of {kv_tokens:.0f}"
            )
    now = trace[0].at_seconds
    coming, waiting, running = deque(trace), deque[Arrival](), list[_Running]()
    held = 0
    ttfts: list[float] = []
    itls: list[float] = []
    waited = left = 0
    batches = windows = steps = 0
    said = 0.0
    while coming or waiting or running:
        if not running and not waiting:
            now = max(now, coming[0].at_seconds)
        while coming and coming[0].at_seconds <= now:
            waiting.append(coming.popleft())
        admitted = 0
        while waiting and len(running) < max_batch:
            need = waiting[0].prompt_tokens + waiting[0].output_tokens
            if held + need > kv_tokens:
                break
            arrival = waiting.popleft()
            running.append(_Running(arrival, arrival.prompt_tokens))
            held += need
            admitted += 1
        still = max(0, left - admitted)  # the queue is served in order
        left = len(waiting)
        waited += left - still
        decoding = [each for each in running if not each.unread]
        reading = [each for each in running if each.unread]
        window = window_of(len(decoding)) if decoding else 0
        seconds, chunk = 0.0, CHUNK_TOKENS
        if decoding:
            context = sum(each.arrival.prompt_tokens + each.said for each in decoding) / len(decoding)
            seconds += costs.cycle(len(decoding), window, context)
        finished_reading = []
        read_now = 0
        for each in reading:
            take = min(each.unread, chunk)
            each.unread -= take
            chunk -= take
            read_now += take
            if not each.unread:
                finished_reading.append(each)
            if not chunk:
                break
        if read_now:
            alone = costs.prefill(read_now)
            # in a pass with others its tokens cost what they add to it
            seconds = seconds + alone - (costs.prefill(1) if decoding else 0.0)
        now += seconds
        for each in finished_reading:
            each.said = 1.0
            each.first_at = now
            ttfts.append(now - each.arrival.at_seconds)
        gained = tokens_per_pass(window)
        for each in decoding:
            each.said += gained
        for each in [each for each in running if not each.unread and each.said >= each.arrival.output_tokens]:
            running.remove(each)
            held -= each.arrival.prompt_tokens + each.arrival.output_tokens
            said += each.arrival.output_tokens
            if each.arrival.output_tokens > 1:
                itls.append((now - each.first_at) / (each.arrival.output_tokens - 1))
        steps += 1
        batches += len(decoding)
        windows += window
    span = max(1e-9, now - trace[0].at_seconds)
    ttft = np.percentile(ttfts, [50, 95, 99])
    itl = np.percentile(itls or [0.0], [50, 95])
    return Simulated(
        requests=len(trace),
        makespan_seconds=span,
        tokens_per_second=said / span,
        ttft_p50_seconds=float(ttft[0]),
        ttft_p95_seconds=float(ttft[1]),
        ttft_p99_seconds=float(ttft[2]),
        itl_p50_seconds=float(itl[0]),
        itl_p95_seconds=float(itl[1]),
        mean_batch=batches / steps,
        mean_window=windows / steps,
        waited_share=waited / len(trace),
    )
