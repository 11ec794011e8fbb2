"""The best draft and the worst: the target as its own, and one of random weights.

The first shows that verification takes what is right: nearly everything must be accepted. The second shows what a
draft costs that is never right: three layers of the target, every matrix drawn at random.

python benchmarks/draft_ends.py --prompts spec_bench.jsonl --json benchmarks/results/draft_ends.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.api import Engine
from outrider.evaluate.bench import measure
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt, read_prompts
from outrider.models import Manifest, ModelFiles, Resolver
from outrider.models.base import MANIFEST, VOCABULARY
from outrider.params import SamplingParams
from outrider.runners.surgery import prune, save, set_weights, weights_of

LAYERS = (0, 14, 29)
TOKENS = 8000


def random_draft(target: ModelFiles, directory: Path) -> None:
    """Write a draft of a few layers whose matrices are noise as large as the target's own."""
    rng = np.random.default_rng(0)
    model = prune(target.directory, LAYERS, np.arange(TOKENS, dtype=np.int64))
    noise = {
        name: rng.normal(0.0, matrix.std(), matrix.shape).astype(np.float32)
        for name, matrix in weights_of(model).items()
    }
    set_weights(model, noise, 16)
    save(model, directory)
    np.save(directory / VOCABULARY, np.arange(TOKENS, dtype=np.int32))
    of = target.manifest
    manifest = Manifest(
        name="random",
        source="random weights",
        architecture=of.architecture,
        weights="F16",
        parameters=sum(matrix.size for matrix in noise.values()),
        context_length=of.context_length,
        eos_ids=(),
        special_ids=(),
        drafts_for=of.name,
    )
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def compare(
    model: str, draft: str, mode: str, prompts: Sequence[BenchPrompt], max_tokens: int, repeat: int
) -> dict[str, Any]:
    """Speed with a draft and nothing else over `off`, by neighbours in time, and what was accepted."""
    with Engine(model, draft=draft, proposers=(), prefix_caching=False) as engine:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        samples = measure(engine, prompts, ["off", mode], params, repeat)
        assert engine.draft is not None
        cost = engine.draft.cost_ratio
    ratios = []
    for number in range(repeat):
        seconds = {
            which: sum(s.decode_s for s in samples if s.repeat == number and s.mode == which) for which in ("off", mode)
        }
        ratios.append(seconds["off"] / seconds[mode])
    accepted, rejected = (sum(getattr(s, what) for s in samples) for what in ("accepted", "rejected"))
    return {
        "mode": mode,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "drafted": accepted + rejected,
        "acceptance": round(accepted / (accepted + rejected), 4) if accepted + rejected else None,
        "draft_pass_of_target_pass": round(cost, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    prompts = read_prompts(args.prompts, 1)[:3]
    files = Resolver().resolve(args.model)
    with tempfile.TemporaryDirectory() as directory:
        random_draft(files, Path(directory))
        worst = compare(args.model, directory, "auto", prompts, args.max_tokens, args.repeat)
    result = {
        **provenance(),
        "prompts": len(prompts),
        "max_tokens": args.max_tokens,
        "repeat": args.repeat,
        "random": worst,
        "itself": compare(args.model, args.model, "fixed:4", prompts, min(64, args.max_tokens), 1),
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
