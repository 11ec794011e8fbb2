"""Fakes for tests and plug-in authors: a deterministic runner, a byte tokenizer, a clock that is moved by hand."""

from outrider.testing.clock import ManualClock
from outrider.testing.codec import ByteCodec
from outrider.testing.runner import ScriptedRunner

__all__ = ["ByteCodec", "ManualClock", "ScriptedRunner"]
