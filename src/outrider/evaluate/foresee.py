"""Logged answers seen with the model: how sure it is of each token, and what a draft would have had accepted.

One pass of each model over a text says both. A draft goes on only while its tokens are the text's, so what it says at
each position, the true text before it given, is what it would have drafted there: runs of right tokens are exact for
greedy serving of the same text, at every window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.api import Engine, chat
from outrider.control import pass_seconds
from outrider.draft import fit_head, head_seconds, match
from outrider.errors import InvalidRequest
from outrider.evaluate.prompts import BenchPrompt
from outrider.models import HeadFiles, ModelFiles, Tokenizer
from outrider.plan.assess import WINDOWS, Answer, Foreseen, Walk
from outrider.proposers import HeadRunner, VocabularyMap
from outrider.runners import Runner, Segment
from outrider.runners.head import OpenVINOHead
from outrider.runners.openvino import OpenVINORunner

KV_BYTES = 256 << 20
ROWS = 128
"""Positions whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a pass over one answer showed."""

    entropy: NDArray[np.float64]
    """Of the model's distribution at each token of the answer, in nats."""
    top: NDArray[np.int64]
    """The likeliest token at each place."""
    states: NDArray[np.float32] | None
    """Hidden states that each token was chosen from, where the runner gives them."""


