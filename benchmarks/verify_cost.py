"""What verification costs: five rows of 49152 logits, all accepted, by sampling parameters and way.

python benchmarks/verify_cost.py --json benchmarks/results/verify_cost.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from outrider.evaluate.machine import provenance
from outrider.params import SamplingParams, Verification
from outrider.proposers import NO_DRAFT, Draft
from outrider.verify import Sampler, verify

V, ROWS, REPEATS = 49152, 5, 200
CASES: dict[str, tuple[dict[str, Any], Verification]] = {
    "greedy": ({}, "coupled"),
    "greedy, penalties": ({"repetition_penalty": 1.1, "frequency_penalty": 0.2}, "coupled"),
    "greedy, 5 logprobs": ({"logprobs": 5}, "coupled"),
    "temperature": ({"temperature": 0.8}, "coupled"),
    "top-k 50, top-p 0.95": ({"temperature": 0.8, "top_k": 50, "top_p": 0.95}, "coupled"),
    "top-p 0.95": ({"temperature": 0.8, "top_p": 0.95}, "coupled"),
    "min-p 0.05, repetition 1.1": ({"temperature": 0.8, "min_p": 0.05, "repetition_penalty": 1.1}, "coupled"),
    "top-k 50, top-p 0.95, rejection": ({"temperature": 0.8, "top_k": 50, "top_p": 0.95}, "rejection"),
    "top-k 50, top-p 0.95, block": ({"temperature": 0.8, "top_k": 50, "top_p": 0.95}, "block"),
}


def logits() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows shaped like a language model's: a few likely tokens over a long tail."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0.0, 2.5, (ROWS, V)).astype(np.float32)
    for row in rows:
        row[rng.integers(0, V, 40)] += rng.exponential(4.0, 40).astype(np.float32) + 8.0
    return rows


def measure(fields: dict[str, Any], way: Verification) -> dict[str, float]:
    rows, params = logits(), SamplingParams(**fields)
    prompt = np.random.default_rng(1).integers(0, V, 500).tolist()

    def sampler() -> Sampler:
        return Sampler(params, seed=1, stream=0, prompt=prompt, vocabulary=V)

    truth: list[int] = []
    state = sampler()
    for row in rows[:-1]:  # the draft that coupled verification accepts whole: the most work that there is
        truth += verify(row[None], NO_DRAFT, state).tokens
    draft = Draft(truth, [0.5] * len(truth))
    milliseconds = []
    for _ in range(REPEATS):
        state = sampler()
        started = time.perf_counter()
        verify(rows, draft, state, way)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return {
        "median_ms": round(statistics.median(milliseconds), 3),
        "p95_ms": round(statistics.quantiles(milliseconds, n=20)[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {
        "what": f"milliseconds to verify {ROWS} rows of {V} logits",
        **provenance(),
        "cases": {name: measure(*case) for name, case in CASES.items()},
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
