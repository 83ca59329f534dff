"""Read the network file of a test as the daemon does."""

from __future__ import annotations

from ipamd.model.network_file import parse
from ipamd.model.subnets import CustomNetwork


def custom_of(text: str, *, source: str = "network.json") -> CustomNetwork:
    """Return custom networking's part of a file. Raises: SettingsError."""
    custom = parse(text, source=source).custom
    assert custom is not None, "custom networking is on"
    return custom
