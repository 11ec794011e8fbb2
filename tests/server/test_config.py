"""Who gets in: keys, hashes, addresses."""

from __future__ import annotations

import hashlib

import pytest

from outrider.errors import InvalidRequest
from outrider.server import ServerConfig


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org"])
def test_open_to_others_needs_a_key(host: str) -> None:
    with pytest.raises(InvalidRequest, match="open to others; give at least one API key"):
        ServerConfig(host=host)
    ServerConfig(host=host, api_keys=("k",))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_does_not(host: str) -> None:
    assert ServerConfig(host=host).tenant(None) == ""


def test_each_key_is_a_tenant_and_none_is_in_its_name() -> None:
    hashed = "sha256:" + hashlib.sha256(b"two").hexdigest()
    config = ServerConfig(api_keys=("one", hashed), admin_keys=("root",))
    one, two = config.tenant("one"), config.tenant("two")
    assert one
    assert two
    assert one != two
    assert "one" not in one
    for stranger in (None, "", "three", hashed, "root"):
        assert config.tenant(stranger) is None
    assert config.admin("root")
    assert not config.admin("one")
    assert not config.admin(None)


@pytest.mark.parametrize("fields", [{"port": 70000}, {"pace": "slow"}, {"hots": "x"}, {"timeout": 0}])
def test_wrong_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        ServerConfig(**fields)
