"""`outrider draft train`: collect, train, export. Every stage goes on where a run that was killed left it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from outrider.engine import TextCodec
from outrider.errors import InvalidRequest, ModelError
from outrider.models import Progress, silent
from outrider.models.head import CARD, VOCABULARY, HeadCard
from outrider.runners import Runner
from outrider.runners.head import write_head
from outrider.train.collect import Answer, Collector, Shards
from outrider.train.head import Head, HeadShape, hits, loss_of, summary, to_batch

ALIKE = 12
"""Answers that may begin with the same words; more of them teach the same again."""
ALIKE_TOKENS = 6
LOOK = 40
"""Held-out answers that progress is measured on while training."""
WORK = "work"
"""Folder of the shards and the checkpoint inside the output directory."""
CHECKPOINT = "checkpoint.pt"


class TrainSettings(BaseModel):
    """How a head is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minutes: float = 90.0
    """Budget, collecting included."""
    positions: int = 400_000
    """Positions of the target's answers to collect at most."""
    collect_share: float = 0.35
    """Share of the budget that collecting may take."""
    tokens: int = 8192
    """Tokens that the head can say at most: the most frequent ones."""
    inner: int = 1024
    steps: int = 4
    """Tokens drafted in a row."""
    decay: float = 0.85
    """Weight of a step in the loss over that of the one before."""
    runs: int = 8
    """Runs of consecutive positions in a batch."""
    length: int = 32
    """Positions of a run that the loss is taken at."""
    rate: float = 1e-3
    batch: int = 48
    """Conversations at once while collecting."""
    checkpoint_seconds: float = 60.0
    evaluations: int = 20
    """Times that it is measured on the held-out tenth."""
    patience: int = 6
    """Measurements without progress after which training stops."""
    seed: int = 0
    device: str = "cpu"
    bits: int = 8
    """Of the exported weights: 16 or 8."""


