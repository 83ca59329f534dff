"""The checks: what the code takes for granted, the answer that agrees with it, and the step that answers.

Each has its row in docs/assumptions.md under the same name, with its source and with what happens here if it is false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

from ipamd.probe import steps
from ipamd.probe.subject import Subject


class Check(NamedTuple):
    """One assumption. `expected`: the answer with which it holds."""

    name: str
    assumption: str
    expected: str


IN_USE = "InvalidNetworkInterface.InUse, or InvalidParameterValue with `in use`"

STEPS: Mapping[Callable[[Subject], None], tuple[Check, ...]] = {
    steps.create: (
        Check("create-answer", "The answer to Create names the addresses and tags asked for", "one secondary address, our tags"),
    ),
    steps.attach: (
        Check("attach-after-create", "Attach finds an ENI right after Create", "accepted at the first try"),
        Check(
            "create-visible", "Describe shows a new ENI at once, and keeps showing it", "in the first look and in all after it"
        ),
        Check("attach-time", "An attachment takes less than 60 s", "attached in two successive looks within 60 s"),
        Check("link-before-attached", "The kernel shows the link before EC2 says attached", "link seen no later than attached"),
        Check("attached-addresses", "An ENI shown as attached is shown with all its addresses", "those of the answer to Create"),
        Check("metadata-complete", "Metadata that lists an ENI lists all its addresses", "complete when first listed"),
        Check("terminate-default", "DeleteOnTermination is off after Attach", "false"),
        Check(
            "terminate-set",
            "DeleteOnTermination can be set as soon as an attachment is shown",
            "accepted, and shown in the next look",
        ),
    ),
    steps.search: (
        Check("tag-search", "A search by tag finds a new ENI once Describe shows it by its ID", "in the first look"),
        Check(
            "list-by-instance",
            "The list of an instance's ENIs has a new one once Describe shows it by its ID",
            "in the first look",
        ),
        Check("list-unpaged", "The list by attachment.instance-id works without a page size", "accepted"),
        Check("list-missing-id", "A list with one missing ID fails as a whole", "InvalidNetworkInterfaceID.NotFound"),
    ),
    steps.replay_token: (
        Check("token-replay", "The same token and parameters give the same ENI", "the ID of the first answer"),
        Check("token-mismatch", "The same token with other parameters is refused", "IdempotentParameterMismatch"),
    ),
    steps.attach_again: (
        Check("attach-again", "Attaching an attached ENI is refused as in use", IN_USE),
        Check("delete-in-use", "Deleting an attached ENI is refused as in use", IN_USE),
    ),
    steps.addresses: (
        Check("assign-answer", "The answer to Assign names the new addresses only", "one address, not on the ENI before"),
        Check("assign-visible", "Describe shows an assigned address at once", "in the first look and in the next"),
        Check("assign-metadata", "Metadata shows an assigned address within 60 s", "seen within 60 s"),
        Check("assign-over-limit", "Assign beyond the limit is refused whole", "PrivateIpAddressLimitExceeded"),
        Check(
            "unassign-visible", "Describe stops showing an unassigned address at once", "absent in the first look and in the next"
        ),
        Check(
            "unassign-again",
            "Unassigning an address that is gone is refused as not found",
            "a code that ends in NotFound, or InvalidParameterValue with `not assigned to interface`",
        ),
    ),
    steps.prefix: (
        Check("prefix-answer", "A prefix is a /28 on a multiple of 16, alone in the answer", "one new aligned /28 in the subnet"),
    ),
    steps.ipv6_prefix: (
        Check("ipv6-prefix-answer", "A prefix of IPv6 is a /80, alone in the answer", "one /80 without host bits"),
        Check("ipv6-prefix-visible", "Describe shows an assigned /80 at once", "in the first look and in the next"),
        Check("ipv6-prefix-metadata", "Metadata shows an assigned /80 within 60 s", "seen within 60 s"),
    ),
    steps.detach: (
        Check("detach-again", "A second Detach is accepted, or refused as gone or busy", "success, NotFound or IncorrectState"),
        Check(
            "delete-detaching", "Deleting an ENI that is being detached succeeds, or is refused as in use", f"success; {IN_USE}"
        ),
        Check("detach-time", "A detach takes less than 60 s", "no attachment in two successive looks within 60 s"),
        Check("link-gone", "The link is gone when EC2 shows no attachment", "link gone no later than the attachment"),
    ),
    steps.delete: (
        Check("delete-visible", "Describe says NotFound as soon as Delete was answered", "in the first look and in the next"),
        Check("delete-again", "Deleting an ENI that is gone is refused as not found", "InvalidNetworkInterfaceID.NotFound"),
    ),
    steps.replay_after_delete: (
        Check("token-after-delete", "A replay after the ENI was deleted creates no second ENI", "the old ID, or a refusal"),
    ),
}
"""In the order of the run, each with the checks that it answers."""

CHECKS = (
    Check("limits-table", "The built-in table knows the type's ENIs and addresses", "the numbers of DescribeInstanceTypes"),
    *chain(*STEPS.values()),
)
"""All; the first is answered before the first step."""

NOT_PROBED = (
    "order of the checks of capacity and token: needs a full subnet",
    "codes for a full or fragmented subnet: needs a full or fragmented subnet",
    "AttachmentLimitExceeded, with volumes in the slots: needs all slots of the instance",
    "codes for throttling: needs the account's budget, which others share",
    "another ENI at the device index: needs a second ENI",
    "frozen instance metadata: needs many quick changes, and may stay frozen",
    "forced detach: may leave metadata wrong until the instance is stopped",
)
"""What the probe leaves alone, and why."""
