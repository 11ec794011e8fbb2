"""What tests share: the real model, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.api import Engine
from outrider.models import ModelFiles, Resolver


@pytest.fixture(scope="session")
def smollm2() -> ModelFiles:
    """The built-in model's files; pulled on first use."""
    return Resolver().resolve("smollm2-135m")


@pytest.fixture(scope="session")
def engine(smollm2: ModelFiles) -> Iterator[Engine]:
    """One engine over the real model."""
    with Engine("smollm2-135m", kv_memory=512 << 20) as loaded:
        yield loaded