@dataclass(slots=True)
class Target:
    """What the training needs to know of the target."""

    name: str
    runner: Runner
    codec: TextCodec
    eos_ids: tuple[int, ...]
    opening: Sequence[int]
    ask: Callable[[str], list[int]]
    points: tuple[int, ...]
    embeddings: NDArray[np.float32]
    projection: NDArray[np.float32]
    openers: Sequence[Sequence[int]] = ()
    """First words of questions, as tokens."""
    licence: str = "as the target's"


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps beside weights."""

    step: int = 0
    seconds: float = 0.0
    """Spent on training."""
    collected: float = 0.0
    """Seconds spent on collecting."""
    best: float = 0.0
    stale: int = 0
    measured: list[float] = field(default_factory=list)


class Training:
    """One draft head in the making.

    Args:
        target: what it drafts for.
        directory: gets the head; the work in progress lies in a folder inside.
        settings: sizes and budget.
        traffic: prompts of real traffic, as the target's tokens.
        progress: told how it goes on.
        say: told in a line what was measured.
        command: what the user typed, for the card.

    Raises:
        InvalidRequest: the directory holds work of other settings and resume is not asked for.
    """

    def __init__(
        self,
        target: Target,
        directory: Path,
        settings: TrainSettings,
        *,
        resume: bool = False,
        traffic: Sequence[Sequence[int]] = (),
        progress: Progress = silent,
        say: Callable[[str], object] = str,
        command: str = "outrider draft train",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.directory = directory
        self.settings = settings
        self._traffic = traffic
        self._progress = progress
        self._say = say
        self._command = command
        self._clock = clock
        self._work = directory / WORK
        self._vocabulary: NDArray[np.int64] = np.zeros(0, np.int64)
        if self._work.exists() and not resume:
            raise InvalidRequest(f"{self._work} holds unfinished work; go on with --resume, or delete it")
        self._work.mkdir(parents=True, exist_ok=True)
        kept = self._work / "settings.json"
        # what a longer run changes may change
        now = settings.model_dump(exclude={"minutes", "device", "checkpoint_seconds", "collect_share", "positions"})
        if kept.exists() and json.loads(kept.read_text()) != now:
            raise InvalidRequest(f"{self._work} was begun with other settings ({kept}); give those, or delete it")
        kept.write_text(json.dumps(now))
        self._state = _State()
        path = self._work / "state.json"
        if path.exists():
            self._state = _State(**json.loads(path.read_text()))

    # --- stages ----------------------------------------------------------------------------------------------

    def run(self) -> HeadCard:
        """Collect, train, export; returns the card."""
        shards = self.collect()
        answers = thin(list(shards.read()))
        if not any(answer.held_out for answer in answers):
            raise ModelError("too little was collected to hold a tenth out; give it more minutes")
        vocabulary, known = choose_vocabulary(answers, self.settings.tokens, len(self.target.embeddings))
        head = self._head(vocabulary)
        self._vocabulary = vocabulary
        learned = [row for answer in answers if not answer.held_out if (row := _numbered(answer, known)) is not None]
        unseen = [
            row
            for answer in answers
            if answer.held_out and answer.greedy
            if (row := _numbered(answer, known)) is not None
        ]
        teacher = self.target.projection[vocabulary]
        self._train(head, learned, unseen, teacher)
        return self._export(head, vocabulary, learned, unseen, answers)

    def collect(self) -> Shards:
        """Let the target talk until there is enough or the share of the budget is spent."""
        settings = self.settings
        shards = Shards(self._work / "shards")
        budget = settings.minutes * 60 * settings.collect_share
        if self._state.collected >= budget or shards.positions >= settings.positions:
            return shards
        target = self.target
        collector = Collector(
            target.runner,
            target.codec,
            eos_ids=target.eos_ids,
            opening=target.opening,
            openers=target.openers,
            ask=target.ask,
            shards=shards,
            parts=len(target.points) + 1,
            traffic=self._traffic,
            batch=settings.batch,
            seed=settings.seed,
        )
        before, started, saved = self._state.collected, self._clock(), self._clock()

        def going(positions: int) -> bool:
            nonlocal saved
            now = self._clock()
            self._state.collected = before + now - started
            self._progress("collect", positions, settings.positions)
            if now - saved > settings.checkpoint_seconds:
                saved = now
                self._keep_state()
            return self._state.collected < budget

        collector.run(settings.positions, going)
        self._keep_state()
        self._say(f"collected {shards.positions:,} positions in {self._state.collected / 60:.1f} minutes")
        return shards

    def _head(self, vocabulary: NDArray[np.int64]) -> Head:
        target, settings = self.target, self.settings
        torch.manual_seed(settings.seed)
        shape = HeadShape(len(target.points) + 1, target.embeddings.shape[1], settings.inner, len(vocabulary))
        return Head(shape, target.embeddings[vocabulary], target.projection[vocabulary]).to(settings.device)

    # --- training --------------------------------------------------------------------------------------------

    def _train(self, head: Head, learned: list[_Row], unseen: list[_Row], teacher: NDArray[np.float32]) -> None:
        settings, state = self.settings, self._state
        optimiser = torch.optim.AdamW(head.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01)
        path = self._work / CHECKPOINT
        best = {name: value.clone() for name, value in head.state_dict().items()}
        if path.exists():
            kept = torch.load(path, map_location=settings.device, weights_only=True)
            before_now = kept["vocabulary"].cpu().numpy()
            if np.array_equal(before_now, self._vocabulary):
                head.load_state_dict(kept["head"])
                optimiser.load_state_dict(kept["optimiser"])
                best = kept["best"]
            else:  # more was collected, and other tokens are the most frequent ones
                best = moved(kept["head"], before_now, head.state_dict(), self._vocabulary)
                head.load_state_dict(best)
                state.best, state.stale = 0.0, 0
        budget = max(1.0, settings.minutes * 60 - state.collected)
        wanted = torch.from_numpy(teacher).to(settings.device)
        length = settings.length + settings.steps
        ends = np.cumsum([len(tokens) for _, tokens in learned])
        began, before = self._clock(), state.seconds
        saved = began
        next_look = budget * len(state.measured) / settings.evaluations
        while state.seconds < budget and state.stale < settings.patience:
            if state.seconds >= next_look:
                acceptance, tokens = self.measure(head, unseen)
                state.measured.append(tokens)
                state.stale += 1
                if tokens > state.best:
                    state.best, state.stale = tokens, 0
                    best = {name: value.clone() for name, value in head.state_dict().items()}
                next_look = budget * len(state.measured) / settings.evaluations
                self._say(
                    f"{(state.seconds + state.collected) / 60:.1f} min, step {state.step}: "
                    f"{tokens:.3f} tokens per pass; accepted {' '.join(f'{a:.0%}' for a in acceptance)}"
                )
            rng = np.random.default_rng((settings.seed, state.step))
            batch = to_batch([_cut(learned, ends, rng, length) for _ in range(settings.runs)], settings.device)
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * _schedule(state.step, state.seconds / budget)
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(head, batch, settings.steps, wanted, settings.decay)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimiser.step()
            state.step += 1
            now = self._clock()
            state.seconds = before + now - began
            self._progress("train", int(state.seconds), int(budget))
            if now - saved > settings.checkpoint_seconds:
                saved = now
                self._checkpoint(head, optimiser, best)
        _, tokens = self.measure(head, unseen)
        if tokens < state.best:
            head.load_state_dict(best)
        self._checkpoint(head, optimiser, best)

    def measure(self, head: Head, unseen: Sequence[_Row], most: int = LOOK) -> tuple[tuple[float, ...], float]:
        """Acceptance by position and tokens per pass on at most so many held-out greedy answers."""
        steps = self.settings.steps
        found = [
            hits(head, to_batch([row], self.settings.device), steps) for row in unseen[:most] if len(row[1]) > steps
        ]
        return summary(found, steps)

    def _checkpoint(self, head: Head, optimiser: torch.optim.Optimizer, best: dict[str, torch.Tensor]) -> None:
        partial = self._work / f"{CHECKPOINT}.partial"
        kept = {
            "head": head.state_dict(),
            "optimiser": optimiser.state_dict(),
            "best": best,
            "vocabulary": torch.from_numpy(self._vocabulary),
        }
        torch.save(kept, partial)
        os.replace(partial, self._work / CHECKPOINT)
        self._keep_state()

    def _keep_state(self) -> None:
        partial = self._work / "state.json.partial"
        partial.write_text(json.dumps(asdict(self._state)))
        os.replace(partial, self._work / "state.json")

    # --- export ----------------------------------------------------------------------------------------------

    def _export(
        self,
        head: Head,
        vocabulary: NDArray[np.int64],
        learned: Sequence[_Row],
        unseen: Sequence[_Row],
        answers: Sequence[Answer],
    ) -> HeadCard:
        settings, target, state = self.settings, self.target, self._state
        acceptance, tokens = self.measure(head, unseen, most=4 * LOOK)
        positions = sum(len(tokens) for _, tokens in learned)
        weights = head.weights()
        write_head(weights, head.shape.parts, self.directory, bits=settings.bits)
        np.save(self.directory / VOCABULARY, vocabulary.astype(np.int32))
        card = HeadCard(
            name=self.directory.name,
            target=target.name,
            target_vocabulary=len(target.embeddings),
            points=target.points,
            width=head.shape.width,
            steps=settings.steps,
            parameters=sum(array.size for array in weights.values()),
            positions=positions,
            passes=round(state.step * settings.runs * settings.length / max(1, positions), 2),
            greedy_share=round(sum(answer.greedy for answer in answers) / len(answers), 3),
            traffic=len(self._traffic),
            minutes=round((state.collected + state.seconds) / 60, 1),
            device=settings.device,
            seed=settings.seed,
            acceptance=tuple(round(a, 4) for a in acceptance),
            tokens_per_pass=round(tokens, 4),
            command=self._command,
            licence=target.licence,
        )
        (self.directory / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return card


_Row = tuple[NDArray[np.float16], NDArray[np.int64]]
"""States and the head's numbers of the tokens of one answer."""


