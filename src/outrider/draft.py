"""Loading a draft beside its target: shared memory, matched vocabularies, and advice on whether it can pay.

A draft is a smaller model with a KV cache of its own, or a head, which drafts from the target's hidden states.
"""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from outrider.control import CostModel, break_even, pass_seconds
from outrider.errors import InvalidRequest
from outrider.models import HeadFiles, ModelFiles, Tokenizer
from outrider.proposers import DraftHead, DraftModel, GoesOn, Proposer, VocabularyMap, match_vocabularies
from outrider.runners.head import OpenVINOHead
from outrider.runners.openvino import KVPrecision, OpenVINORunner

log = logging.getLogger("outrider")

SMALLEST_KV = 16 << 20
"""KV cache of a runner whose real share of the memory is not known yet."""

SEQUENCE = 1024
"""Tokens of the sequence in which lost memory is counted."""
USUAL_RATIO = (5.0, 10.0)
"""How many times smaller than its target a draft usually is."""


@dataclass(frozen=True, slots=True)
class DraftReport:
    """What a draft is and costs, measured at load."""

    name: str
    kind: str
    """`model` or `head`."""
    vocabulary: str
    """How its tokens correspond to the target's."""
    parameters_ratio: float | None
    """The target's parameters over its own; None where either is not known."""
    cost_ratio: float
    """Seconds of its pass over one token, as a share of the target's."""
    break_even: float | None
    """Least acceptance at which it pays; None where it cannot."""
    weights_bytes: int
    kv_bytes: int
    sequences: int
    """Sequences of 1,024 tokens that the target's KV cache holds beside it."""
    sequences_lost: int
    """How many more it would hold if the draft's KV cache and weights were its."""

    @property
    def advice(self) -> str | None:
        """A warning, or None."""
        if self.break_even is None:
            return (
                f"the draft's pass costs {self.cost_ratio:.0%} of the target's: it cannot pay on this machine, "
                "whatever is accepted; take a smaller one"
            )
        low, high = USUAL_RATIO
        if self.kind == "model" and self.parameters_ratio is not None and not low <= self.parameters_ratio <= high:
            return (
                f"the target has {self.parameters_ratio:.1f} times the draft's parameters; {low:.0f} to {high:.0f} is "
                f"usual. It pays above an acceptance of {self.break_even:.0%}"
            )
        return None

    def __str__(self) -> str:
        pays = "cannot pay" if self.break_even is None else f"pays above {self.break_even:.0%} acceptance"
        return (
            f"draft {self.kind} {self.name}: {self.vocabulary}; a pass costs {self.cost_ratio:.0%} of the target's, "
            f"{pays}; weights {self.weights_bytes / 2**20:.0f} MiB and KV {self.kv_bytes / 2**20:.0f} MiB take the "
            f"room of {self.sequences_lost} sequences of {SEQUENCE} tokens, {self.sequences} are left"
        )


def share_memory(target: OpenVINORunner, draft: OpenVINORunner, kv_bytes: int) -> None:
    """Split a KV budget so that both caches hold as many tokens."""
    per_token = [runner.info.block_bytes / runner.info.block_size for runner in (target, draft)]
    of_draft = int(kv_bytes * per_token[1] / sum(per_token))
    draft.allocate(of_draft)
    target.allocate(kv_bytes - of_draft)


def match(
    target: OpenVINORunner, target_tokenizer: Tokenizer, draft: OpenVINORunner, files: ModelFiles
) -> tuple[VocabularyMap, str]:
    """How a draft model's tokens correspond to the target's; see `match_vocabularies`.

    Raises:
        InvalidRequest: too few are common, or the draft was made for a model of fewer tokens.
    """
    if files.manifest.drafts_for:
        ids, size = files.table(), target.info.vocabulary
        if len(ids) + 1 != draft.info.vocabulary or ids.max() >= size:
            raise InvalidRequest(
                f"{files.manifest.name} was made for {files.manifest.drafts_for}, of more than {ids.max()} tokens; "
                f"the target has {size}"
            )
        table = VocabularyMap([*ids.tolist(), -1], size, draft.info.vocabulary, other=len(ids))
        return table, f"says {len(ids):,} of the target's {size:,} tokens"
    tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
    return match_vocabularies(
        target_tokenizer.token_bytes, tokenizer.token_bytes, target.info.vocabulary, draft.info.vocabulary
    )


def report(
    cost: CostModel,
    target: OpenVINORunner,
    files: ModelFiles,
    draft: ModelFiles | HeadFiles,
    *,
    seconds: float,
    kv_bytes: int,
    line: str,
) -> DraftReport:
    """Put together what is known of a draft.

    Args:
        cost: of the target's passes.
        target: with its share of the memory.
        files: the target's.
        draft: its files.
        seconds: that a token takes it.
        kv_bytes: of its KV cache.
        line: how its tokens correspond to the target's.
    """
    head = isinstance(draft, HeadFiles)
    parameters = draft.card.parameters if isinstance(draft, HeadFiles) else draft.manifest.parameters
    weights = draft.bytes if isinstance(draft, HeadFiles) else (draft.directory / "openvino_model.bin").stat().st_size
    sequence = SEQUENCE * target.info.block_bytes / target.info.block_size
    own = target.info.num_blocks * target.info.block_bytes
    return DraftReport(
        name=draft.card.name if isinstance(draft, HeadFiles) else draft.manifest.name,
        kind="head" if head else "model",
        vocabulary=line,
        parameters_ratio=files.manifest.parameters / parameters if files.manifest.parameters and parameters else None,
        cost_ratio=seconds / cost.curve()[1],
        break_even=break_even(cost, seconds),
        weights_bytes=weights,
        kv_bytes=kv_bytes,
        sequences=int(own / sequence),
        sequences_lost=int((own + kv_bytes + weights) / sequence) - int(own / sequence),
    )


