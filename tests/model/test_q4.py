"""The 4-bit model, whose kernels are others: the same text there too."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.api import Engine, chat
from outrider.evaluate.prompts import read_prompts
from outrider.evaluate.ties import find_difference
from outrider.params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

PROMPTS = read_prompts(Path(__file__).parent.parent / "data" / "spec_bench_26.jsonl", per_category=1)


@pytest.mark.parametrize("window", [4, 8])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
def test_four_bit_weights(window: int, fields: dict[str, float]) -> None:
    params = SamplingParams(max_tokens=48, **fields)
    with Engine("smollm2-135m-q4") as engine:
        for prompt in PROMPTS:
            plain = engine.generate(chat(prompt.text), params, speculation="off").token_ids
            fast = engine.generate(chat(prompt.text), params, speculation=f"fixed:{window}").token_ids
            difference = find_difference(engine, engine.encode(chat(prompt.text)), plain, fast, params)
            assert difference is None or difference.tie, f"prompt {prompt.id}: {difference}"
