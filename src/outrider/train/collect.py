"""Training data out of the target itself: conversations that it writes, and its hidden states while it answers.

A chat model that is given only its template's opening writes a user's turn, and then answers it. No data set is needed;
prompts of real traffic are mixed in where there are some. Shards are written as they fill, so that a run that was
killed goes on where it was.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.engine import Chunk, EngineConfig, EngineCore, Request, TextCodec
from outrider.errors import ModelError
from outrider.params import SamplingParams, Speculation
from outrider.proposers import NO_DRAFT, Context, Draft
from outrider.runners import Runner

ANSWER_TOKENS = 256
"""Most tokens of an answer; what comes later is more of the same."""
ASK_TOKENS = 192
"""Most tokens of a user's turn that the model writes itself."""
SHARD = 16384
"""Positions in a file."""
GREEDY_SHARE = 0.7
"""Share of answers at temperature 0; the others are sampled at 0.8."""
HELD_OUT = 10
"""One conversation of so many is never trained on."""
OPENED_SHARE = 0.8
"""Share of the model's own questions that are given their first words. Left alone, a small model asks much the same
again and again, and answers it with much the same excuse."""
OPENERS = (
    "Write a", "Write a short story about", "Write an essay about", "Write a Python function that", "Write an email to",
    "Write a poem about", "Write a blog post about", "Explain", "Explain why", "Explain how", "Describe",
    "What is", "What are the main", "What is the difference between", "What happens when", "What would happen if",
    "What are some tips for", "How do I", "How does", "How can I", "How many", "How would you", "Why do", "Why is",
    "Who was", "When did", "Where is", "Which", "Can you", "Could you", "Compose a", "Create a", "Design a", "Draft a",
    "Imagine that you are", "Pretend to be", "Suppose that", "Act as a", "You are a", "Give me a list of",
    "Give an example of", "Give a brief overview of", "List the", "List five", "Compare", "Discuss", "Analyze",
    "Evaluate", "Summarize the following text:", "Rewrite the following", "Translate the following sentence into",
    "Edit the following paragraph", "Extract the", "Classify the following", "Identify the", "Calculate", "Solve",
    "Find the", "Prove that", "A train", "If a", "Given a list of", "Given the following", "Implement", "Fix the",
    "Tell me about", "Tell me a", "Suggest", "Plan a", "Help me", "I need", "I want to", "I have a", "My friend",
    "Let's", "Please", "In a", "There are", "The following", "Based on", "Develop a", "Outline", "Argue for",
)  # fmt: skip
"""First words of questions that people ask."""
LEAST_POSITIONS = 8
"""Shorter answers teach nothing over several steps."""

_RECORD = Speculation(mode="fixed", window=1)
_PLAIN = Speculation(mode="off")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was recorded of one answer: before token i the target was in state i."""

    tokens: NDArray[np.int32]
    """Shape [positions]."""
    states: NDArray[np.float16]
    """Shape [positions, width]; state i is the one that token i was chosen from, and the last part of it, the last
    norm's output, gives the distribution that it was chosen from."""
    greedy: bool
    held_out: bool
    prompt: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """What it answers, shape [prompt tokens]."""


Done = Callable[[str, NDArray[np.int32], NDArray[np.int32], NDArray[np.float16]], None]
"""Told of a request its prompt, its answer and the states of it."""


