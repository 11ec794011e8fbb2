"""A long prompt beside a short one: how long the short one's reader waits between tokens while the long one prefills.

python benchmarks/mixed_prefill.py --prompts spec_bench.jsonl --json benchmarks/results/mixed_prefill.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from pathlib import Path

from outrider.api import Engine
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts


def run(engine: Engine, short: list[int], long: list[int], speculation: str) -> dict[str, float]:
    """Start the short request, add the long one after ten tokens, time the short one's chunks."""
    moments: list[float] = []
    begun = threading.Event()
    ended: list[float] = []

    def read_long() -> None:
        begun.wait()
        ended.extend(time.perf_counter() for _ in engine.stream(long, max_tokens=2, speculation=speculation))

    reader = threading.Thread(target=read_long)
    reader.start()
    submitted = 0.0
    handle = engine.stream(short, max_tokens=2000, ignore_eos=True, speculation=speculation)
    for chunk in handle:
        moments.append(time.perf_counter())
        if len(moments) == 10:
            submitted = time.perf_counter()
            begun.set()
        if (ended and moments[-1] > ended[0] + 0.5) or chunk.finish_reason:
            break
    handle.cancel()
    reader.join()
    gaps = [b - a for a, b in itertools.pairwise(moments) if a >= submitted and b <= ended[0]]
    alone = [b - a for a, b in itertools.pairwise(moments) if b < submitted or a > ended[0]]
    return {
        "long_ttft_s": round(ended[0] - submitted, 3),
        "gaps": len(gaps),
        "median_gap_ms": round(1000 * statistics.median(gaps), 2),
        "max_gap_ms": round(1000 * max(gaps), 2),
        "max_over_median": round(max(gaps) / statistics.median(gaps), 3),
        "median_gap_alone_ms": round(1000 * statistics.median(alone), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    texts = [prompt.text for prompt in read_prompts(args.prompts)]
    with Engine(args.model, prefix_caching=False) as engine:
        long = engine.encode(" ".join(texts * 2))[:4000]
        short = engine.encode(
            "Once upon a time, in a small village by the sea, there lived an old fisherman who had three sons and a "
            "boat with a red sail. One morning"
        )[:30]
        engine.generate(short, max_tokens=32)
        runs = {mode: [run(engine, short, long, mode) for _ in range(args.repeat)] for mode in ("off", "fixed:4")}
    result = {
        "what": f"gaps between chunks of a {len(short)}-token prompt while one of {len(long)} tokens prefills",
        **provenance(),
        "runs": runs,
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
