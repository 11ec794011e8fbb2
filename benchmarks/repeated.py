"""Traffic that repeats itself, from the suffix store; and edits, from the client's prediction.

python benchmarks/repeated.py --prompts spec_bench.jsonl --json benchmarks/results/repeated.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from outrider.api import Engine, Prompt, chat
from outrider.engine import Generation
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts
from outrider.proposers import SuffixStore
from outrider.proposers.shelf import BYTES_PER_TOKEN

EDITS = Path(__file__).parent / "data" / "edits.jsonl"


def speed(answers: list[Generation]) -> float:
    """Decoded tokens per second, over all answers together."""
    done = [answer.completions[0] for answer in answers]
    return sum(a.usage.completion_tokens - 1 for a in done) / sum(a.timings.decode or 0.0 for a in done)


def repeated(model: str, prompts: list[Prompt], repeat: int, max_tokens: int) -> dict[str, Any]:
    """The same prompts served twice, one at a time, by an engine that remembers; against the engine with `off`."""
    speeds: dict[str, list[float]] = {"off": [], "first": [], "second": []}
    identical = True
    lengths = []
    for _ in range(repeat):
        with Engine(model, prefix_caching=False) as engine:
            engine.generate(chat("Count to ten."), max_tokens=24, tenant=None)
            rounds: dict[str, list[Generation]] = {name: [] for name in speeds}
            for name in ("first", "second"):
                for prompt in prompts:
                    # the baseline stands beside each request, so that a slow moment meets both; it is not remembered
                    if name == "second":
                        off = engine.generate(prompt, max_tokens=max_tokens, speculation="off", tenant=None)
                        rounds["off"].append(off)
                    rounds[name].append(engine.generate(prompt, max_tokens=max_tokens))
            for name, answers in rounds.items():
                speeds[name].append(speed(answers))
            texts = [[answer.token_ids for answer in answers] for answers in rounds.values()]
            identical &= texts[0] == texts[1] == texts[2]
            usage = [answer.completions[0].usage for answer in rounds["second"]]
            lengths.append(sum(u.completion_tokens - 1 for u in usage) / sum(u.passes for u in usage))
    ratios = [second / off for second, off in zip(speeds["second"], speeds["off"], strict=True)]
    return {
        "prompts": len(prompts),
        "max_tokens": max_tokens,
        "tok_s": {name: round(statistics.median(values), 1) for name, values in speeds.items()},
        "second_over_off": round(statistics.median(ratios), 2),
        "all_ratios": [round(ratio, 2) for ratio in ratios],
        "tokens_per_pass": round(statistics.median(lengths), 2),
        "identical": identical,
    }


def edits(model: str, repeat: int) -> dict[str, Any]:
    """Each edit without speculation, with the prompt to draft from, and with the prediction too."""
    found = {}
    with Engine(model, prefix_caching=False, store_tokens=0) as engine:
        engine.generate(chat("Count to ten."), max_tokens=24)
        for line in EDITS.read_text(encoding="utf-8").splitlines():
            edit = json.loads(line)
            ways: dict[str, dict[str, Any]] = {
                "off": {"speculation": "off"},
                "auto": {},
                "prediction": {"prediction": edit["prediction"]},
            }
            speeds: dict[str, list[float]] = {way: [] for way in ways}
            texts = []
            for _ in range(repeat):
                for way, fields in ways.items():
                    answer = engine.generate(chat(edit["prompt"]), max_tokens=220, **fields)
                    speeds[way].append(speed([answer]))
                    texts.append(answer.token_ids)
            median = {way: statistics.median(values) for way, values in speeds.items()}
            found[edit["id"]] = {
                "tokens": len(texts[0]),
                "tok_s": {way: round(value, 1) for way, value in median.items()},
                "ratio": {way: round(value / median["off"], 2) for way, value in median.items()},
                "identical": all(text == texts[0] for text in texts),
            }
    return found


def memory(tokens: int = 1_000_000) -> dict[str, float]:
    """Of a store that is full, and the time that a token takes to get into it."""
    rng = random.Random(0)
    store = SuffixStore(1 << 20)
    answers = [[rng.randrange(49_152) for _ in range(500)] for _ in range(tokens // 500)]
    started = time.perf_counter()
    for answer in answers:
        store.remember("", answer)
    seconds = time.perf_counter() - started
    return {
        "tokens": tokens,
        "mebibytes": round(store.nbytes / 2**20, 1),
        "bytes_per_token_of_room": BYTES_PER_TOKEN,
        "microseconds_per_token": round(1e6 * seconds / tokens, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    found = read_prompts(args.prompts, 4)
    asked: list[Prompt] = [chat(prompt.text) for prompt in found[: args.count]]
    result = {
        **provenance(),
        "store": memory(),
        "repeated": repeated(args.model, asked, args.repeat, max_tokens=64),
        "edits": edits(args.model, args.repeat),
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
