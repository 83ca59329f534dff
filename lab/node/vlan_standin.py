"""VLAN links that the machine's kernel cannot make, for a daemon of the lab.

All of ipamd makes a VLAN link by one message, which has a seam (`ipamd/ports.py`, VlanLinks); everything else that it does with one,
it does with this stand-in as with the kernel's own.
"""

from __future__ import annotations

import socket
from typing import Any

from ipamd.model.errors import WiringError
from lab.fabric import vlan as stand_in
from lab.fabric.errors import FabricError


class VlanStandIn:
    """Makes VLAN links in the namespace of the calling thread."""

    def make(self, name: str, *, vlan: int, parent: int, mac: Any) -> bool:
        """See the port."""
        try:
            stand_in.make(socket.if_indextoname(parent), name, vlan, mac=str(mac))
        except FileExistsError:
            return False
        except (FabricError, OSError) as error:
            raise WiringError(f"the stand-in of VLAN link {name}: {error}") from error
        return True
