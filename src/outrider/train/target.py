"""A model made ready for training a draft: its runner with hidden states, its matrices, and how its chats open."""

from __future__ import annotations

from outrider.errors import ModelError
from outrider.models import Message, ModelFiles, Tokenizer
from outrider.runners.graph import matrices, residual_stream_length
from outrider.runners.openvino import OpenVINORunner
from outrider.train.base import Kind, Target
from outrider.train.collect import OPENERS

DEPTHS = (8 / 30, 18 / 30)
"""Where in the target's depth its hidden states are read, beside its end."""
KV_BYTES = 1 << 30
_MARK = "\ufdd0"
"""A character that no text has."""


def load_target(files: ModelFiles, kind: Kind = "head", *, threads: int | None = None) -> Target:
    """Load a model for training a draft of this kind.

    Raises:
        ModelError: its graph has no hidden states or matrices that can be read.
    """
    tokenizer = Tokenizer(files.directory, files.manifest.special_ids)
    points: tuple[int, ...] = ()
    if kind == "head":
        count = residual_stream_length(files.directory)
        points = tuple(sorted({max(0, round(count * depth) - 1) for depth in DEPTHS}))
    runner = OpenVINORunner(
        files.directory,
        context_length=files.manifest.context_length,
        kv_bytes=KV_BYTES,
        threads=threads,
        states=points,
    )
    embeddings, projection = matrices(files.directory)
    if embeddings.shape != projection.shape:
        raise ModelError(
            f"{files.manifest.name} embeds tokens in {embeddings.shape[1]} numbers and projects from "
            f"{projection.shape[1]}; a head needs both the same"
        )
    chats = tokenizer.has_chat_template
    return Target(
        name=files.manifest.name,
        runner=runner,
        codec=tokenizer,
        eos_ids=files.manifest.eos_ids,
        opening=chat_opening(tokenizer) if chats else list(files.manifest.eos_ids[:1]),
        openers=[tokenizer.encode(opener, special=False) for opener in OPENERS],
        ask=(lambda text: tokenizer.chat([Message(role="user", content=text)])) if chats else tokenizer.encode,
        points=points,
        embeddings=embeddings,
        projection=projection,
        files=files,
    )


def chat_opening(tokenizer: Tokenizer) -> list[int]:
    """Tokens of a chat up to where the user's first words stand.

    Raises:
        ModelError: the template does not let them through.
    """
    text = tokenizer.decode(tokenizer.chat([Message(role="user", content=_MARK)]), skip_special=False)
    head, found, _ = text.partition(_MARK)
    if not found:
        raise ModelError("the chat template changes what the user says; its opening cannot be found")
    return tokenizer.encode(head, special=False)
