"""The server under load, by locust: `auto` against `off` at 1, 4 and 16 clients, and `smooth` against `burst`.

One server, modes in turn, several rounds. pip install locust, then
python benchmarks/serve_load.py --prompts spec_bench.jsonl --json benchmarks/results/serve_load.json
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.evaluate.machine import provenance

CLIENTS = (1, 4, 16)
ANSWERS = {1: 13, 4: 26, 16: 52}
"""Of one run: each prompt as often as any other, whatever the speed."""
MODES = ("off", "auto")
PACES = {"off": ("off", "burst"), "burst": ("auto", "burst"), "smooth": ("auto", "smooth")}
"""Mode and pace; without speculation the gaps vary by as much as steps do, which no pace can take away."""
PROFILES = ("interactive", "batch", "latency")
GAPS = ("token_gap_variation", "chunk_gap_variation")
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def load(url: str, clients: int, **asked: str) -> dict[str, Any]:
    """One run of locust; what its clients noted."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.json"
        environment = {**os.environ, "OUTRIDER_LOAD_OUT": str(out), "OUTRIDER_LOAD_ANSWERS": str(ANSWERS[clients])}
        environment |= {f"OUTRIDER_LOAD_{name.upper()}": value for name, value in asked.items()}
        subprocess.run(
            [sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--headless", "--host", url, "-u",
             str(clients), "-r", str(clients), "-t", "300s", "--stop-timeout", "60", "--only-summary"],
            env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(out.read_text())
    answers = found["answers"]
    return {
        "answers": len(answers),
        "failures": found["failures"],
        # of each client's own seconds, so that a run's ragged end does not count
        "tok_s": clients * sum(a["tokens"] for a in answers) / max(1e-9, sum(a["seconds"] for a in answers)),
        "ttft_ms": 1e3 * statistics.median(a["ttft"] for a in answers),
        **{name: statistics.median(a[name] for a in answers) for name in GAPS},
    }


@contextmanager
def serving(model: str, draft: str | None, *options: str) -> Iterator[str]:
    """A server of its own process that is ready; its address."""
    port = free_port()
    command = [sys.executable, "-m", "outrider", "serve", "-m", model, "--port", str(port), "--store-tokens", "0"]
    command += [*(["--draft", draft] if draft else []), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/ready").close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-profiles", action="store_true", help="leave the profiles out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    asked = {"model": args.model, "prompts": str(args.prompts)}
    result: dict[str, Any] = {
        "what": "clients of locust that ask again at once; ratios of medians over rounds, modes in turn",
        **provenance(),
        "draft": args.draft,
        "answers": ANSWERS,
        "rounds": args.rounds,
        "clients": {},
        "profiles": {},
    }
    with serving(args.model, args.draft) as url:
        for mode in MODES:
            load(url, 1, mode=mode, pace="burst", **asked)
        for clients in CLIENTS:  # more rounds of the shorter runs
            runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
            for number in range(args.rounds if clients > 1 else 2 * args.rounds):
                for mode in MODES if number % 2 else MODES[::-1]:
                    runs[mode].append(load(url, clients, mode=mode, pace="burst", **asked))
            middle = {
                mode: {name: statistics.median(run[name] for run in own) for name in ("tok_s", "ttft_ms")}
                for mode, own in runs.items()
            }
            # of neighbours in time, so that a slow minute falls on both
            pairs = list(zip(runs["off"], runs["auto"], strict=True))
            ratios = {name: [auto[name] / off[name] for off, auto in pairs] for name in ("tok_s", "ttft_ms")}
            result["clients"][clients] = {
                "tok_s": {mode: round(m["tok_s"], 1) for mode, m in middle.items()},
                "ratio": round(statistics.median(ratios["tok_s"]), 3),
                "ratios": [round(value, 3) for value in ratios["tok_s"]],
                "ttft_ms": {mode: round(m["ttft_ms"], 1) for mode, m in middle.items()},
                "ttft_ratio": round(statistics.median(ratios["ttft_ms"]), 3),
                "ttft_ratios": [round(value, 3) for value in ratios["ttft_ms"]],
                "failures": sum(run["failures"] for own in runs.values() for run in own),
            }
            print(clients, json.dumps(result["clients"][clients]), flush=True)
        gaps: dict[str, list[dict[str, Any]]] = {pace: [] for pace in PACES}
        for number in range(args.rounds):
            for name in PACES if number % 2 else reversed(PACES):
                mode, pace = PACES[name]
                gaps[name].append(load(url, 1, mode=mode, pace=pace, **asked))
        for name in GAPS:
            result[name] = {pace: round(statistics.median(run[name] for run in gaps[pace]), 3) for pace in PACES}
    profiles = () if args.no_profiles else PROFILES
    for profile in profiles:  # one server each, so not interleaved: for the order of things, not for small differences
        with serving(args.model, args.draft, "--profile", profile) as url:
            load(url, 1, mode="auto", **asked)
            run = load(url, 16, mode="auto", **asked)
            result["profiles"][profile] = {name: round(value, 3) for name, value in run.items()}
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
