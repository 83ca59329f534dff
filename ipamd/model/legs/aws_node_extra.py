"""Files and iptables chains of the egress plugins of amazon-vpc-cni-k8s: a file for each address, and a chain for each sandbox."""

from __future__ import annotations

import hashlib

from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import AttachmentKey

EXTRA_LEG_PLUGINS = ("egress-cni", "egress-v4-cni", "egress-v6-cni")
"""Types of the egress plugins in the conflist of amazon-vpc-cni-k8s."""

EGRESS_CHAIN_CHARACTERS = 28
"""The length of a chain's name. Source: github.com/containernetworking/plugins pkg/utils/utils.go, maxChainLength."""

EGRESS_STATE = {IPV4: "v6pd/egress-v4-ipam", IPV6: "v4pd/egress-v6-ipam"}
"""Family of egress -> a directory below /run/cni. In it there is a directory for each network, with a file for each address.

Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""


def egress_file(key: AttachmentKey) -> bytes:
    """Return the content of the file in which the egress plugin records the sandbox of an address. The file's name is the address.

    Source: github.com/containernetworking/plugins plugins/ipam/host-local/backend/disk/backend.go, Reserve.
    """
    return f"{key.container_id}\r\n{key.ifname}".encode()


def egress_chain(network_name: str, container_id: str, *, family: Family) -> str:
    """Return the name of the chain in table nat that translates the packets of one sandbox in the egress family `family`.

    Source: github.com/containernetworking/plugins pkg/utils/utils.go, MustFormatChainNameWithPrefix.
    """
    digest = hashlib.sha512(f"{network_name}{container_id}".encode()).hexdigest()
    return f"CNI-E{family.any_route.version}-{digest}"[:EGRESS_CHAIN_CHARACTERS]
