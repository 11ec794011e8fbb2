"""Plain decoding of Outrider against OpenVINO GenAI's own pipeline: same IR, same prompts, one run, interleaved.

python benchmarks/genai_baseline.py --prompts spec_bench.jsonl --json benchmarks/results/genai_baseline.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import openvino_genai

from outrider.api import Engine, chat
from outrider.evaluate.machine import provenance
from outrider.evaluate.prompts import BenchPrompt, read_prompts
from outrider.models import Resolver

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
# `exact` has our numerics; `default` is what its users get (activations may be quantised, attention its choice)
PIPELINES = {"genai default": {}, "genai exact": EXACT}


def genai_speed(pipeline: openvino_genai.LLMPipeline, prompt: BenchPrompt, max_tokens: int) -> tuple[float, str]:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.do_sample = False
    answer = pipeline.generate([prompt.text], config)
    return 1000.0 / answer.perf_metrics.get_tpot().mean, answer.texts[0]


def outrider_speed(engine: Engine, prompt: BenchPrompt, max_tokens: int) -> tuple[float, str]:
    answer = engine.generate(chat(prompt.text), max_tokens=max_tokens, speculation="off").completions[0]
    assert answer.timings.decode
    return (len(answer.tokens) - 1) / answer.timings.decode, answer.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    prompts = read_prompts(args.prompts, args.per_category)
    directory = str(Resolver().resolve(args.model).directory)
    pipelines = {name: openvino_genai.LLMPipeline(directory, "CPU", **kw) for name, kw in PIPELINES.items()}
    ratios: dict[str, list[float]] = {name: [] for name in pipelines}
    speeds: dict[str, list[float]] = {name: [] for name in ("outrider off", *pipelines)}
    same = dict.fromkeys(pipelines, 0)
    with Engine(args.model, prefix_caching=False) as engine:
        for repeat in range(-1, args.repeat):  # the first round warms up
            for number, prompt in enumerate(prompts):
                found: dict[str, tuple[float, str]] = {}
                order = ["outrider off", *pipelines]
                shift = (number + repeat) % len(order)
                for name in order[shift:] + order[:shift]:
                    if name in pipelines:
                        found[name] = genai_speed(pipelines[name], prompt, args.max_tokens)
                    else:
                        found[name] = outrider_speed(engine, prompt, args.max_tokens)
                if repeat < 0:
                    continue
                for name, (speed, text) in found.items():
                    speeds[name].append(speed)
                    if name in pipelines:
                        ratios[name].append(found["outrider off"][0] / speed)
                        same[name] += text.strip() == found["outrider off"][1].strip()
    runs = len(prompts) * args.repeat
    result = {
        "what": "decode tokens/s of outrider --speculation off over OpenVINO GenAI, prompt by prompt",
        **provenance(),
        "runs": runs,
        "tok_s": {name: round(statistics.median(values), 2) for name, values in speeds.items()},
        "ratio_of_medians": {
            name: round(statistics.median(speeds["outrider off"]) / statistics.median(speeds[name]), 3)
            for name in pipelines
        },
        "ratio_by_prompt_quartiles": {
            name: [round(q, 3) for q in statistics.quantiles(values, n=4)] for name, values in ratios.items()
        },
        "same_text": {name: f"{count} of {runs}" for name, count in same.items()},
    }
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
