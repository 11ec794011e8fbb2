"""Loading a draft model beside its target: shared memory, matched vocabularies, and advice on whether it can pay."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.control import CostModel, break_even, pass_seconds
from outrider.models import ModelFiles, Tokenizer
from outrider.proposers import VocabularyMap, match_vocabularies
from outrider.runners.openvino import OpenVINORunner

SEQUENCE = 1024
"""Tokens of the sequence in which lost memory is counted."""
USUAL_RATIO = (5.0, 10.0)
"""How many times smaller than its target a draft usually is."""


@dataclass(frozen=True, slots=True)
class DraftReport:
    """What a draft model is and costs, measured at load."""

    name: str
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
        if self.parameters_ratio is not None and not low <= self.parameters_ratio <= high:
            return (
                f"the target has {self.parameters_ratio:.1f} times the draft's parameters; {low:.0f} to {high:.0f} is "
                f"usual. It pays above an acceptance of {self.break_even:.0%}"
            )
        return None

    def __str__(self) -> str:
        pays = "cannot pay" if self.break_even is None else f"pays above {self.break_even:.0%} acceptance"
        return (
            f"draft {self.name}: {self.vocabulary}; a pass costs {self.cost_ratio:.0%} of the target's, {pays}; "
            f"weights {self.weights_bytes / 2**20:.0f} MiB and KV {self.kv_bytes / 2**20:.0f} MiB take the room of "
            f"{self.sequences_lost} sequences of {SEQUENCE} tokens, {self.sequences} are left"
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
    """See `match_vocabularies`."""
    tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
    return match_vocabularies(
        target_tokenizer.token_bytes, tokenizer.token_bytes, target.info.vocabulary, draft.info.vocabulary
    )


def report(
    cost: CostModel,
    target: OpenVINORunner,
    target_files: ModelFiles,
    draft: OpenVINORunner,
    files: ModelFiles,
    line: str,
) -> DraftReport:
    """Measure the draft, before it drafts for anybody, and put together what is known."""
    seconds = pass_seconds(draft)
    known = target_files.manifest.parameters and files.manifest.parameters
    weights = (files.directory / "openvino_model.bin").stat().st_size
    kv_bytes = draft.info.num_blocks * draft.info.block_bytes
    sequence = SEQUENCE * target.info.block_bytes / target.info.block_size
    own = target.info.num_blocks * target.info.block_bytes
    return DraftReport(
        name=files.manifest.name,
        vocabulary=line,
        parameters_ratio=target_files.manifest.parameters / files.manifest.parameters if known else None,
        cost_ratio=seconds / cost.curve()[1],
        break_even=break_even(cost, seconds),
        weights_bytes=weights,
        kv_bytes=kv_bytes,
        sequences=int(own / sequence),
        sequences_lost=int((own + kv_bytes + weights) / sequence) - int(own / sequence),
    )
