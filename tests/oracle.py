"""The plain loop: one token at a time, everything recomputed, nothing shared with the engine but the noise itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.params import SamplingParams
from outrider.testing.runner import Script
from outrider.verify.noise import race_bits


def choose(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], end_ids: Sequence[int],
    seed: int, stream: int,
) -> int:  # fmt: skip
    """The next token, straight from the definitions."""
    x = logits.astype(np.float32).copy()
    for token in range(len(x)):
        if token in prompt or token in output:
            r = np.float32(params.repetition_penalty)
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        said = list(output).count(token)
        x[token] -= np.float32(params.frequency_penalty) * np.float32(said)
        x[token] -= np.float32(params.presence_penalty) * np.float32(said > 0)
    for token, bias in params.logit_bias.items():
        x[token] += np.float32(bias)
    if len(output) < params.min_tokens:
        for token in end_ids:
            x[token] = -np.inf
    if params.temperature == 0.0:
        return int(x.argmax())
    weights = np.exp(x * np.float32(1 / params.temperature) - (x * np.float32(1 / params.temperature)).max())
    kept = sorted(range(len(x)), key=lambda token: (-x[token], token))
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        total, reached, nucleus = sum(float(weights[t]) for t in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            reached += float(weights[token])
            if reached >= params.top_p * total:
                break
        kept = nucleus
    if params.min_p:
        kept = [token for token in kept if weights[token] >= params.min_p * weights[kept].max()]
    bits = race_bits(seed, stream, len(prompt) + len(output), len(x)).astype(np.float64)
    race = {token: weights[token] / -np.log1p(-(bits[token] + 0.5) / 2**32) for token in kept}
    return max(race, key=lambda token: (race[token], -token))


def generate(
    script: Script,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int = 0,
    stream: int = 0,
    eos_ids: Sequence[int] = (),
    context_length: int = 256,
) -> tuple[list[int], str]:
    """Output ids and finish reason, stop strings left out."""
    ends = [*([] if params.ignore_eos else eos_ids), *params.stop_token_ids]
    output: list[int] = []
    most = context_length - len(prompt)
    if params.max_tokens is not None:
        most = min(most, params.max_tokens)
    while True:
        token = choose(script([*prompt, *output]), params, prompt, output, ends, seed, stream)
        output.append(token)
        if token in ends:
            return output, "stop"
        if len(output) >= most:
            return output, "length"
