"""Check the preconditions of a probe: the limits of the instance type are known, and one more ENI can be attached."""

from __future__ import annotations

from collections.abc import Collection

from ipamd.cloud.limits import from_ec2, from_table
from ipamd.model.eni import InstanceLimits
from ipamd.probe.calls import CallAnswer, Ended
from ipamd.probe.creation_steps import list_instance
from ipamd.probe.subject import ProbeSubject


def inspect(subject: ProbeSubject, left_over: Collection[str]) -> None:
    """Ask EC2 for the limits of the instance type and for the attached ENIs, and choose the device index of the probe's ENI.

    Args:
        left_over: ENIs of former probes, which have been deleted or will be. Their places count as free, although a delayed answer may
            still show them as attached.
    Raises: Ended if the limits or the attached ENIs are not known, or no place is free.
    """
    type_name = subject.identity.instance_type
    answer = subject.calls.ask("DescribeInstanceTypes", type_name, InstanceTypes=[type_name])
    ec2_limits = from_ec2(type_name, answer.body)
    limits = ec2_limits or from_table(type_name)
    if limits is None:
        raise Ended(f"the limits of {type_name} are not known: {answer}")
    subject.device_index = _free_device_index(subject, limits.eni_count, left_over)
    subject.address_limit = limits.ipv4_per_eni
    types = answer.body.get("InstanceTypes") or [{}]
    subject.attachment_limit_type = str(types[0].get("EbsInfo", {}).get("AttachmentLimitType", ""))
    _report_limits(subject, ec2_limits, answer)


def _free_device_index(subject: ProbeSubject, eni_count: int, left_over: Collection[str]) -> int:
    """Choose the highest free device index of the default network card, because the daemon takes the lowest. Raises: Ended."""
    primary_eni_id = subject.identity.primary_eni_id
    listed = list_instance(subject)
    if str(primary_eni_id) not in listed.eni_ids():
        raise Ended(f"EC2 does not show the primary ENI {primary_eni_id}: {listed}; what is attached is not known")
    taken = set()
    for eni in listed.enis():
        attachment = eni.get("Attachment")
        if eni["NetworkInterfaceId"] in left_over or not attachment or attachment.get("NetworkCardIndex", 0):
            continue
        taken.add(int(attachment.get("DeviceIndex", 0)))
    free = [index for index in range(1, eni_count) if index not in taken]
    if len(taken) >= eni_count or not free:
        raise Ended(f"no place is free: {len(taken)} of {eni_count} ENIs are attached; use a node with a free place")
    return free[-1]


def _report_limits(subject: ProbeSubject, ec2_limits: InstanceLimits | None, answer: CallAnswer) -> None:
    """Report whether the built-in table has the limits that EC2 answered."""
    if ec2_limits is None:
        subject.observe("limits-table", None, f"EC2 did not tell: {answer}", answer)
        return
    table = from_table(subject.identity.instance_type)
    numbers = f"EC2: {ec2_limits.eni_count} ENIs with {ec2_limits.ipv4_per_eni} addresses"
    in_table, is_same = "not in the table", False
    if table is not None:
        in_table = f"table: {table.eni_count} with {table.ipv4_per_eni}"
        is_same = (ec2_limits.eni_count, ec2_limits.ipv4_per_eni) == (table.eni_count, table.ipv4_per_eni)
    kind = subject.attachment_limit_type or "not told"
    subject.observe("limits-table", is_same, f"{numbers}; {in_table}; attachment limit type: {kind}", answer)
