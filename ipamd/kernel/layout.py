"""How the kernel adapters recognise a host veth: its kind, and the group of those that are to be deleted.

Numbers that must stay compatible with amazon-vpc-cni-k8s are in `ipamd/model/dataplane.py`.
"""

from __future__ import annotations

from typing import Final

DYING_GROUP: Final = 0x1BA3D
"""Link group of host veths that wait for deletion; one kernel call deletes them all.

Ours: far from 0 (every other link) and from the small numbers that people use.
"""

VETH_KIND: Final = "veth"
