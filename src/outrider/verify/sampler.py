"""The state of choosing one sequence's tokens: its seed, its position, and the history that penalties see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.params import SamplingParams
from outrider.verify import noise
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Distribution, Scores, target_distribution


class Sampler:
    """Shapes logits and supplies noise for one sequence; `push` each token as it is chosen.

    Args:
        params: what the request asks for.
        seed: the request's seed, 0 to 2**64 - 1.
        stream: which of the request's n completions this is.
        prompt: the prompt's token ids; they count for the repetition penalty only.
        vocabulary: number of tokens.
        end_ids: tokens that end the text, held back until `min_tokens`.
        constraint: the grammar that the text must follow.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        stream: int,
        prompt: Sequence[int],
        vocabulary: int,
        end_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.position = len(prompt)
        """Position of the token about to be chosen."""
        self.emitted = 0
        self._seed = seed
        self._stream = stream
        self._vocabulary = vocabulary
        self._end_ids = np.array(sorted(set(end_ids)), np.int64)
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        self.constraint = constraint
        self._shapes = params.shapes_logits or constraint is not None
        self._penalises = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        if self._penalises:
            in_prompt = np.unique(np.array(prompt, np.int64))
            self._seen = np.empty(max(64, 2 * len(in_prompt)), np.int64)
            self._seen[: len(in_prompt)] = in_prompt
            self._seen_count = len(in_prompt)
            self._in_prompt = np.zeros(vocabulary, bool)
            self._in_prompt[in_prompt] = True
            self._counts = np.zeros(vocabulary, np.int32)

    @property
    def plain(self) -> bool:
        """Whether the choice is the most likely token of the logits as they are."""
        return self.params.greedy and not self._shapes

    def push(self, token: int) -> None:
        """Take the token into the history; the next call shapes the position after it."""
        self.position += 1
        self.emitted += 1
        if self.constraint is not None:
            self.constraint.push(token)
        if self._penalises:
            self._counts[token] += 1
            if self._counts[token] == 1 and not self._in_prompt[token]:
                if self._seen_count == len(self._seen):
                    self._seen = np.concatenate((self._seen, np.empty_like(self._seen)))
                self._seen[self._seen_count] = token
                self._seen_count += 1

    def pop(self, token: int) -> None:
        """Undo the last `push`, which was of this token."""
        self.position -= 1
        self.emitted -= 1
        if self.constraint is not None:
            self.constraint.pop()
        if self._penalises:
            self._counts[token] -= 1
            if self._counts[token] == 0 and not self._in_prompt[token]:
                self._seen_count -= 1

    def shape(self, row: Scores) -> Scores:
        """The logits after penalties, bias, minimum length and grammar; the input itself when nothing shapes it."""
        if not self._shapes:
            return row
        scores = row.copy()
        if self._penalises:
            self._penalise(scores)
        if len(self._bias_ids):
            scores[self._bias_ids] += self._bias
        if self.emitted < self.params.min_tokens:
            scores[self._end_ids] = -np.inf
        if self.constraint is not None:
            self.constraint.mask(scores)
        return scores

    def _penalise(self, scores: Scores) -> None:
        params = self.params
        seen = self._seen[: self._seen_count]
        values = scores[seen]
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
        counts = self._counts[seen]
        values -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        values -= np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
        scores[seen] = values

    def distribution(self, scores: Scores) -> Distribution:
        """The target distribution of shaped logits; the request must not be greedy."""
        return target_distribution(scores, self.params)

    def race_bits(self) -> NDArray[np.uint32]:
        """Noise of the whole vocabulary at this position, shape [vocabulary]."""
        return noise.race_bits(self._seed, self._stream, self.position, self._vocabulary)

    def uniform(self, purpose: noise.Purpose, window: int, ahead: int = 0) -> float:
        """A number in [0, 1) for the position `ahead` of this one, in the window that starts at `window`."""
        return noise.uniform(self._seed, self._stream, self.position + ahead, purpose, window)

    def choose(self, scores: Scores) -> int:
        """The token at this position: the most likely one, or the one that the noise picks.

        A deterministic function of shaped logits, seed, stream and position.

        Raises:
            FloatingPointError: the model's logits are not numbers.
        """
        if self.params.greedy:
            token = int(scores.argmax())
        else:
            token = target_distribution(scores, self.params).race(self.race_bits())
        if not np.isfinite(scores[token]):
            raise FloatingPointError(f"the model gave logit {scores[token]} for token {token}")
        return token
