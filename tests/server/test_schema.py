"""The server against its own description: whatever is sent, no error of the server's, and an end."""

from __future__ import annotations

from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from outrider.server import ServerConfig, create_app
from server.conftest import Start

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("default")]
HURRIED = ServerConfig(timeout=0.2, default_max_tokens=4)
"""Answers end after a fifth of a second with what they have: what is tried is requests, not the model."""
ENDLESS = "/v1/events"


@pytest.fixture(scope="module")
def hurried(start: Start) -> str:
    return start(HURRIED)


# the description does not depend on the engine
schema = schemathesis.openapi.from_dict(create_app(cast(Any, None)).openapi()).exclude(path=ENDLESS)
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


def check(case: Any, url: str) -> None:
    response = case.call(base_url=url, timeout=20)
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code >= 400 and response.headers.get("content-type") == "application/json":
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@schema.parametrize()
@settings(max_examples=15, **COMMON)
def test_some_requests(case: Any, hurried: str) -> None:
    check(case, hurried)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=250, **COMMON)
def test_a_thousand_requests(case: Any, hurried: str) -> None:
    check(case, hurried)
