"""Proposers: cheap guesses of the next tokens."""

from outrider.proposers.base import NO_DRAFT, Context, Draft, Proposal, Proposer, agreement, check_draft
from outrider.proposers.choosing import GoesOn
from outrider.proposers.draft_head import DraftHead, HeadRunner
from outrider.proposers.draft_model import DraftModel
from outrider.proposers.lookup import PromptLookup
from outrider.proposers.prediction import Prediction
from outrider.proposers.registry import DEFAULT_PROPOSERS, Setup, make_proposers
from outrider.proposers.suffix import Suffix, SuffixStore
from outrider.proposers.vocabulary import VocabularyMap, match_vocabularies

__all__ = [
    "DEFAULT_PROPOSERS",
    "NO_DRAFT",
    "Context",
    "Draft",
    "DraftHead",
    "DraftModel",
    "GoesOn",
    "HeadRunner",
    "Prediction",
    "PromptLookup",
    "Proposal",
    "Proposer",
    "Setup",
    "Suffix",
    "SuffixStore",
    "VocabularyMap",
    "agreement",
    "check_draft",
    "make_proposers",
    "match_vocabularies",
]
