"""Adapters that talk to a hostile server, and an environment without AWS settings of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.cloud.server import HostileServer, hostile


@pytest.fixture
def server() -> Iterator[HostileServer]:
    """A server whose script the test sets."""
    with hostile() as made:
        yield made


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_EC2",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIALABLABLABLABLABL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
