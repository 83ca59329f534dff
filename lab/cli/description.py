"""The state of a lab as plain JSON, for `vpc-lab status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.lab import Lab  # at run time its imports (gRPC, the servers) are for the lab process alone


def describe(lab: Lab) -> dict[str, Any]:
    """Describe a lab as plain JSON: nodes with their ENIs, hosts, dropped packets, problems."""
    enis = lab.vpc.enis()

    def enis_of(instance_id: str) -> list[dict[str, Any]]:
        return [
            {
                "eni_id": eni.eni_id,
                "device_index": eni.attachment.device_index,
                "mac": eni.mac,
                "type": eni.interface_type,
                "addresses": [str(address) for address in eni.addresses],
                "prefixes": [str(prefix) for prefix in eni.prefixes],
                "ipv6": [str(one) for one in (*eni.ipv6_addresses, *eni.ipv6_prefixes)],
                "wired": lab.fabric.is_wired(eni.eni_id),
            }
            for eni in enis
            if eni.attachment is not None and eni.attachment.instance_id == instance_id
        ]

    return {
        "name": lab.name,
        "vpc_id": lab.vpc.vpc_id,
        "nodes": [
            {
                "name": node.name,
                "instance_id": node.instance_id,
                "pid": node.pid,
                "containerd": node.containerd is not None and node.containerd.poll() is None,
                "enis": enis_of(node.instance_id),
            }
            for node in lab.nodes.values()
        ],
        "hosts": [{"name": name, "enis": enis_of(lab.vpc.instance(name).instance_id)} for name in lab.hosts],
        "drops": [{"eni_id": d.eni_id, "source": str(d.source), "packet_count": d.packet_count} for d in lab.fabric.drops()],
        "faults": lab.faults.as_dict(),
        "problems": lab.fabric.problems,
    }
