"""Outrider: a speculative decoder for LLM serving. The same text, in less time."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.api import Engine, Prompt, chat
    from outrider.engine import Chunk, Completion, EngineConfig, Generation, Handle
    from outrider.errors import EngineClosed, InvalidRequest, ModelError, OutriderError, QueueFull
    from outrider.params import Grammar, SamplingParams

__version__ = version("outrider")

_HOMES = {
    "outrider.api": ("Engine", "Prompt", "chat"),
    "outrider.engine": ("Chunk", "Completion", "EngineConfig", "Generation", "Handle"),
    "outrider.errors": ("EngineClosed", "InvalidRequest", "ModelError", "OutriderError", "QueueFull"),
    "outrider.params": ("Grammar", "SamplingParams"),
}

__all__ = [
    "Chunk",
    "Completion",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "Generation",
    "Grammar",
    "Handle",
    "InvalidRequest",
    "ModelError",
    "OutriderError",
    "Prompt",
    "QueueFull",
    "SamplingParams",
    "__version__",
    "chat",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: `import outrider` must not start OpenVINO."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")
