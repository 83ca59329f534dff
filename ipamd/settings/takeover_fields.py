"""Define the settings of a node that moves between amazon-vpc-cni-k8s and this daemon. A change needs a restart."""

from __future__ import annotations

from pathlib import Path

from ipamd.model.record import dataclass
from ipamd.settings.field_kinds import setting
from ipamd.settings.parsers import or_off, parse_file, parse_file_text, parse_path, parse_socket

CONFLIST_NAME = "10-aws.conflist"
"""Name of the conflist of amazon-vpc-cni-k8s. Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go."""

AWS_NODE_SOCKET = "/var/run/aws-node/ipamd.sock"
"""Socket of the daemon of amazon-vpc-cni-k8s. Source: amazon-vpc-cni-k8s pull request 3739."""


@dataclass(frozen=True)
class TakeoverConfig:
    """Files and sockets of amazon-vpc-cni-k8s on the node.

    They are used when a node of amazon-vpc-cni-k8s is taken over, and when it goes back to amazon-vpc-cni-k8s.
    """

    checkpoint: Path = setting(
        "AWS_VPC_K8S_CNI_BACKING_STORE",
        parse_file,
        Path("/var/run/aws-node/ipam.json"),
        "File of amazon-vpc-cni-k8s with the addresses that it gave: read at the start, written by `ipamctl export`.",
    )
    daemon_socket: str = setting(
        "VPC_IPAMD_AWS_NODE_SOCKET",
        or_off(parse_socket),
        AWS_NODE_SOCKET,
        "Socket of the daemon of amazon-vpc-cni-k8s. While it or 127.0.0.1:50051 accepts connections, or that daemon's pod runs, ADD "
        "is refused; 'off': nothing of this is checked.",
    )
    conflist: str = setting(
        "VPC_IPAMD_AWS_NODE_CONFLIST_FILE",
        parse_file_text,
        "",
        "Conflist of amazon-vpc-cni-k8s, which is renamed while vpc-ipamd is ready; empty: 10-aws.conflist beside our conflist.",
    )
    egress_state: Path = setting(
        "VPC_IPAMD_AWS_NODE_EGRESS_DIR",
        parse_path,
        Path("/run/cni"),
        "Directory in which the egress plugin of amazon-vpc-cni-k8s records the addresses that it gave: written by `ipamctl export`.",
    )
    cni_backend_socket: str = setting(
        "VPC_IPAMD_CNI_BACKEND_SOCKET",
        parse_socket,
        "",
        "Unix socket on which the plugin of amazon-vpc-cni-k8s is served instead of by its daemon; empty: it is not served "
        "(docs/migration.md).",
    )

    @property
    def questions_socket(self) -> str:
        """The socket on which aws-network-policy-agent calls the daemon of amazon-vpc-cni-k8s.

        It is VPC_IPAMD_CNI_BACKEND_SOCKET if that is set, otherwise the socket on which the daemon of amazon-vpc-cni-k8s itself
        listens.
        """
        if self.cni_backend_socket:
            return self.cni_backend_socket
        if self.daemon_socket == "off":
            return AWS_NODE_SOCKET
        return self.daemon_socket

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories of the socket and the file of amazon-vpc-cni-k8s. A change there may mean that its daemon has started."""
        paths = [self.checkpoint]
        if self.daemon_socket != "off":
            paths.append(Path(self.daemon_socket))
        return tuple(dict.fromkeys(path.parent for path in paths))

    def conflist_beside(self, ours: Path) -> Path:
        """Return the path of the conflist of amazon-vpc-cni-k8s: the value of the setting, or else a path beside `ours`."""
        if self.conflist:
            return Path(self.conflist)
        return ours.with_name(CONFLIST_NAME)
