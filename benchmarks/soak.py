"""Sixteen clients for ten minutes, some of whom misbehave, over a proposer that fails: does anything leak or differ?

Every finished answer is compared with the one that the same request got alone, with speculation off.

python benchmarks/soak.py --minutes 10 --json benchmarks/results/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

from outrider.api import Engine, chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.ties import find_difference
from outrider.params import SamplingParams
from outrider.proposers import Context, Draft
from outrider.server import ServerConfig, create_app

PROMPTS = (
    "What is a tide?",
    "Name three rivers of Europe.",
    "Repeat word for word: The ferry leaves at a quarter past seven, calls at both islands, and is back before noon.",
    "Write a Python function that adds two numbers.",
    "Translate to French: Good morning, how are you?",
    "List the months of the year.",
    "Repeat three times: one two three four five six seven.",
    "Tell me a short story about a lighthouse.",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.2},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.2, "seed": 2, "top_p": 0.9, "top_k": 50},
    {"temperature": 0.7, "seed": 3, "min_p": 0.05, "frequency_penalty": 0.5},
    {"temperature": 0, "stop": ["."]},
)
OVER_LIMITS: tuple[dict[str, Any], ...] = (
    {"temperature": 99},
    {"n": 1000},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
    {"messages": [{"role": "user", "content": "x" * (5 << 20)}]},
    {"nonsense": True},
)


class Flaky:
    """Drafts noise, raises, answers out of range, and dawdles now and then."""

    name = "flaky"

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:
        mood = self._rng.random() if contexts else 1.0
        if mood < 0.02:
            raise RuntimeError("in a mood")
        if mood < 0.03:
            time.sleep(0.3)
        token = 10**9 if mood < 0.05 else self._rng.randrange(40_000)
        return [Draft([token], [0.3]) for _ in budget]

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        pass

    def release(self, context: Context) -> None:
        if self._rng.random() < 0.05:
            raise KeyError(context.request)


def body_of(prompt: str, setting: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "smollm2-135m", "messages": messages, "max_tokens": max_tokens, "stream": True, **setting}


async def read(
    client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None
) -> tuple[int | str, str | None]:
    """Status and text of a streamed answer; no text when the client left."""
    try:
        return await _read(client, body, leave_after)
    except httpx.HTTPError as error:  # a connection that broke is an answer that was lost
        return type(error).__name__, None


async def _read(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None) -> tuple[int, str | None]:
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return answer.status_code, None
        text = ""
        count = 0
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return 200, text
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return 500, None
                text += event["choices"][0]["delta"].get("content") or ""
                count += 1
                if leave_after is not None and count > leave_after:
                    return 200, None
    return 0, None


async def visit(
    number: int, url: str, until: float, expected: dict[tuple[int, int], str], counts: Counter[str], odd: list[Any]
) -> None:
    rng = random.Random(number)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            which = (rng.randrange(len(PROMPTS)), rng.randrange(len(SETTINGS)))
            body = body_of(PROMPTS[which[0]], SETTINGS[which[1]], 32)
            kind = rng.random()
            if kind < 0.05:
                status, _ = await read(client, {**body, **rng.choice(OVER_LIMITS)}, None)
                refused = isinstance(status, int) and 400 <= status < 500
                counts["refused" if refused else f"lost: over a limit and answered {status}"] += 1
                continue
            leave = rng.randrange(12) if kind < 0.15 else None
            status, text = await read(client, body, leave)
            if status == 429:
                counts["queue full"] += 1
                await asyncio.sleep(1)
            elif status != 200:
                counts[f"lost: status {status}"] += 1
            elif text is None:
                counts["left"] += 1
            elif text == expected[which]:
                counts["identical"] += 1
            else:
                counts["different"] += 1
                odd.append((which, text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    # what is kept on purpose is full before the measurement begins: the last steps, and earlier answers
    kept = {"trace_steps": 512, "store_tokens": 16384}
    with Engine("smollm2-135m", proposers=["prediction", "suffix", "lookup", Flaky()], **kept) as engine:
        server = uvicorn.Server(
            uvicorn.Config(create_app(engine, ServerConfig()), host="127.0.0.1", port=0, log_level="error")
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        expected = {}
        for p, prompt in enumerate(PROMPTS):
            for s, setting in enumerate(SETTINGS):
                answer = engine.generate(chat(prompt), max_tokens=32, speculation="off", tenant=None, **setting)
                expected[p, s] = answer.text
        counts: Counter[str] = Counter()
        odd: list[Any] = []
        process = psutil.Process()
        sizes: list[tuple[float, int]] = []
        started = time.monotonic()
        until = started + 60 * args.minutes

        async def watch() -> None:
            while time.monotonic() < until:
                sizes.append((time.monotonic() - started, process.memory_info().rss))
                await asyncio.sleep(5)

        async def everybody() -> None:
            visits = [visit(n, url, until, expected, counts, odd) for n in range(args.clients)]
            await asyncio.gather(watch(), *visits)

        asyncio.run(everybody())
        deadline = time.monotonic() + 10
        while (gauges := engine.gauges()).kv_used and time.monotonic() < deadline:
            time.sleep(0.1)
        ready = httpx.get(f"{url}/ready").status_code == 200
        ties = errors = 0
        for (p, s), text in odd:
            setting = dict(SETTINGS[s])
            params = SamplingParams(max_tokens=32, **setting)
            plain = engine.generate(chat(PROMPTS[p]), params, speculation="off", tenant=None)
            found = find_difference(engine, plain.prompt_ids, plain.token_ids, engine.tokenizer.encode(text), params)
            ties += found is None or found.tie
            errors += found is not None and not found.tie
        server.should_exit = True
        thread.join(10)
        warm = [size for when, size in sizes if when > 12 * args.minutes]  # the first fifth warms up
        growth = (warm[-1] - warm[0]) / warm[0] if len(warm) > 1 else 0.0
        result = {
            **provenance(),
            "minutes": args.minutes,
            "clients": args.clients,
            "kept": kept,
            "answers": dict(counts),
            "differences": {"ties": ties, "errors": errors},
            "lost": sum(count for name, count in counts.items() if name.startswith("lost")),
            "kv_blocks_leaked": gauges.kv_used,
            "sequences_left": gauges.running + gauges.waiting,
            "faults": {name: list(pair) for name, pair in gauges.faults.items()},
            "memory_growth": round(growth, 4),
            "memory_mib": [round(size / 2**20) for _, size in sizes[:: max(1, len(sizes) // 20)]],
            "ready": ready,
        }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    good = not (errors or result["lost"] or gauges.kv_used or gauges.running or gauges.waiting) and ready
    sys.exit(0 if good and growth < 0.02 else 1)


if __name__ == "__main__":
    main()