class Recorder:
    """Looks like a proposer, drafts nothing, and keeps the states of the requests that it is asked for.

    Args:
        done: called when a request is over.
        parts: how many hidden states of equal width stand side by side in a state.
    """

    name = "recorder"

    def __init__(self, done: Done, parts: int) -> None:
        self._done = done
        self._parts = parts
        self._states: dict[str, list[NDArray[np.float16]]] = {}

    def propose(self, contexts: Sequence[Context], budget: Sequence[int]) -> list[Draft]:  # noqa: ARG002
        """Record; see `Proposer.propose`."""
        for context in contexts:
            if context.state is None:
                raise ModelError("the runner gives no hidden states; load it with some")
            self._states.setdefault(context.request, []).append(to_half(context.state, self._parts))
        return [NO_DRAFT] * len(contexts)

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing to learn."""

    def release(self, context: Context) -> None:
        """The answer is whole."""
        states = self._states.pop(context.request, [])
        if len(states) >= LEAST_POSITIONS:
            start = context.prompt_length
            prompt = np.array(context.tokens[:start], np.int32)
            tokens = np.array(context.tokens[start : start + len(states)], np.int32)
            self._done(context.request, prompt, tokens, np.stack(states))


def to_half(state: NDArray[np.float32], parts: int) -> NDArray[np.float16]:
    """A state for the disk: all parts but the last are scaled to a mean square of 1, for half precision to hold them.

    A head norms them anyway; the last part's scale is what logits come from.
    """
    rows = state.reshape(parts, -1).copy()
    rows[:-1] /= np.sqrt(np.square(rows[:-1]).mean(axis=1, keepdims=True) + 1e-6)
    return rows.reshape(-1).astype(np.float16)


class Shards:
    """Recorded answers on disk, as files of some ten thousand positions each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._open: list[Answer] = []
        self._count = len(self._paths())
        self.positions = sum(int(np.load(path)["lengths"].sum()) for path in self._paths())
        """Positions written or waiting to be."""
        self._waiting = 0

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("shard-*.npz"))

    @property
    def files(self) -> int:
        """Shards on disk."""
        return self._count

    def add(self, answer: Answer) -> None:
        """Keep an answer; it is on disk when its shard is full or `flush` was called."""
        self._open.append(answer)
        self.positions += len(answer.tokens)
        self._waiting += len(answer.tokens)
        if self._waiting >= SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is open, whole or not at all."""
        if not self._open:
            return
        path = self.directory / f"shard-{self._count:05d}.npz"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(
                file,
                tokens=np.concatenate([answer.tokens for answer in self._open]),
                states=np.concatenate([answer.states for answer in self._open]),
                lengths=np.array([len(answer.tokens) for answer in self._open], np.int32),
                prompts=np.concatenate([answer.prompt for answer in self._open]),
                prompt_lengths=np.array([len(answer.prompt) for answer in self._open], np.int32),
                greedy=np.array([answer.greedy for answer in self._open]),
                held_out=np.array([answer.held_out for answer in self._open]),
            )
        os.replace(partial, path)
        self._count += 1
        self._open.clear()
        self._waiting = 0

    def read(self) -> Iterator[Answer]:
        """Every answer on disk."""
        for path in self._paths():
            with np.load(path) as shard:
                tokens, states, prompts = shard["tokens"], shard["states"], shard["prompts"]
                ends, prompt_ends = np.cumsum(shard["lengths"]), np.cumsum(shard["prompt_lengths"])
                for i, (greedy, held_out) in enumerate(zip(shard["greedy"], shard["held_out"], strict=True)):
                    own = slice(ends[i] - shard["lengths"][i], ends[i])
                    asked = slice(prompt_ends[i] - shard["prompt_lengths"][i], prompt_ends[i])
                    yield Answer(tokens[own], states[own], bool(greedy), bool(held_out), prompts[asked])


class Collector:
    """Lets the target talk to itself and records it.

    Args:
        runner: the target, loaded with hidden states.
        codec: its tokens' bytes.
        eos_ids: tokens that end a turn.
        opening: tokens that a user's turn follows.
        openers: first words of questions, as tokens.
        ask: turns a user's turn into the tokens of a prompt.
        shards: where answers go.
        parts: hidden states side by side in one of the runner's states.
        traffic: prompts of real traffic, each used once, in turn with the model's own.
        batch: sequences at once.
        seed: of everything that is drawn.
    """

    def __init__(
        self,
        runner: Runner,
        codec: TextCodec,
        *,
        eos_ids: tuple[int, ...],
        opening: Sequence[int],
        openers: Sequence[Sequence[int]] = (),
        ask: Callable[[str], list[int]],
        shards: Shards,
        parts: int,
        traffic: Iterable[Sequence[int]] = (),
        batch: int = 32,
        seed: int = 0,
    ) -> None:
        self._codec = codec
        self._eos = frozenset(eos_ids)
        self._opening = tuple(opening)
        self._openers = [tuple(opener) for opener in openers]
        self._ask = ask
        self._shards = shards
        self._traffic = iter(traffic)
        self._batch = batch
        # what was written already is not written again: another run draws other conversations
        self._random = random.Random(f"{seed} {shards.files}")
        self._numbers = itertools.count()
        self._greedy: dict[str, bool] = {}
        self._prompts: list[list[int]] = []
        recorder = Recorder(self._record, parts)
        config = EngineConfig(speculation="off", max_running=batch, max_queue=4 * batch)
        self._core = EngineCore(runner, codec, eos_ids=eos_ids, proposers=[recorder], config=config)
        self._running = 0

    def run(self, positions: int, going: Callable[[int], bool]) -> int:
        """Go on until so many positions are recorded, or `going`, told how many there are, says no.

        Returns:
            Positions recorded, earlier runs included.
        """
        try:
            while self._shards.positions < positions and going(self._shards.positions):
                while self._running < self._batch:
                    self._start()
                self._core.step()
        finally:
            self._shards.flush()
        return self._shards.positions

    def _start(self) -> None:
        """Put one more request into the batch: an answer where a question is ready, else a question."""
        if not self._prompts:
            real = next(self._traffic, None)
            if real is not None:
                self._prompts.append(list(real))
        self._running += 1
        if self._prompts:
            self._answer(self._prompts.pop())
        else:
            self._question()

    def _question(self) -> None:
        params = SamplingParams(temperature=1.0, top_p=0.98, max_tokens=ASK_TOKENS, seed=self._random.getrandbits(63))
        first: tuple[int, ...] = ()
        if self._openers and self._random.random() < OPENED_SHARE:
            first = self._random.choice(self._openers)
        said = list(first)

        def sink(chunk: Chunk) -> None:
            said.extend(token.id for token in chunk.tokens)
            if chunk.finish_reason is not None:
                self._running -= 1
                text = self._codec.decode([token for token in said if token not in self._eos]).strip()
                if chunk.finish_reason == "stop" and text:  # one that was cut off is no question
                    self._prompts.append(self._ask(text))

        self._add(self._opening + first, params, _PLAIN, sink)

    def _answer(self, prompt: Sequence[int]) -> None:
        greedy = self._random.random() < GREEDY_SHARE
        params = SamplingParams(
            temperature=0.0 if greedy else 0.8, max_tokens=ANSWER_TOKENS, seed=self._random.getrandbits(63)
        )

        def sink(chunk: Chunk) -> None:
            if chunk.finish_reason is not None:
                self._running -= 1

        room = self._core.context_length - ANSWER_TOKENS
        self._greedy[self._add(tuple(prompt[:room]), params, _RECORD, sink)] = greedy

    def _add(
        self, prompt: tuple[int, ...], params: SamplingParams, mode: Speculation, sink: Callable[[Chunk], None]
    ) -> str:
        request = Request(str(next(self._numbers)), prompt, params, speculation=mode)
        self._core.check(request)
        self._core.add(request, sink)
        return request.id

    def _record(
        self, key: str, prompt: NDArray[np.int32], tokens: NDArray[np.int32], states: NDArray[np.float16]
    ) -> None:
        greedy = self._greedy.pop(key.rpartition("/")[0])
        self._shards.add(Answer(tokens, states, greedy, self._random.randrange(HELD_OUT) == 0, prompt))
