"""An uplink is a link by which the packets of one sandbox alone leave the node.

Most sandboxes have none: their packets leave by the link of the ENI that has the address. Only the packages named `legs`, such as
`ipamd/model/legs/` and `ipamd/kernel/legs/`, depend on the kind of uplink; all other code passes the value on.
"""

from __future__ import annotations

from typing import Protocol


class Uplink(Protocol):
    """The link by which a sandbox's packets leave the node, with its route table."""

    @property
    def link(self) -> str:
        """Name of the link on the host."""

    @property
    def route_table(self) -> int:
        """Number of the route table whose routes lead through the uplink."""

    @property
    def vlan(self) -> int:
        """VLAN ID of the uplink on the trunk ENI's link."""

    @property
    def is_strict(self) -> bool:
        """Whether all packets of the sandbox pass the uplink, even packets between the sandbox and its own node."""
