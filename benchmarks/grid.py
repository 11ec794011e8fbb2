"""Seconds of a pass by batch and window, as `plan --calibrate` reads them: real text, a KV cache with contexts.

python benchmarks/grid.py --prompts spec_bench.jsonl --json benchmarks/results/grid.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from outrider.api import chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import read_prompts
from outrider.models import Resolver, Tokenizer
from outrider.plan.roofline import Point, held_out_errors
from outrider.runners import Segment
from outrider.runners.openvino import OpenVINORunner

BATCHES = (1, 2, 3, 4, 6, 8)
WINDOWS = range(9)
CONTEXT = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    files = Resolver().resolve(args.model)
    runner = OpenVINORunner(files.directory, context_length=files.manifest.context_length, kv_bytes=512 << 20)
    tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
    block = runner.info.block_size
    each = -(-(CONTEXT + 16) // block)
    texts = []
    for number, prompt in enumerate(read_prompts(args.prompts, 1)[: max(BATCHES)]):
        ids = tokenizer.chat(chat(prompt.text))
        ids = (ids * (CONTEXT // len(ids) + 2))[: CONTEXT + 16]
        blocks = list(range(number * each, (number + 1) * each))
        runner.forward([Segment(ids[:CONTEXT], 0, blocks, 0)])
        texts.append((ids, blocks))
    taken: dict[tuple[int, int], list[float]] = {(b, w): [] for b in BATCHES for w in WINDOWS}
    for _ in range(args.repeat + 1):  # the first round compiles kernels
        for (batch, window), times in taken.items():
            segments = [
                Segment(ids[CONTEXT : CONTEXT + window + 1], CONTEXT, blocks, window + 1)
                for ids, blocks in texts[:batch]
            ]
            started = time.perf_counter()
            runner.forward(segments)
            times.append(time.perf_counter() - started)
    points: list[dict[str, Any]] = [
        {"batch": b, "window": w, "context_tokens": CONTEXT, "seconds": round(statistics.median(times[1:]), 6)}
        for (b, w), times in taken.items()
    ]
    errors = held_out_errors([Point.model_validate(point) for point in points])
    shares = sorted(abs(error.error) for error in errors)
    result = {
        "what": "seconds of a pass by batch and window; each predicted from all the others",
        **provenance(),
        "model": args.model,
        "repeat": args.repeat,
        "median_error": round(shares[len(shares) // 2], 4),
        "worst_error": round(shares[-1], 4),
        "within_15_percent": round(sum(share <= 0.15 for share in shares) / len(shares), 3),
        "points": points,
        "predicted": [
            {"batch": e.batch, "window": e.window, "seconds": round(e.predicted_seconds, 6), "error": round(e.error, 4)}
            for e in errors
        ],
    }
    print(json.dumps({k: v for k, v in result.items() if k not in ("points", "predicted")}, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
