"""Proposers: cheap guesses of the next tokens."""

from outrider.proposers.base import NO_DRAFT, Context, Draft, Proposer, check_draft
from outrider.proposers.lookup import PromptLookup

__all__ = ["NO_DRAFT", "Context", "Draft", "PromptLookup", "Proposer", "check_draft"]
