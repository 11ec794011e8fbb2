"""`auto` against hindsight: for each prompt the best of `off` and `fixed:1` to `fixed:12`, found by trying them all.

The best of so many noisy times is better than any mode is; so each prompt's best mode is the one of the lowest median,
and what counts is that median. It still favours hindsight.

python benchmarks/hindsight.py --prompts spec_bench.jsonl --json benchmarks/results/hindsight.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from outrider.api import Engine
from outrider.evaluate.bench import measure
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts
from outrider.params import SamplingParams

SWEEP = ("off", *(f"fixed:{window}" for window in range(1, 13)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    prompts = read_prompts(args.prompts, args.per_category)
    with Engine(args.model, prefix_caching=False, store_tokens=0) as engine:
        params = SamplingParams(max_tokens=args.max_tokens)
        samples = measure(engine, prompts, [*SWEEP, "auto"], params, args.repeat)
    rows: dict[str, dict[str, Any]] = {}
    for prompt in prompts:
        times = {
            mode: statistics.median(s.decode_s for s in samples if s.prompt is prompt and s.mode == mode)
            for mode in (*SWEEP, "auto")
        }
        best = min(SWEEP, key=times.__getitem__)
        rows[prompt.id] = {
            "category": prompt.category,
            "best": best,
            "best_s": round(times[best], 3),
            "auto_s": round(times["auto"], 3),
            "off_s": round(times["off"], 3),
            "fixed:4_s": round(times["fixed:4"], 3),
        }
    total = {name: sum(row[f"{name}_s"] for row in rows.values()) for name in ("best", "auto", "off", "fixed:4")}
    one = {mode: sum(s.decode_s for s in samples if s.mode == mode) / args.repeat for mode in SWEEP}
    result = {
        **provenance(),
        "prompts": len(prompts),
        "max_tokens": args.max_tokens,
        "repeat": args.repeat,
        "auto_of_hindsight": round(total["best"] / total["auto"], 3),
        "seconds": {name: round(value, 2) for name, value in total.items()},
        "one_mode_for_all_s": {mode: round(value, 2) for mode, value in one.items()},
        "by_prompt": rows,
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
