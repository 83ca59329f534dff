"""A link of its own by which the packets of one sandbox leave the node.

Most sandboxes have none: their packets leave by the link of the ENI that has the address. Only `ipamd/model/legs/` and
`ipamd/kernel/legs/` know the kinds of uplinks and how the kernel makes them; all other code passes the value on.
"""

from __future__ import annotations

from typing import Protocol


class Uplink(Protocol):
    """How a sandbox is connected to its uplink."""

    @property
    def link(self) -> str:
        """Name of the link on the host."""

    @property
    def route_table(self) -> int:
        """Table that leads packets to the uplink."""

    @property
    def vlan(self) -> int:
        """802.1Q ID of the link on the trunk's link."""

    @property
    def is_strict(self) -> bool:
        """Whether all packets of the sandbox pass the uplink, those of its own node too."""
