"""Ask EC2 by dry runs which of the probe's calls IAM allows. Nothing is changed.

Calls about an ENI name one that does not exist, so that an endpoint that ignores DryRun changes nothing either. EC2 has no dry run of
AssignPrivateIpAddresses and UnassignPrivateIpAddresses.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AssignPrivateIpAddresses.html.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ipamd.probe.calls import Answer
from ipamd.probe.creation import MISSING_ENI_ID, token
from ipamd.probe.subject import Subject

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
