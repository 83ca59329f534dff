"""The settings of a node that changes hands between amazon-vpc-cni-k8s and us; a restart is needed for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ipamd.settings.field_kinds import setting as _setting
from ipamd.settings.parsers import parse_file, parse_file_text, parse_socket, parse_socket_or_off

CONFLIST_NAME = "10-aws.conflist"
"""Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go."""


@dataclass(frozen=True)
class TakeoverConfig:
    """What amazon-vpc-cni-k8s has on the node: read when we come, written when it comes back."""

    checkpoint: Path = _setting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        parse_file,
        Path("/var/run/aws-node/ipam.json"),
        "Its file of allocations: read at the start, written by `ipamctl export`.",
    )
    daemon_socket: str = _setting(
        "VPC_IPAMD_AWS_NODE_SOCKET",
        parse_socket_or_off,
        "/var/run/aws-node/ipamd.sock",
        "Its daemon's socket: while that or 127.0.0.1:50051 accepts connections we give no address; 'off': not looked at.",
    )
    conflist: str = _setting(
        "VPC_IPAMD_AWS_NODE_CONFLIST",
        parse_file_text,
        "",
        "Its conflist, renamed while we are ready; empty: 10-aws.conflist beside ours.",
    )
    cni_backend_socket: str = _setting(
        "VPC_IPAMD_CNI_BACKEND_SOCKET",
        parse_socket,
        "",
        "Serve its plugin on this Unix socket, as its daemon did; empty: not served (docs/migration.md).",
    )

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where its daemon makes its socket and writes its file: a change there may be its coming."""
        paths = [self.checkpoint, *([] if self.daemon_socket == "off" else [Path(self.daemon_socket)])]
        return tuple({path.parent: None for path in paths})

    def conflist_beside(self, ours: Path) -> Path:
        """Where its conflist is, by the setting or beside ours."""
        return Path(self.conflist) if self.conflist else ours.with_name(CONFLIST_NAME)
