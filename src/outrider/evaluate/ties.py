"""When two texts differ: a tie that rounding flipped, or an error.

Passes of different widths run different kernels, whose logits differ in the last bits. Where the two best choices lie
that close, either may win. Everything else is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.api import Engine
from outrider.params import MAX_LOGPROBS, SamplingParams
from outrider.verify.noise import exponential, race_bits

TOLERANCE = 0.02
"""Most that rounding moves a log-probability between passes of different widths (measured: up to 0.009)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two token sequences part, and how close the choice was."""

    position: int
    """Index of the first output token that differs."""
    gap: float
    """Distance of the two tokens' scores there: log-probabilities, over temperature and with noise when sampling.
    Infinite when one of them is not near the top at all, or one text is just shorter."""

    @property
    def tie(self) -> bool:
        """Whether rounding explains it."""
        return self.gap <= TOLERANCE

    def __str__(self) -> str:
        return f"{'tie' if self.tie else 'error'} at token {self.position}, gap {self.gap:.4g}"


def find_difference(
    engine: Engine, prompt: Sequence[int], first: Sequence[int], second: Sequence[int], params: SamplingParams
) -> Difference | None:
    """Compare two outputs of the same request; None when they are equal.

    The gap is measured by one more plain pass over the prompt and the common part. Presence and frequency penalties and
    a minimum length count the output only, so a request with them is measured without.
    """
    if list(first) == list(second):
        return None
    pairs = enumerate(zip(first, second, strict=False))
    position = next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
    if position == min(len(first), len(second)):
        return Difference(position, float("inf"))
    context = [*prompt, *first[:position]]
    asked = SamplingParams(
        max_tokens=1,
        logprobs=MAX_LOGPROBS,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        ignore_eos=True,
    )
    answer = engine.generate(context, asked, speculation="off").completions[0]
    entry = answer.tokens[0].logprobs
    assert entry is not None
    scores = dict(entry.top)
    one, other = first[position], second[position]
    if one not in scores or other not in scores:
        return Difference(position, float("inf"))
    gap = scores[one] - scores[other]
    if not params.greedy:
        bits = race_bits(params.seed or 0, 0, len(context), engine.info.vocabulary)
        noise = np.log(exponential(bits[[one, other]]))
        gap = gap / params.temperature - float(noise[0] - noise[1])
    return Difference(position, abs(gap))
