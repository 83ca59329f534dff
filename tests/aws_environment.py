"""An environment without AWS settings, credentials or proxies of the machine, for tests that make real AWS clients."""

from __future__ import annotations

import pytest

UNWANTED = (
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_EC2",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "VPC_IPAMD_HEAVY",
)
"""The last one is `make test-all`'s, and no setting that the daemon or `ipamctl` knows."""


def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine leaks in; the credentials are the tests' own."""
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIALABLABLABLABLABL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
