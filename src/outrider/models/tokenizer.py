"""Text to tokens and back: OpenVINO's tokenizer, and the bytes of each token for incremental decoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import openvino_genai

from outrider.errors import InvalidRequest, ModelError

_METASPACE = "\u2581".encode()
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class Tokenizer:
    """Encodes, decodes and applies the chat template of one model. Safe to use from several threads.

    Args:
        directory: holds `openvino_tokenizer.xml` and `openvino_detokenizer.xml`.
        special_ids: control tokens, which have no text of their own.

    Raises:
        ModelError: the files cannot be read.
    """

    def __init__(self, directory: Path, special_ids: Sequence[int]) -> None:
        try:
            self._tokenizer: Any = openvino_genai.Tokenizer(str(directory))
            vocabulary: dict[bytes, int] = self._tokenizer.get_vocab()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ModelError(f"the tokenizer in {directory} cannot be loaded: {reason}") from None
        self.special_ids = frozenset(special_ids)
        size = max(vocabulary.values(), default=-1) + 1
        self.token_bytes: list[bytes] = [b""] * size
        """What each token adds to the text, as bytes; a token may hold part of a character."""
        metaspace = any(token.startswith(_METASPACE) for token in vocabulary)
        for token, number in vocabulary.items():
            self.token_bytes[number] = _sentencepiece_bytes(token) if metaspace else token
        self.strips_leading_space = metaspace
        """Whether the text's first space is the tokenizer's own and not the text's."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special` adds what the model wants at the start, such as a BOS token."""
        encoded = self._tokenizer.encode(text, add_special_tokens=special)
        ids: list[int] = encoded.input_ids.data[0].tolist()
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens at once; half characters become U+FFFD."""
        parts = [self.token_bytes[i] for i in ids if not (skip_special and i in self.special_ids)]
        text = b"".join(parts).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    @property
    def has_chat_template(self) -> bool:
        """Whether the model says how a chat is written."""
        return bool(self._tokenizer.chat_template)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer starts.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
        """
        if not self.has_chat_template:
            raise InvalidRequest("this model has no chat template; give a raw prompt (--raw) instead")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InvalidRequest(f"the chat template refuses these messages: {reason}") from None
        return self.encode(text, special=False)


def _sentencepiece_bytes(token: bytes) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_METASPACE, b" ")