def look(runner: Runner, prompt: Sequence[int], tokens: Sequence[int]) -> Seen:
    """One pass over a prompt and its answer.

    Raises:
        InvalidRequest: they are longer than the model's context or its memory.
    """
    info = runner.info
    text = [*prompt, *tokens]
    if len(text) > min(info.context_length, info.num_blocks * info.block_size):
        raise InvalidRequest(f"a text of {len(text)} tokens is longer than the context of {info.context_length}")
    blocks = list(range(-(-len(text) // info.block_size)))
    start = 0
    while start < len(prompt) - 1:  # what needs no logits
        end = min(start + ROWS, len(prompt) - 1)
        runner.forward([Segment(text[start:end], start, blocks, 0)])
        start = end
    entropies, tops, states = [], [], []
    while start < len(text) - 1:
        end = min(start + ROWS, len(text) - 1)
        logits = runner.forward([Segment(text[start:end], start, blocks, end - start)])
        tops.append(logits.argmax(axis=1))
        entropies.append(entropy(logits))
        if runner.states is not None:
            states.append(runner.states.copy())
        start = end
    return Seen(
        np.concatenate(entropies) if entropies else np.zeros(0),
        np.concatenate(tops).astype(np.int64) if tops else np.zeros(0, np.int64),
        np.concatenate(states) if states else None,
    )


def entropy(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Entropy in nats of each row of logits, shape [rows, vocabulary]."""
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    weights = np.exp(scores)
    total = weights.sum(axis=1)
    found: NDArray[np.float64] = np.log(total) - (weights * scores).sum(axis=1) / total
    return found


class Draft(Protocol):
    """Something that drafts, for looking at texts."""

    name: str
    seconds: float
    """That a token of it takes."""

    def right(self, answer: Answer, seen: Seen) -> NDArray[np.int64]:
        """For each token of the answer but the first, how many tokens from there on it would have said, up to the
        longest window."""
        ...


class ModelDraft:
    """A draft model.

    Args:
        name: of it.
        runner: it, with a KV cache for one text.
        vocabulary: how its tokens correspond to the target's.
        seconds: that a token of it takes.
    """

    def __init__(self, name: str, runner: Runner, vocabulary: VocabularyMap, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self._runner = runner
        self._vocabulary = vocabulary

    def right(self, answer: Answer, seen: Seen) -> NDArray[np.int64]:  # noqa: ARG002
        """See `Draft`."""
        own = look(self._runner, self._vocabulary.to_draft(answer.prompt), self._vocabulary.to_draft(answer.tokens))
        said = np.array([self._vocabulary.token(top) for top in own.top.tolist()], np.int64)
        hit = said[1:] == np.array(answer.tokens[1:], np.int64)
        # right here, and as far as it goes on being right
        runs = np.zeros(len(hit) + 1, np.int64)
        for place in range(len(hit) - 1, -1, -1):
            runs[place] = min(WINDOWS[-1], runs[place + 1] + 1) if hit[place] else 0
        return runs[:-1]


class HeadDraft:
    """A draft head: at each place it starts from the target's states there and unrolls over the true text.

    Args:
        name: of it.
        head: its networks.
        vocabulary: the target's id of each of its tokens.
        seconds: that a token of it takes.
    """

    def __init__(self, name: str, head: HeadRunner, vocabulary: VocabularyMap, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self._head = head
        self._vocabulary = vocabulary

    def right(self, answer: Answer, seen: Seen) -> NDArray[np.int64]:
        """See `Draft`."""
        if seen.states is None:
            raise InvalidRequest("a draft head needs the target's hidden states; load the target with them")
        count = len(answer.tokens) - 1
        runs = np.zeros(count, np.int64)
        # place i drafts token i + 1 from the state that token i was chosen from
        going = np.arange(count)
        state = self._head.start(seen.states[:count])
        for distance in range(WINDOWS[-1]):
            going_tokens = [answer.tokens[place + distance] for place in going.tolist()]
            logits, state = self._head.step(np.array(self._vocabulary.to_draft(going_tokens), np.int64), state)
            said = [self._vocabulary.best(row)[0] for row in logits]
            kept = [
                number
                for number, (place, token) in enumerate(zip(going.tolist(), said, strict=True))
                if answer.tokens[place + distance + 1] == token
            ]
            runs[going[kept]] += 1
            kept = [number for number in kept if going[number] + distance + 2 < len(answer.tokens)]
            if not kept:
                break
            going, state = going[kept], state[kept]
        return runs


def foresee(
    answers: Sequence[Answer],
    target: Runner,
    drafts: Sequence[Draft],
    watch: Callable[[int, int], None] | None = None,
) -> Foreseen:
    """Look at every answer with the target and the drafts.

    Args:
        answers: logged traffic as the target's tokens.
        target: with a KV cache for one text, and with states where a head drafts.
        drafts: what might draft.
        watch: told how many are done.
    """
    walks: dict[str, list[Walk]] = {draft.name: [] for draft in drafts}
    entropies, agreed = [], []
    for number, answer in enumerate(answers):
        seen = look(target, answer.prompt, answer.tokens)
        entropies.append(float(seen.entropy.mean()) if len(seen.entropy) else 0.0)
        agreed.append(float((seen.top == np.array(answer.tokens)).mean()) if len(answer.tokens) else 0.0)
        for draft in drafts:
            right = draft.right(answer, seen)
            left = [len(answer.tokens) - 1 - place for place in range(len(right))]
            walks[draft.name].append(Walk([min(WINDOWS[-1], room) for room in left], right.tolist()))
        if watch is not None:
            watch(number + 1, len(answers))
    return Foreseen(
        entropy_nats=entropies, top_share=agreed, walks=walks, seconds={draft.name: draft.seconds for draft in drafts}
    )


def load(
    files: ModelFiles, tokenizer: Tokenizer, drafts: Sequence[ModelFiles | HeadFiles]
) -> tuple[OpenVINORunner, list[Draft]]:
    """Load the target and what drafts for it, with memory for one text each.

    Raises:
        InvalidRequest: a draft does not fit the target.
    """
    head = next((draft for draft in drafts if isinstance(draft, HeadFiles)), None)
    target = OpenVINORunner(
        files.directory,
        context_length=files.manifest.context_length,
        kv_bytes=KV_BYTES,
        states=head.card.points if head is not None else None,
    )
    found: list[Draft] = []
    for draft in drafts:
        if isinstance(draft, HeadFiles):
            vocabulary = fit_head(draft, target, files.manifest.name)
            networks = OpenVINOHead(draft.directory)
            seconds = head_seconds(networks, target.state_width)
            found.append(HeadDraft(draft.card.name, networks, vocabulary, seconds))
        else:
            runner = OpenVINORunner(draft.directory, context_length=draft.manifest.context_length, kv_bytes=KV_BYTES)
            table, _ = match(target, tokenizer, runner, draft)
            found.append(ModelDraft(draft.manifest.name, runner, table, pass_seconds(runner)))
    return target, found


def answers_to(
    model: str, prompts: Sequence[BenchPrompt], max_tokens: int, watch: Callable[[int, int], None] | None = None
) -> list[Answer]:
    """Let a model answer prompts, greedily and without speculation, sixteen at a time."""
    found = []
    with Engine(model, speculation="off", store_tokens=0) as engine:
        for start in range(0, len(prompts), 16):
            group = prompts[start : start + 16]
            said = engine.generate_batch([chat(prompt.text) for prompt in group], max_tokens=max_tokens)
            for prompt, generation in zip(group, said, strict=True):
                found.append(Answer(prompt.category, generation.prompt_ids, generation.token_ids))
            if watch is not None:
                watch(len(found), len(prompts))
    return found
