"""What each simulated client does: ask, read the stream, write down when each chunk came. Run by `serve_load.py`.

OUTRIDER_LOAD_MODE and _PACE say how to ask, _PROMPTS and _MODEL what, and _OUT where it is noted.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from locust import HttpUser, constant, events, task

from outrider.evaluate.prompts import read_prompts

MODE = os.environ.get("OUTRIDER_LOAD_MODE", "auto")
PACE = os.environ.get("OUTRIDER_LOAD_PACE", "burst")
MAX_TOKENS = int(os.environ.get("OUTRIDER_LOAD_TOKENS", "64"))
PROMPTS = [prompt.text for prompt in read_prompts(Path(os.environ["OUTRIDER_LOAD_PROMPTS"]), 1)]

noted: list[dict[str, Any]] = []
turn = itertools.count()


class Client(HttpUser):  # type: ignore[misc]  # locust has no types
    """One client that asks again as soon as it has its answer."""

    wait_time = constant(0)

    @task  # type: ignore[misc,untyped-decorator]
    def chat(self) -> None:
        body = {
            "model": os.environ["OUTRIDER_LOAD_MODEL"],
            "messages": [{"role": "user", "content": PROMPTS[next(turn) % len(PROMPTS)]}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": MODE,
            "pace": PACE,
            "remember": False,
        }
        started = time.perf_counter()
        moments = []
        tokens = 0
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as answer:
            for line in answer.iter_lines():
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    moments.append(time.perf_counter() - started)
            if not tokens:
                answer.failure("no usage at the end")
        gaps = [b - a for a, b in itertools.pairwise(moments)]
        if tokens and len(gaps) > 8:
            noted.append(
                {
                    "tokens": tokens,
                    "ttft": moments[0],
                    "seconds": time.perf_counter() - started,
                    "gap_variation": statistics.pstdev(gaps) / statistics.fmean(gaps),
                }
            )


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def write(environment: Any, **_: Any) -> None:
    result = {"answers": noted, "failures": environment.stats.total.num_failures}
    Path(os.environ["OUTRIDER_LOAD_OUT"]).write_text(json.dumps(result), encoding="utf-8")
