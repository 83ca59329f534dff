"""What our wiring looks like in the kernel: addresses, priorities and the group of links to be deleted.

Compatible with the incumbent's data plane (design 8), so that a node can be moved between both.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

GATEWAY: Final = IPv4Address("169.254.1.1")
"""The sandbox's next hop, which nobody owns: a permanent neighbour entry answers for it. Source: upstream_reference 3.7."""

TO_SANDBOX_PRIORITY: Final = 512
"""`to address lookup main`. Source: upstream_reference 3.2."""

MARK_PRIORITY: Final = 1024
"""`fwmark 0x80/0x80 lookup main`. Source: upstream_reference 3.2."""

FROM_SANDBOX_PRIORITY: Final = 1536
"""`from address lookup <ENI table>`. Source: upstream_reference 3.2."""

FROM_ENI_PRIORITY: Final = 32765
"""`from <ENI's primary address> lookup <ENI table>`. Source: upstream_reference 3.2."""

DYING_GROUP: Final = 0x1BA3D
"""Link group of retired host veths, deleted as one. Ours: far from 0 (every other link) and from small numbers people use."""

VETH_KIND: Final = "veth"
