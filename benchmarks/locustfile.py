"""What each simulated client does: ask, read the stream, write down when each chunk came. Run by `serve_load.py`.

OUTRIDER_LOAD_MODE and _PACE say how to ask, _PROMPTS and _MODEL what, _ANSWERS how often, and _OUT where it is noted.
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
from locust.exception import StopUser

from outrider.evaluate.prompts import read_prompts

MODE = os.environ.get("OUTRIDER_LOAD_MODE", "auto")
PACE = os.environ.get("OUTRIDER_LOAD_PACE")
MAX_TOKENS = int(os.environ.get("OUTRIDER_LOAD_TOKENS", "64"))
ANSWERS = int(os.environ.get("OUTRIDER_LOAD_ANSWERS", "13"))
PROMPTS = [prompt.text for prompt in read_prompts(Path(os.environ["OUTRIDER_LOAD_PROMPTS"]), 1)]

noted: list[dict[str, Any]] = []
turn = itertools.count()
ended = itertools.count(1)


def variation(gaps: list[float]) -> float:
    """Standard deviation over mean."""
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


class Client(HttpUser):  # type: ignore[misc]  # locust has no types
    """One client that asks again as soon as it has its answer."""

    wait_time = constant(0)

    @task  # type: ignore[misc,untyped-decorator]
    def chat(self) -> None:
        number = next(turn)
        if number >= ANSWERS:
            raise StopUser
        self.ask(PROMPTS[number % len(PROMPTS)])
        if next(ended) == ANSWERS:
            self.environment.runner.quit()

    def ask(self, prompt: str) -> None:
        """One answer, read to its end."""
        body = {
            "model": os.environ["OUTRIDER_LOAD_MODEL"],
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "include_tokens": True},
            "speculation": MODE,
            "remember": False,
            **({"pace": PACE} if PACE else {}),
        }
        started = time.perf_counter()
        moments: list[float] = []
        token_gaps: list[float] = []
        tokens = 0
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as answer:
            for line in answer.iter_lines():
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    now = time.perf_counter() - started
                    if moments:  # tokens that come together have no time between them
                        count = sum(len(choice["tokens"]) for choice in event["choices"])
                        token_gaps += [now - moments[-1]] + [0.0] * (count - 1)
                    moments.append(now)
            if not tokens:
                answer.failure("no usage at the end")
        gaps = [b - a for a, b in itertools.pairwise(moments)]
        if tokens and len(gaps) > 8:
            noted.append(
                {
                    "tokens": tokens,
                    "ttft": moments[0],
                    "seconds": time.perf_counter() - started,
                    "chunk_gap_variation": variation(gaps),
                    "token_gap_variation": variation(token_gaps),
                }
            )


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def write(environment: Any, **_: Any) -> None:
    result = {"answers": noted, "failures": environment.stats.total.num_failures}
    Path(os.environ["OUTRIDER_LOAD_OUT"]).write_text(json.dumps(result), encoding="utf-8")
