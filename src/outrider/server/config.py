"""The server's settings, validated once."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from outrider.params import Checked

Pace = Literal["smooth", "burst"]
_HASHED = "sha256:"


class ServerConfig(Checked):
    """How the server listens and what it lets in.

    Raises:
        InvalidRequest: a value out of range, an unknown name, or a server open to others without keys.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_keys: tuple[str, ...] = ()
    """Keys of clients, as they are or as `sha256:` and the hash in hexadecimal. Each is a tenant of its own."""
    admin_keys: tuple[str, ...] = ()
    """Keys that may change the server while it runs."""
    share_memory: bool = False
    """Let all tenants' answers be drafted to all: only where they may read each other's."""
    pace: Pace = "smooth"
    """How accepted bursts reach a stream that does not choose: spread over the time to the next step, or at once."""
    max_body: Annotated[int, Field(ge=1024)] = 4 << 20
    """Bytes of the largest request body."""
    max_n: Annotated[int, Field(ge=1)] = 8
    """Most completions of one request."""
    default_max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Where a chat does not say; never more than the context leaves."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds after which an answer ends with what it has."""
    otlp_endpoint: str | None = None
    """Where OpenTelemetry spans go, as http://collector:4318/v1/traces; needs the `otel` extra."""
    header_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds in which a request's head must have come whole."""
    body_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a request's body may be silent."""
    on_engine_death: Literal["exit", "stay"] = "exit"
    """What the server does when its engine has died: `exit` ends the process with status 70, for whatever started it to
    start it again; `stay` answers 503 until somebody looks."""
    drain: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that open answers have to finish after the first signal to stop."""

    @model_validator(mode="after")
    def _closed_to_strangers(self) -> Self:
        if not self.api_keys and not _loopback(self.host):
            raise ValueError(f"host={self.host!r} is open to others; give at least one API key, or bind 127.0.0.1")
        return self

    def tenant(self, key: str | None) -> str | None:
        """Whose key this is: a name without the key in it, or None for nobody's. Without keys everybody is one."""
        if not self.api_keys:
            return ""
        return None if key is None else _match(key, self.api_keys)

    def admin(self, key: str | None) -> bool:
        """Whether this is an admin's key."""
        return key is not None and _match(key, self.admin_keys) is not None


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _match(key: str, known: Sequence[str]) -> str | None:
    """Compare with every key, in a time that does not depend on which one it is."""
    given = _digest(key)
    found = None
    for each in known:
        digest = each.removeprefix(_HASHED) if each.startswith(_HASHED) else _digest(each)
        if hmac.compare_digest(given.encode(), digest.encode()):
            found = digest[:16]
    return found
