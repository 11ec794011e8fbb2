"""The engine: request, KV blocks, scheduler, step loop, text."""

from outrider.engine.config import EngineConfig
from outrider.engine.core import EngineCore
from outrider.engine.frontend import AsyncHandle, EngineThread, Handle
from outrider.engine.kv import BlockPool, BlockTable
from outrider.engine.outputs import (
    Chunk,
    Completion,
    EmittedToken,
    FinishReason,
    Generation,
    Timings,
    Usage,
)
from outrider.engine.request import Request
from outrider.engine.stats import EngineStats, Gauges, RequestStep, SourceStats, StepRecord
from outrider.engine.text import TextCodec, TextStream

__all__ = [
    "AsyncHandle",
    "BlockPool",
    "BlockTable",
    "Chunk",
    "Completion",
    "EmittedToken",
    "EngineConfig",
    "EngineCore",
    "EngineStats",
    "EngineThread",
    "FinishReason",
    "Gauges",
    "Generation",
    "Handle",
    "Request",
    "RequestStep",
    "SourceStats",
    "StepRecord",
    "TextCodec",
    "TextStream",
    "Timings",
    "Usage",
]
