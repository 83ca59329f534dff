"""Define the settings of a node that moves between amazon-vpc-cni-k8s and this daemon. Each needs a restart."""

from __future__ import annotations

from pathlib import Path

from ipamd.model.record import dataclass
from ipamd.settings.field_kinds import setting
from ipamd.settings.parsers import or_off, parse_file, parse_file_text, parse_path, parse_socket

CONFLIST_NAME = "10-aws.conflist"
"""Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go."""

AWS_NODE_SOCKET = "/var/run/aws-node/ipamd.sock"
"""Source: amazon-vpc-cni-k8s pull request 3739."""


@dataclass(frozen=True)
class TakeoverConfig:
    """Files and sockets of amazon-vpc-cni-k8s on the node: read when its node is taken over, written when it is given back."""

    checkpoint: Path = setting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        parse_file,
        Path("/var/run/aws-node/ipam.json"),
        "Its file of allocations: read at the start, written by `ipamctl export`.",
    )
    daemon_socket: str = setting(
        "VPC_IPAMD_AWS_NODE_SOCKET",
        or_off(parse_socket),
        AWS_NODE_SOCKET,
        "Its daemon's socket: while that or 127.0.0.1:50051 accepts connections, or its pod runs, we give no address; 'off': none of "
        "these is looked at.",
    )
    conflist: str = setting(
        "VPC_IPAMD_AWS_NODE_CONFLIST_FILE",
        parse_file_text,
        "",
        "Its conflist, renamed while we are ready; empty: 10-aws.conflist beside ours.",
    )
    egress_state: Path = setting(
        "VPC_IPAMD_AWS_NODE_EGRESS_DIR",
        parse_path,
        Path("/run/cni"),
        "Where its plugin for egress keeps which addresses it gave: written by `ipamctl export`.",
    )
    cni_backend_socket: str = setting(
        "VPC_IPAMD_CNI_BACKEND_SOCKET",
        parse_socket,
        "",
        "Serve its plugin on this Unix socket, as its daemon did; empty: not served (docs/migration.md).",
    )

    @property
    def questions_socket(self) -> str:
        """The socket on which its policy agent calls its daemon: that of VPC_IPAMD_CNI_BACKEND_SOCKET if set, else that daemon's."""
        if self.cni_backend_socket:
            return self.cni_backend_socket
        if self.daemon_socket == "off":
            return AWS_NODE_SOCKET
        return self.daemon_socket

    @property
    def directories(self) -> tuple[Path, ...]:
        """Directories of its socket and its file of allocations. A change there may mean that its daemon has started."""
        paths = [self.checkpoint]
        if self.daemon_socket != "off":
            paths.append(Path(self.daemon_socket))
        return tuple(dict.fromkeys(path.parent for path in paths))

    def conflist_beside(self, ours: Path) -> Path:
        """The path of its conflist: by the setting, or else beside ours."""
        if self.conflist:
            return Path(self.conflist)
        return ours.with_name(CONFLIST_NAME)
