"""`outrider draft train`: collect, train, export. Every stage goes on where a run that was killed left it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from outrider.errors import InvalidRequest, ModelError
from outrider.models import Progress, silent
from outrider.models.cards import DraftCard
from outrider.train.base import Corpus, Learner, Target, Tokens, TrainSettings, corpus_of, thin
from outrider.train.collect import Answer, Collector, Shards
from outrider.train.learn_head import HeadLearner
from outrider.train.learn_model import ModelLearner

LOOK = 40
"""Held-out answers that progress is measured on while training."""
WORK = "work"
"""Folder of the shards and the checkpoint inside the output directory."""
CHECKPOINT = "checkpoint.pt"


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
    """One draft in the making.

    Args:
        target: what it drafts for.
        directory: gets the draft; the work in progress lies in a folder inside.
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

    def run(self) -> DraftCard:
        """Collect, train, export; returns the card."""
        shards = self.collect()
        answers = thin(list(shards.read()))
        if not any(answer.held_out for answer in answers):
            raise ModelError("too little was collected to hold a tenth out; give it more minutes")
        corpus = corpus_of(answers, self.settings.tokens, len(self.target.embeddings))
        learner = (ModelLearner if self.settings.kind == "model" else HeadLearner)(self.target, self.settings, corpus)
        self._train(learner, corpus.vocabulary)
        return self._export(learner, corpus, answers)

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

    # --- training --------------------------------------------------------------------------------------------

    def _train(self, learner: Learner, vocabulary: Tokens) -> None:
        settings, state, module = self.settings, self._state, learner.module
        optimiser = torch.optim.AdamW(module.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01)
        path = self._work / CHECKPOINT
        best = {name: value.clone() for name, value in module.state_dict().items()}
        if path.exists():
            kept = torch.load(path, map_location=settings.device, weights_only=True)
            before_now = kept["vocabulary"].cpu().numpy()
            if np.array_equal(before_now, vocabulary):
                module.load_state_dict(kept["weights"])
                optimiser.load_state_dict(kept["optimiser"])
                best = kept["best"]
            else:  # more was collected, and other tokens are the most frequent ones
                best = learner.moved(kept["weights"], before_now)
                module.load_state_dict(best)
                state.best, state.stale = 0.0, 0
        budget = max(1.0, settings.minutes * 60 - state.collected)
        began, before = self._clock(), state.seconds
        saved = began
        next_look = budget * len(state.measured) / settings.evaluations
        while state.seconds < budget and state.stale < settings.patience:
            if state.seconds >= next_look:
                acceptance, tokens = learner.measure(LOOK)
                state.measured.append(tokens)
                state.stale += 1
                if tokens > state.best:
                    state.best, state.stale = tokens, 0
                    best = {name: value.clone() for name, value in module.state_dict().items()}
                next_look = budget * len(state.measured) / settings.evaluations
                self._say(
                    f"{(state.seconds + state.collected) / 60:.1f} min, step {state.step}: "
                    f"{tokens:.3f} tokens per pass; accepted {' '.join(f'{a:.0%}' for a in acceptance)}"
                )
            rng = np.random.default_rng((settings.seed, state.step))
            for group in optimiser.param_groups:
                group["lr"] = settings.rate * _schedule(state.step, state.seconds / budget)
            optimiser.zero_grad(set_to_none=True)
            learner.loss(rng).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            state.step += 1
            now = self._clock()
            state.seconds = before + now - began
            self._progress("train", int(state.seconds), int(budget))
            if now - saved > settings.checkpoint_seconds:
                saved = now
                self._checkpoint(module, vocabulary, optimiser, best)
        _, tokens = learner.measure(LOOK)
        if tokens < state.best:
            module.load_state_dict(best)
        self._checkpoint(module, vocabulary, optimiser, best)

    def _checkpoint(
        self,
        module: nn.Module,
        vocabulary: Tokens,
        optimiser: torch.optim.Optimizer,
        best: dict[str, torch.Tensor],
    ) -> None:
        partial = self._work / f"{CHECKPOINT}.partial"
        kept = {
            "weights": module.state_dict(),
            "optimiser": optimiser.state_dict(),
            "best": best,
            "vocabulary": torch.from_numpy(vocabulary),
        }
        torch.save(kept, partial)
        os.replace(partial, self._work / CHECKPOINT)
        self._keep_state()

    def _keep_state(self) -> None:
        partial = self._work / "state.json.partial"
        partial.write_text(json.dumps(asdict(self._state)))
        os.replace(partial, self._work / "state.json")

    # --- export ----------------------------------------------------------------------------------------------

    def _export(self, learner: Learner, corpus: Corpus, answers: Sequence[Answer]) -> DraftCard:
        settings, target, state = self.settings, self.target, self._state
        acceptance, tokens = learner.measure(4 * LOOK)
        common = {
            "name": self.directory.name,
            "target": target.name,
            "target_vocabulary": len(target.embeddings),
            "steps": settings.steps,
            "positions": corpus.positions,
            "passes": round(state.step * learner.positions_per_step / max(1, corpus.positions), 2),
            "greedy_share": round(sum(answer.greedy for answer in answers) / len(answers), 3),
            "traffic": len(self._traffic),
            "minutes": round((state.collected + state.seconds) / 60, 1),
            "device": settings.device,
            "seed": settings.seed,
            "acceptance": tuple(round(a, 4) for a in acceptance),
            "tokens_per_pass": round(tokens, 4),
            "command": self._command,
            "licence": target.licence,
        }
        return learner.export(self.directory, common)


def _schedule(step: int, done: float) -> float:
    """Share of the learning rate: warmed up over 40 steps, then a cosine down to a twentieth."""
    return min(1.0, (step + 1) / 40) * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, done))) / 2)
