"""Learn what the probe must know of the node before it may start: its limits, and a free place for one more ENI."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ipamd.cloud.limits import from_ec2, from_table
from ipamd.model.cloud import InstanceIdentity
from ipamd.probe.calls import Answer, Calls
from ipamd.probe.subject import Node

LINKS_DIR = Path("/sys/class/net")


class Refused(Exception):
    """The probe must not create an ENI on this node now."""


def read_links(directory: Path = LINKS_DIR) -> frozenset[str]:
    """Read the MACs of the links of this network namespace. Raises: OSError."""
    found = set()
    for name in os.listdir(directory):  # noqa: PTH208  # names are enough
        try:
            found.add((directory / name / "address").read_text().strip().lower())
        except FileNotFoundError:
            continue  # it went while we read, or is a file such as bonding_masters
        except NotADirectoryError:
            continue
    return frozenset(found)


def inspect(calls: Calls, identity: InstanceIdentity, left_over: Collection[str]) -> tuple[Node, Answer]:
    """Ask EC2 for the type's limits and for what is attached: two calls.

    Args:
        left_over: ENIs of former probes. Their places are free, or will be: a Describe that lags may still show them attached.
    Returns: the node, and the answer about its limits. Raises: Refused if EC2 does not tell, or no place is free.
    """
    answer = calls.ask("DescribeInstanceTypes", identity.instance_type, InstanceTypes=[identity.instance_type])
    table = from_table(identity.instance_type)
    limits = from_ec2(identity.instance_type, answer.body) or table
    if limits is None:
        raise Refused(f"the limits of {identity.instance_type} are not known: {answer}")
    filters = {"vpc-id": identity.vpc_id, "attachment.instance-id": str(identity.instance_id)}
    listed = calls.list_enis("the instance", filters)
    if str(identity.primary_eni_id) not in {entry["NetworkInterfaceId"] for entry in listed.enis()}:
        raise Refused(f"EC2 does not show the primary ENI {identity.primary_eni_id}: {listed}; what is attached is not known")
    others = [entry for entry in listed.enis() if entry["NetworkInterfaceId"] not in left_over]
    taken = {index for entry in others if (index := _device_index(entry)) is not None}
    free = [index for index in range(1, limits.eni_count) if index not in taken]
    if len(taken) >= limits.eni_count or not free:
        raise Refused(f"no place is free: {len(taken)} of {limits.eni_count} ENIs are attached; use a node with a free place")
    # The highest index: the daemon takes the lowest.
    return Node(limits, table, free[-1], _attachment_limit_type(answer)), answer


def _device_index(entry: Mapping[str, Any]) -> int | None:
    """Its place on the default card; None on another card, or without an attachment."""
    attachment = entry.get("Attachment") or {}
    if not attachment or attachment.get("NetworkCardIndex", 0):
        return None
    return int(attachment.get("DeviceIndex", 0))


def _attachment_limit_type(answer: Answer) -> str:
    """Whether volumes share the slots of ENIs, as EC2 tells of the type; empty if it does not."""
    types = answer.body.get("InstanceTypes") or [{}]
    return str(types[0].get("EbsInfo", {}).get("AttachmentLimitType", ""))
