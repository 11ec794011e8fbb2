"""What `assess` foretells against what serving does: acceptance of lookup and suffix, and speed.

The model answers every prompt; `assess` replays the answers without it; then the same prompts are served with one
proposer and a fixed window. Acceptance does not depend on the batch, so it is served in batches; speed is measured
alone, on fewer.

python benchmarks/assess_check.py --prompts spec_bench.jsonl --json benchmarks/results/assess.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from outrider.api import Engine, chat, measured_cost
from outrider.evaluate.bench import measure
from outrider.evaluate.foresee import answers_to
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts
from outrider.models import Resolver
from outrider.params import SamplingParams
from outrider.plan import assess

WINDOW = 4
PROPOSERS = ("lookup", "suffix")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timed-per-category", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    prompts = read_prompts(args.prompts)
    answers = answers_to(args.model, prompts, args.max_tokens)
    cost = measured_cost(Resolver().resolve(args.model))
    started = time.perf_counter()
    foretold = assess(answers, cost)
    seconds = time.perf_counter() - started
    timed = read_prompts(args.prompts, args.timed_per_category)
    chosen = {prompt.id for prompt in timed}
    timed_answers = [answer for prompt, answer in zip(prompts, answers, strict=True) if prompt.id in chosen]
    few = assess(timed_answers, cost)
    result: dict[str, Any] = {
        "what": "acceptance and speed at a window of 4: foretold from answers alone, and served",
        **provenance(),
        "prompts": len(prompts),
        "tokens": foretold.overall.tokens,
        "replay_seconds": round(seconds, 1),
        "proposers": {},
    }
    for name in PROPOSERS:
        said = next(each for each in foretold.overall.proposers if each.proposer == name).windows[WINDOW - 1]
        fast = next(each for each in few.overall.proposers if each.proposer == name).windows[WINDOW - 1]
        with Engine(args.model, proposers=name, store_tokens=0, prefix_caching=False) as engine:
            accepted = drafted = 0
            for start in range(0, len(prompts), 16):
                group = [chat(prompt.text) for prompt in prompts[start : start + 16]]
                served = engine.generate_batch(group, max_tokens=args.max_tokens, speculation=f"fixed:{WINDOW}")
                accepted += sum(answer.usage.accepted for answer in served)
                drafted += sum(answer.usage.accepted + answer.usage.rejected for answer in served)
            modes = ["off", f"fixed:{WINDOW}"]
            samples = measure(engine, timed, modes, SamplingParams(max_tokens=args.max_tokens), args.repeat)
        ratios = []
        for number in range(args.repeat):
            own = {mode: [s for s in samples if s.mode == mode and s.repeat == number] for mode in modes}
            speed = {m: sum(len(s.tokens) - 1 for s in o) / sum(s.decode_s for s in o) for m, o in own.items()}
            ratios.append(speed[modes[1]] / speed["off"])
        measured = statistics.median(ratios)
        assert said.acceptance is not None
        assert fast.speedup is not None
        result["proposers"][name] = {
            "acceptance": {"foretold": round(said.acceptance, 4), "served": round(accepted / drafted, 4)},
            "speed": {
                "foretold": round(fast.speedup, 3),
                "served": round(measured, 3),
                "all_served": [round(ratio, 3) for ratio in ratios],
                "error": round(fast.speedup / measured - 1, 3),
            },
        }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
