"""Runners: one forward pass over ragged token runs with a paged KV cache."""

from outrider.runners.base import Logits, Runner, RunnerInfo, Segment, States, check_segments

__all__ = ["Logits", "Runner", "RunnerInfo", "Segment", "States", "check_segments"]
