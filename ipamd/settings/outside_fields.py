"""The settings of what the daemon asks: EC2, instance metadata, the container runtime."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.settings.field_kinds import live as _live
from ipamd.settings.field_kinds import setting as _setting
from ipamd.settings.json_parsers import parse_cluster_name, parse_tags
from ipamd.settings.parsers import integer, parse_bool, parse_cri_socket, parse_url


@dataclass(frozen=True)
class CloudConfig:
    """How EC2 and instance metadata are reached, and how ENIs are tagged."""

    ec2_endpoint: str = _setting("AWS_EC2_ENDPOINT", parse_url, "", "URL of the EC2 API; empty: the region's own.")
    imds_endpoint: str = _setting(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT", parse_url, "http://169.254.169.254", "URL of the instance metadata service."
    )
    cluster_name: str = _setting("CLUSTER_NAME", parse_cluster_name, "", "Name of the EKS cluster, for tags.")
    additional_tags: tuple[tuple[str, str], ...] = _live(
        "ADDITIONAL_ENI_TAGS", parse_tags, (), "JSON object of further tags for ENIs that we create."
    )
    leaked_eni_cleanup_disabled: bool = _setting(
        "DISABLE_LEAKED_ENI_CLEANUP",
        parse_bool,
        False,
        "Leave alone the ENIs that this node made and that leaked; else deleted after a start.",
    )
    http_timeout_s: int = _setting("HTTP_TIMEOUT", integer(1, 300), 10, "Seconds for the whole answer to an HTTP request to AWS.")


@dataclass(frozen=True)
class RuntimeConfig:
    """How the container runtime is reached."""

    cri_events: bool = _setting(
        "CRI_EVENTS", parse_bool, True, "Follow the runtime's events; turn off where kubelet's EventedPLEG uses containerd 1.x."
    )
    cri_socket: str = _setting(
        "CRI_SOCKET", parse_cri_socket, "", "Path of the CRI socket; empty: the usual ones in turn; 'off': no CRI, no reaping."
    )