def thin(answers: Sequence[Answer]) -> list[Answer]:
    """Leave out what begins as many answers before it began; a model left alone says some things far too often."""
    seen: dict[tuple[int, ...], int] = {}
    kept = []
    for answer in answers:
        start = tuple(answer.tokens[:ALIKE_TOKENS].tolist())
        seen[start] = seen.get(start, 0) + 1
        if seen[start] <= ALIKE:
            kept.append(answer)
    return kept


def moved(
    weights: Mapping[str, torch.Tensor],
    before: NDArray[np.int64],
    fresh: Mapping[str, torch.Tensor],
    after: NDArray[np.int64],
) -> dict[str, torch.Tensor]:
    """A head's weights for another vocabulary: rows of tokens that stay are kept, those of others are fresh.

    Args:
        weights: trained.
        before: their vocabulary, in rising order.
        fresh: weights of an untrained head of the other vocabulary.
        after: that vocabulary, in rising order.
    """
    found = {name: value.clone() for name, value in fresh.items()}
    _, old, new = np.intersect1d(before, after, return_indices=True)
    for name, value in weights.items():
        if name in ("embed.weight", "out.weight"):
            found[name][torch.from_numpy(new)] = value[torch.from_numpy(old)]
            if name == "embed.weight":  # the row of every other token
                found[name][-1] = value[-1]
        else:
            found[name] = value.clone()
    return found


def choose_vocabulary(answers: Sequence[Answer], most: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens that a head says: those that the target said most often.

    Args:
        answers: what the target said.
        most: tokens at most.
        size: tokens of the target.

    Returns:
        Their ids in rising order, and for each of the target's tokens its number among them, or how many there are.
    """
    counts = np.zeros(size, np.int64)
    for answer in answers:
        np.add.at(counts, answer.tokens, 1)
    said = np.argsort(-counts, kind="stable")[: min(most, int((counts > 0).sum()))]
    vocabulary = np.sort(said).astype(np.int64)
    known = np.full(size, len(vocabulary), np.int64)
    known[vocabulary] = np.arange(len(vocabulary))
    return vocabulary, known


def _numbered(answer: Answer, known: NDArray[np.int64]) -> _Row | None:
    return (answer.states, known[answer.tokens]) if len(answer.tokens) else None


def _cut(rows: Sequence[_Row], ends: NDArray[np.int64], rng: np.random.Generator, length: int) -> _Row:
    """A random run of this length; answers that are shorter are joined, which teaches a wrong turn now and then.

    Args:
        rows: answers.
        ends: where each ends when all stand in a row.
    """
    states: list[NDArray[np.float16]] = []
    tokens: list[NDArray[np.int64]] = []
    missing = length
    while missing:
        row = rows[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))]
        start = int(rng.integers(max(1, len(row[1]) - missing + 1)))
        states.append(row[0][start : start + missing])
        tokens.append(row[1][start : start + missing])
        missing -= len(tokens[-1])
    return np.concatenate(states), np.concatenate(tokens)


def _schedule(step: int, done: float) -> float:
    """Share of the learning rate: warmed up over 40 steps, then a cosine down to a twentieth."""
    return min(1.0, (step + 1) / 40) * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, done))) / 2)
