"""Learn what the probe must know before it may start: the node's limits, a free place for one more ENI, and what IAM allows."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ipamd.cloud.limits import from_ec2, from_table
from ipamd.model.cloud import InstanceIdentity
from ipamd.probe.calls import Answer, Calls
from ipamd.probe.steps import MISSING_ENI_ID, token
from ipamd.probe.subject import Node, Subject

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


# Ask EC2 by dry runs which of the probe's calls IAM allows. Nothing is changed.
#
# Calls about an ENI name one that does not exist, so that an endpoint that ignores DryRun changes nothing either. EC2 has no dry
# run of AssignPrivateIpAddresses and UnassignPrivateIpAddresses.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AssignPrivateIpAddresses.html.


ALLOWED, DENIED, NOT_TOLD = "allowed", "denied", "not told"

WITHOUT_DRY_RUN = ("AssignPrivateIpAddresses", "UnassignPrivateIpAddresses")

NEEDED = frozenset({"CreateNetworkInterface", "DetachNetworkInterface", "DeleteNetworkInterface"})
"""Without these a probe could not clean up, so it does not start."""

MISSING_ATTACHMENT_ID = "eni-attach-00000000000000000"


class Permission(NamedTuple):
    """What EC2 told about one action. `verdict`: allowed, denied or not told."""

    action: str
    verdict: str
    told: str


def permissions(subject: Subject) -> tuple[Permission, ...]:
    """Make one dry run for each call that has one."""
    instance_id = str(subject.identity.instance_id)
    attachment = {"AttachmentId": MISSING_ATTACHMENT_ID, "DeleteOnTermination": True}
    runs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("AttachNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID, "InstanceId": instance_id, "DeviceIndex": 1}),
        ("DeleteNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID}),
        ("DetachNetworkInterface", {"AttachmentId": MISSING_ATTACHMENT_ID}),
        ("ModifyNetworkInterfaceAttribute", {"NetworkInterfaceId": MISSING_ENI_ID, "Attachment": attachment}),
    )
    create = {**subject.create_params(f"{token(subject)}-dry"), "DryRun": True}
    found = [_permission(subject.create(create, "dry run"))]
    found += [_permission(subject.calls.ask(api, "dry run", **params, DryRun=True)) for api, params in runs]
    found += [Permission(api, NOT_TOLD, "EC2 has no dry run of it") for api in WITHOUT_DRY_RUN]
    return tuple(found)


def _permission(answer: Answer) -> Permission:
    if answer.code == "DryRunOperation":
        verdict = ALLOWED
    elif answer.code in ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"):
        verdict = DENIED
    else:
        verdict = NOT_TOLD
    return Permission(answer.api, verdict, "the endpoint ignores DryRun" if answer.ok else str(answer))
