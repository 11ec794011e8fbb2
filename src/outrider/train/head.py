"""The head in torch: a recurrent cell on the target's hidden states, and how it learns.

State 0 is a projection of the target's states, each normed. A step takes the state and the token that came, and gives
the next state, which one matrix turns into logits of the next token over the tokens that the target really says:

    s0 = P [n(h1); n(h2); n(h3)]
    s' = s + A(n(s), e(token));  s'' = s' + B(n(s'));  logits = O n(s'') * g

A and B are gated layers. There is no attention and no KV cache: what the target knows of the text is in its states.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head."""

    parts: int
    """Hidden states side by side in the target's states."""
    width: int
    """Numbers in each, and in the head's own state."""
    inner: int
    """Width of the gated layers."""
    tokens: int
    """Tokens that it can say."""


def norm(x: Tensor) -> Tensor:
    """Scale rows to a mean square of 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


class Head(nn.Module):
    """See the module.

    Args:
        shape: sizes.
        embeddings: the target's rows of the head's tokens, shape [tokens, width], where it starts from.
        projection: the same of its vocabulary projection.
    """

    def __init__(self, shape: HeadShape, embeddings: NDArray[np.float32], projection: NDArray[np.float32]) -> None:
        super().__init__()
        self.shape = shape
        D, H = shape.width, shape.inner
        self.start = nn.Linear(shape.parts * D, D, bias=False)
        self.mix = nn.Linear(2 * D, 2 * H, bias=False)
        self.mix_out = nn.Linear(H, D, bias=False)
        self.deepen = nn.Linear(D, 2 * H, bias=False)
        self.deepen_out = nn.Linear(H, D, bias=False)
        scale = float(np.sqrt(np.square(embeddings).mean()))
        rows = np.concatenate((embeddings, embeddings.mean(0, keepdims=True))) / scale
        self.embed = nn.Embedding(shape.tokens + 1, D)
        self.out = nn.Linear(D, shape.tokens, bias=False)
        with torch.no_grad():
            self.embed.weight.copy_(torch.from_numpy(rows.astype(np.float32)))
            self.out.weight.copy_(torch.from_numpy(projection))
            # the last norm's output is what the projection was made for: begin as if nothing came after it
            self.start.weight.mul_(0.1)
            self.start.weight[:, -D:] += torch.eye(D)
            self.mix_out.weight.mul_(0.1)
            self.deepen_out.weight.mul_(0.1)
        self.gain = nn.Parameter(torch.ones(D))

    @property
    def other(self) -> int:
        """Row of the embeddings that stands for every token that the head cannot say."""
        return self.shape.tokens

    def begin(self, states: Tensor) -> Tensor:
        """State 0 of the target's states, shape [..., parts * width]."""
        parts = states.reshape(*states.shape[:-1], self.shape.parts, self.shape.width)
        started: Tensor = self.start(norm(parts).flatten(-2))
        return started

    def step(self, state: Tensor, tokens: Tensor) -> Tensor:
        """The state after these tokens (the head's own numbers), shape [..., width]."""
        a, b = self.mix(torch.cat((norm(state), norm(self.embed(tokens))), -1)).chunk(2, -1)
        state = state + self.mix_out(F.silu(a) * b)
        a, b = self.deepen(norm(state)).chunk(2, -1)
        deeper: Tensor = state + self.deepen_out(F.silu(a) * b)
        return deeper

    def logits(self, state: Tensor) -> Tensor:
        """Scores of the next token, shape [..., tokens]."""
        scores: Tensor = self.out(norm(state) * self.gain)
        return scores

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """All of it as arrays."""
        return {name: value.detach().cpu().numpy() for name, value in self.state_dict().items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs of consecutive positions: before token i the target was in state i."""

    states: Tensor
    """Shape [runs, length, parts * width]."""
    tokens: Tensor
    """The head's own numbers, shape [runs, length]."""


def unroll(head: Head, batch: Batch, steps: int) -> list[Tensor]:
    """The head's states when it drafts the token at each distance 1 to `steps`, the true tokens given.

    Returns:
        For step k the states that predict token i + k of every position i, shape [runs, length - steps, width].
    """
    count = batch.tokens.shape[1] - steps
    state = head.begin(batch.states[:, :count])
    reached = []
    for step in range(steps):
        state = head.step(state, batch.tokens[:, step : step + count])
        reached.append(state)
    return reached


def loss_of(head: Head, batch: Batch, steps: int, teacher: Tensor, decay: float) -> Tensor:
    """Mean divergence from the target's own distribution, later steps weighing less.

    Args:
        head: what learns.
        batch: true text.
        steps: tokens drafted in a row.
        teacher: the target's projection of the head's tokens, shape [tokens, width].
        decay: weight of each step over that of the one before.
    """
    count = batch.tokens.shape[1] - steps
    last = batch.states[:, 1:, -head.shape.width :]  # what the target's logits come from
    with torch.no_grad():
        target = F.log_softmax(last @ teacher.T, -1)
    total = torch.zeros((), device=teacher.device)
    weight = 0.0
    for step, state in enumerate(unroll(head, batch, steps)):
        said = F.log_softmax(head.logits(state), -1)
        wanted = target[:, step : step + count]
        total = total + decay**step * divergence(wanted, said)
        weight += decay**step
    return total / weight


def divergence(wanted: Tensor, said: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of rows of log-probabilities from those that are wanted, in nats."""
    return F.kl_div(said, wanted, reduction="sum", log_target=True) / said[..., 0].numel()


@torch.no_grad()
def hits(head: Head, batch: Batch, steps: int) -> NDArray[np.bool_]:
    """Whether the head's likeliest token at each distance is the true one, shape [positions, steps]."""
    count = batch.tokens.shape[1] - steps
    found = []
    for step, state in enumerate(unroll(head, batch, steps), start=1):
        found.append((head.logits(state).argmax(-1) == batch.tokens[:, step : step + count]).flatten().cpu().numpy())
    return np.stack(found, 1)


def summary(answers: Sequence[NDArray[np.bool_]], steps: int) -> tuple[tuple[float, ...], float]:
    """What serving these answers would have had accepted in a window of all steps.

    A pass starts where the one before it ended, which is where the head was wrong: such places are harder than the
    mean, and only they count.

    Args:
        answers: hits of each, shape [positions, steps].
        steps: tokens drafted in a row.

    Returns:
        Acceptance of each token of the window given those before it, and tokens per pass.
    """
    passes = emitted = 0
    reached = np.zeros(steps + 1)
    for right in answers:
        runs = np.cumprod(right, 1).sum(1)
        place = 0
        while place < len(runs):
            accepted = int(runs[place])
            passes += 1
            emitted += accepted + 1
            reached[: accepted + 1] += 1
            place += accepted + 1
    acceptance = tuple(float(b / a) if a else 0.0 for a, b in itertools.pairwise(reached))
    return acceptance, emitted / passes if passes else 1.0


def to_batch(rows: Sequence[tuple[Any, Any]], device: str) -> Batch:
    """Stack runs of states and tokens."""
    states = torch.from_numpy(np.stack([states for states, _ in rows])).to(device).float()
    tokens = torch.from_numpy(np.stack([tokens for _, tokens in rows])).to(device).long()
    return Batch(states, tokens)
