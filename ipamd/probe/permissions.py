"""Find out by dry runs which of the probe's calls IAM allows. Nothing is changed.

Calls about an ENI name an ENI that does not exist, so that even an endpoint that ignores DryRun changes nothing. EC2 has no dry run
for the calls that assign and unassign. Source:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AssignPrivateIpAddresses.html.
"""

from __future__ import annotations

from typing import Any

from ipamd.probe.calls import Ended
from ipamd.probe.creation_steps import MISSING_ENI_ID
from ipamd.probe.subject import Permission, ProbeSubject

ALLOWED, DENIED, NOT_TOLD = "allowed", "denied", "not told"
"""Verdicts about an action. NOT_TOLD: EC2's answer does not show whether IAM allows it."""

DRY_RUN_VERDICTS = {
    "DryRunOperation": ALLOWED,
    "UnauthorizedOperation": DENIED,
    "AccessDenied": DENIED,
    "AccessDeniedException": DENIED,
}
"""EC2's code in the answer to a dry run -> the verdict. With any other code the verdict is NOT_TOLD."""

WITHOUT_DRY_RUN = tuple(f"{verb}{kind}Addresses" for kind in ("PrivateIp", "Ipv6") for verb in ("Assign", "Unassign"))

NEEDED = frozenset({"CreateNetworkInterface", "DetachNetworkInterface", "DeleteNetworkInterface"})
"""Actions without which a probe does not start, because it could not clean up. Create is one of them, because the clean-up repeats a
Create that got no answer."""

MISSING_ATTACHMENT_ID = "eni-attach-00000000000000000"


def check_permissions(subject: ProbeSubject) -> None:
    """Make a dry run of each call that has one, and record the verdicts. Raises: Ended if IAM denies an action of NEEDED."""
    instance_id = str(subject.identity.instance_id)
    attachment = {"AttachmentId": MISSING_ATTACHMENT_ID, "DeleteOnTermination": True}
    runs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("AttachNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID, "InstanceId": instance_id, "DeviceIndex": 1}),
        ("DeleteNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID}),
        ("DetachNetworkInterface", {"AttachmentId": MISSING_ATTACHMENT_ID}),
        ("ModifyNetworkInterfaceAttribute", {"NetworkInterfaceId": MISSING_ENI_ID, "Attachment": attachment}),
    )
    answers = [subject.create({**subject.create_params(suffix="-dry"), "DryRun": True}, "dry run")]
    answers += [subject.calls.ask(api, "dry run", **params, DryRun=True) for api, params in runs]
    for answer in answers:
        verdict = DRY_RUN_VERDICTS.get(answer.code, NOT_TOLD)
        reply = str(answer)
        if answer.ok:
            reply = "the endpoint ignores DryRun"
        subject.permissions.append(Permission(answer.api, verdict, reply))
    subject.permissions += [Permission(api, NOT_TOLD, "EC2 has no dry run of it") for api in WITHOUT_DRY_RUN]
    denied = [
        permission.action for permission in subject.permissions if permission.verdict == DENIED and permission.action in NEEDED
    ]
    if denied:
        raise Ended(f"IAM denies {', '.join(denied)}: a probe could not clean up, so nothing was created")
