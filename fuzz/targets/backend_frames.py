"""Bytes on the socket for the plugin of amazon-vpc-cni-k8s: as `daemon_frames`, with that plugin's methods."""

from __future__ import annotations

from fuzz.backend_node import ADD, DEL, BackendNode, add_request
from fuzz.target import Target
from fuzz.targets.daemon_frames import DaemonFrames


def make() -> Target:
    """Make the target."""
    return DaemonFrames(BackendNode(), methods=(ADD, ADD, DEL), request=add_request)