class LoadedDraft(Protocol):
    """A draft beside its target, not yet drafting."""

    def proposer(self, goes_on: GoesOn) -> Proposer:
        """What drafts."""
        ...

    def report(self, cost: CostModel, target: OpenVINORunner, files: ModelFiles) -> DraftReport:
        """Measure it, before it drafts for anybody."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class LoadedModel:
    """A draft model.

    Args:
        draft: its files.
        target: the runner that it drafts for; it gets the rest of the memory.
        tokenizer: the target's.
        kv_bytes: memory of both KV caches.
        kv_precision, threads: as the target's.

    Raises:
        InvalidRequest: too few of its tokens are the target's.
    """

    def __init__(
        self,
        draft: ModelFiles,
        target: OpenVINORunner,
        tokenizer: Tokenizer,
        kv_bytes: int,
        kv_precision: KVPrecision,
        threads: int | None,
    ) -> None:
        self._files = draft
        # before its own cache is made, which takes its share of the memory, the smallest does
        self._runner = OpenVINORunner(
            draft.directory,
            context_length=draft.manifest.context_length,
            kv_bytes=SMALLEST_KV,
            kv_precision=kv_precision,
            threads=threads,
        )
        self._vocabulary, self._line = match(target, tokenizer, self._runner, draft)
        share_memory(target, self._runner, kv_bytes)

    def proposer(self, goes_on: GoesOn) -> Proposer:
        """See `LoadedDraft`."""
        return DraftModel(self._runner, self._vocabulary, goes_on)

    def report(self, cost: CostModel, target: OpenVINORunner, files: ModelFiles) -> DraftReport:
        """See `LoadedDraft`."""
        info = self._runner.info
        return report(
            cost,
            target,
            files,
            self._files,
            seconds=pass_seconds(self._runner),
            kv_bytes=info.num_blocks * info.block_bytes,
            line=self._line,
        )

    def close(self) -> None:
        """See `LoadedDraft`."""
        self._runner.close()


def fit_head(draft: HeadFiles, target: OpenVINORunner, name: str) -> VocabularyMap:
    """How a head's tokens correspond to its target's.

    Args:
        draft: the head.
        target: the runner that it drafts for, loaded with the states that the head's card names.
        name: the target's.

    Raises:
        InvalidRequest: it was made for a target of another shape.
    """
    card, ids = draft.card, draft.vocabulary
    wanted = (len(card.points) + 1) * card.width
    if (card.target_vocabulary, wanted) != (target.info.vocabulary, target.state_width):
        raise InvalidRequest(
            f"draft head {card.name} was made for {card.target}, of {card.target_vocabulary} tokens and states of "
            f"{wanted} numbers; {name} has {target.info.vocabulary} and {target.state_width}"
        )
    return VocabularyMap(ids.tolist(), card.target_vocabulary, len(ids), other=len(ids))


class LoadedHead:
    """A draft head.

    Args:
        draft: its files.
        target: the runner that it drafts for, loaded with the states that the head's card names.
        name: the target's.
        threads: as the target's.

    Raises:
        InvalidRequest: it was made for a target of another shape.
    """

    def __init__(self, draft: HeadFiles, target: OpenVINORunner, name: str, threads: int | None) -> None:
        self._vocabulary = fit_head(draft, target, name)
        card = draft.card
        if card.target != name:
            log.warning(
                "draft head %s was made for %s; how well it drafts for %s is to be seen", card.name, card.target, name
            )
        self._files = draft
        self._runner = OpenVINOHead(draft.directory, threads=threads)

    def proposer(self, goes_on: GoesOn) -> Proposer:
        """See `LoadedDraft`."""
        return DraftHead(self._runner, self._vocabulary, goes_on)

    def report(self, cost: CostModel, target: OpenVINORunner, files: ModelFiles) -> DraftReport:
        """See `LoadedDraft`."""
        card = self._files.card
        line = f"says {len(self._files.vocabulary):,} of the target's {card.target_vocabulary:,} tokens"
        seconds = head_seconds(self._runner, target.state_width)
        return report(cost, target, files, self._files, seconds=seconds, kv_bytes=0, line=line)

    def close(self) -> None:
        """Nothing is held beside memory that goes with the object."""


def head_seconds(head: OpenVINOHead, width: int, repeats: int = 15) -> float:
    """Median seconds of drafting one token of one request."""
    token = np.zeros(1, np.int64)
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        head.step(token, head.start(np.zeros((1, width), np.float32)))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
