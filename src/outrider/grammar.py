"""Grammars on tokens, by llguidance: masks of what may come next, in step with the sampler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from outrider.errors import InvalidRequest
from outrider.models import Tokenizer
from outrider.params import Grammar
from outrider.verify import Constraint
from outrider.verify.distribution import Scores

CompiledGrammar = Callable[[], Constraint]
"""Makes the state of one completion."""
KEPT = 64
"""Compiled grammars that are kept: a service asks for few schemas many times."""
_SPECIAL = b"\xff"
"""What llguidance marks tokens with that have no text of their own."""


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.tokens = [
            _SPECIAL + f"<{number}>".encode() if number in tokenizer.special_ids or not piece else piece
            for number, piece in enumerate(tokenizer.token_bytes)
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


class _Matcher:
    """One sequence's state."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._after = 0  # end-of-text tokens beyond the grammar's end: the text is over, nothing follows them

    def mask(self, scores: Scores) -> None:
        """See `Constraint.mask`."""
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        scores[: len(allowed)][allowed[: len(scores)] == 0] = -np.inf
        scores[len(allowed) :] = -np.inf

    def push(self, token: int) -> None:
        """See `Constraint.push`."""
        if self._after or not self._matcher.consume_token(token):
            self._after += 1

    def pop(self) -> None:
        """See `Constraint.pop`."""
        if self._after:
            self._after -= 1
        else:
            self._matcher.rollback(1)

    def accepts(self, tokens: Sequence[int]) -> int:
        """See `Constraint.accepts`."""
        return int(self._matcher.validate_tokens(list(tokens)))


class Grammars:
    """Compiles grammars for one model.

    Args:
        tokenizer: the model's.
        eos_ids: tokens that end its text.
        vocabulary: width of its logits.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._size = vocabulary
        self._compiled: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        wrapped = TokenizerWrapper(_Vocabulary(self._tokenizer, self._eos_ids))
        return LLTokenizer(wrapped, n_vocab=self._size, eos_token=list(self._eos_ids))

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Make a maker of states. Those of the last grammars are kept; safe from several threads.

        Raises:
            InvalidRequest: the source is no grammar of its kind, in the compiler's words.
        """
        key = grammar.kind, grammar.source
        found = self._compiled.get(key)
        if found is None:
            found = self._compile(grammar)
            self._compiled[key] = found
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        makers: dict[str, Callable[[str], str]] = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "lark": LLMatcher.grammar_from_lark,
        }
        try:
            compiled: Any = makers[grammar.kind](grammar.source)
        except ValueError as error:
            raise InvalidRequest(f"the {grammar.kind} is not one: {error}") from None
        problem = LLMatcher.validate_grammar(compiled, self._vocabulary)
        if problem and not problem.startswith("WARNING"):
            raise InvalidRequest(f"the {grammar.kind} cannot be used: {problem.strip().splitlines()[0]}")
        first = LLMatcher(self._vocabulary, compiled)
        return lambda: _Matcher(first.deep_copy())
