"""Whether a listener's address can be reached from this host only. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether this is an address of loopback. A name is not: what it resolves to may change; nor is an empty one, which is all."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
