"""Training a draft model: the target with few of its layers and tokens, taught to say what the whole one says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from outrider.errors import ModelError
from outrider.models import Manifest, ModelFiles
from outrider.models.base import MANIFEST, VOCABULARY
from outrider.models.cards import PrunedCard
from outrider.runners.surgery import layers_of, prune, save, set_weights
from outrider.train.base import Corpus, Row, Target, Tokens, TrainSettings, moved_rows
from outrider.train.graph import Graph
from outrider.train.head import divergence, summary

CARD = "draft.json"


def spread(layers: int, count: int) -> tuple[int, ...]:
    """Numbers of so many layers, from the first to the last, as evenly as can be.

    Raises:
        ModelError: there are not so many.
    """
    if not 1 <= count <= layers:
        raise ModelError(f"layers={count}: the target has {layers}")
    return tuple(sorted({round(place) for place in np.linspace(0, layers - 1, count)}))


class ModelLearner:
    """See `Learner`.

    Args:
        target: what it drafts for.
        settings: sizes.
        corpus: what it learns from.

    Raises:
        ModelError: the target's graph cannot be pruned or trained.
    """

    def __init__(self, target: Target, settings: TrainSettings, corpus: Corpus) -> None:
        if target.files is None:
            raise ModelError(f"{target.name} was not loaded from files; a model can only be pruned out of some")
        self._files: ModelFiles = target.files
        self._target = target
        self._settings = settings
        self._corpus = corpus
        self._layers = spread(layers_of(self._files.directory), settings.layers)
        self._pruned = prune(self._files.directory, self._layers, corpus.vocabulary)
        self.module = Graph(self._pruned).to(settings.device)
        self.positions_per_step = settings.runs * settings.context
        self._teacher = torch.from_numpy(target.projection[corpus.vocabulary]).to(settings.device)

    def loss(self, rng: np.random.Generator) -> Tensor:
        """See `Learner`."""
        rows = self._corpus.learned
        drawn = [
            _cut(rows[int(rng.integers(len(rows)))], rng, self._settings.context) for _ in range(self._settings.runs)
        ]
        longest = max(len(tokens) for tokens, _ in drawn)
        said = self._log_probabilities([np.pad(tokens, (0, longest - len(tokens))) for tokens, _ in drawn])
        # a sequence's states belong to its last tokens, and state i is the one that token i was chosen from
        places = [(run, len(tokens) - len(states) - 1, len(states)) for run, (tokens, states) in enumerate(drawn)]
        ours = torch.cat([said[run, start : start + count] for run, start, count in places])
        states = np.concatenate([states for _, states in drawn])[:, -self._teacher.shape[1] :].astype(np.float32)
        with torch.no_grad():
            wanted = F.log_softmax(torch.from_numpy(states).to(self._teacher.device) @ self._teacher.T, -1)
        return divergence(wanted, ours)

    def _log_probabilities(self, sequences: list[Tokens]) -> Tensor:
        """Over the draft's tokens, the one that stands for all others aside."""
        tokens = torch.from_numpy(np.stack(sequences)).to(self._teacher.device)
        return F.log_softmax(self.module(tokens)[..., :-1], -1)

    @torch.no_grad()
    def measure(self, most: int) -> tuple[tuple[float, ...], float]:
        """See `Learner`."""
        steps = self._settings.steps
        found: list[NDArray[np.bool_]] = []
        for row in self._corpus.unseen[:most]:
            if len(row.tokens) <= steps or not len(row.prompt):
                continue
            best = self._log_probabilities([np.concatenate((row.prompt, row.tokens))])[0].argmax(-1).cpu().numpy()
            right = best[len(row.prompt) - 1 : -1] == row.tokens
            found.append(np.stack([right[k : len(right) - steps + 1 + k] for k in range(steps)], 1))
        return summary(found, steps)

    def moved(self, weights: dict[str, Tensor], before: Tokens) -> dict[str, Tensor]:
        """See `Learner`."""
        fresh = self.module.state_dict()
        sizes = len(before) + 1, len(self._corpus.vocabulary) + 1
        return {
            name: moved_rows(value, fresh[name], before, self._corpus.vocabulary)
            if (len(value), len(fresh[name])) == sizes
            else value.clone()
            for name, value in weights.items()
        }

    def export(self, directory: Path, common: dict[str, Any]) -> PrunedCard:
        """See `Learner`."""
        weights = self.module.weights()
        set_weights(self._pruned, weights, self._settings.bits)
        save(self._pruned, directory)
        np.save(directory / VOCABULARY, self._corpus.vocabulary.astype(np.int32))
        parameters = sum(array.size for array in weights.values())
        of = self._files.manifest
        manifest = Manifest(
            name=directory.name,
            source=f"{len(self._layers)} layers of {of.name}, trained to draft for it",
            architecture=of.architecture,
            weights="F16" if self._settings.bits == 16 else "INT8",
            parameters=parameters,
            context_length=of.context_length,
            eos_ids=(),
            special_ids=(),
            drafts_for=of.name,
        )
        (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        card = PrunedCard(layers=self._layers, parameters=parameters, **common)
        (directory / CARD).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return card


def _cut(row: Row, rng: np.random.Generator, length: int) -> tuple[Tokens, NDArray[np.float16]]:
    """At most so many tokens of a prompt and its answer, ending somewhere in the answer, with the states of those of
    the answer, the first token aside if nothing stands before it."""
    end = int(rng.integers(1, len(row.tokens) + 1))
    if len(row.tokens) > length // 2:  # long answers are learned by whole stretches
        end = max(end, length // 2)
    whole = np.concatenate((row.prompt, row.tokens[:end]))
    tokens = whole[-length:]
    count = min(end, len(tokens) - 1)
    return tokens, row.states[end - count : end]
