"""The daemon with VLAN links that the machine's kernel cannot make: `python -m lab.node.vlan_standin`, in place of ipamd.daemon.

The daemon makes VLAN links only by the port `VlanLinks` (`ipamd/ports/`). Here this port makes the stand-ins of `lab/fabric/vlan.py`,
which are veths. Everything else that the daemon does with a VLAN link, it does with a stand-in in the same way.
"""

from __future__ import annotations

import socket
import sys

from ipamd import daemon
from ipamd.kernel import uapi
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress
from lab.fabric import vlan as stand_in
from lab.fabric.errors import FabricError


class VlanStandIn:
    """Makes and recognises VLAN links in the namespace of the calling thread."""

    kind = "veth"

    def place(self, name: str, *, peer: int) -> tuple[int, int]:  # noqa: ARG002  # the peer's name has both numbers
        """See the port."""
        try:
            return stand_in.place(socket.if_indextoname(peer))
        except OSError:
            return 0, 0

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """See the port."""
        try:
            stand_in.make(socket.if_indextoname(parent), name, vlan, mac=mac, group=uapi.MAKING_GROUP)
        except FileExistsError:
            return False
        except (FabricError, OSError) as error:
            raise WiringError(f"the stand-in of VLAN link {name}: {error}") from error
        return True


if __name__ == "__main__":
    sys.exit(daemon.main(vlan_links=VlanStandIn()))
