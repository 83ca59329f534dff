"""What the egress plugins of amazon-vpc-cni-k8s leave on a node: a file for each address, and an iptables chain for each sandbox."""

from __future__ import annotations

import hashlib

from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import AttachmentKey

EXTRA_LEG_PLUGINS = ("egress-cni", "egress-v4-cni", "egress-v6-cni")
"""Types of the egress plugins in the conflist of amazon-vpc-cni-k8s."""

EGRESS_CHAIN_CHARACTERS = 28
"""Source: github.com/containernetworking/plugins pkg/utils/utils.go, maxChainLength."""

EGRESS_STATE = {IPV4: "v6pd/egress-v4-ipam", IPV6: "v4pd/egress-v6-ipam"}
"""Below /run/cni, by the family of egress; below that a directory for its network, and in that a file for each address.

Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""


def egress_file(key: AttachmentKey) -> bytes:
    """Return the content of the file by which the egress plugin remembers whose address this is; the file's name is the address.

    Source: github.com/containernetworking/plugins plugins/ipam/host-local/backend/disk/backend.go, Reserve.
    """
    return f"{key.container_id}\r\n{key.ifname}".encode()


def egress_chain(network_name: str, container_id: str, *, family: Family) -> str:
    """Return the name of the chain in table nat by which the egress plugin translates the packets of one sandbox in `family`.

    Source: github.com/containernetworking/plugins pkg/utils/utils.go, MustFormatChainNameWithPrefix.
    """
    digest = hashlib.sha512(f"{network_name}{container_id}".encode()).hexdigest()
    return f"CNI-E{family.any_route.version}-{digest}"[:EGRESS_CHAIN_CHARACTERS]
