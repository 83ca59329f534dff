"""The table of the probe: each assumption of the code about EC2, the step that observes it, and the expected answer.

`run.py` takes the steps in the order of the table. `tools/gen_docs.py` generates docs/assumptions.md from the table. Three cells of a
row are only for that page: the source, the consequence if the assumption is false, and the test in which a simulated EC2 gives the
answer that contradicts the assumption.
"""

# ruff: noqa: E501  # a cell of a page is one line of Markdown

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ipamd.probe import address_steps, attachment_steps, creation_steps, expect
from ipamd.probe.subject import ProbeSubject

Ask = Callable[[ProbeSubject], None]
"""A step of the run: it makes calls about the probe's ENI, and records observations for the checks that name the step. Raises:
NotPossible if the step cannot be taken; Ended."""


class Check(NamedTuple):
    """One assumption.

    `name`: its name in the report.
    `ask`: the step that observes it; None if it is observed before the first step.
    `expect`: judges the observation.
    `expected`: the observation that `expect` accepts, in words.
    `source`, `if_false`, `played_by`: cells of docs/assumptions.md, in Markdown.
    """

    name: str
    ask: Ask | None
    expect: expect.Expect
    assumption: str
    expected: str
    source: str
    if_false: str
    played_by: str


IN_USE = "InvalidNetworkInterface.InUse, or InvalidParameterValue with `in use`"

CHECKS = (
    Check(
        "limits-table",
        None,
        expect.claimed,
        "The built-in table knows the type's ENIs and addresses",
        "the numbers of DescribeInstanceTypes",
        source="[types]; the table is from moto",
        if_false="too high: EC2's first refusal corrects it; too low: fewer pods fit",
        played_by="`tests/unit/cloud/test_limits.py::test_the_default_is_carried_by_every_type_that_can_be_unknown`",
    ),
    Check(
        "create-answer",
        creation_steps.create,
        expect.claimed,
        "The answer to Create names the addresses and tags asked for",
        "one secondary address, our tags",
        source="[create]",
        if_false="a missing field is an error, and the intent stays open; missing addresses are read by Describe",
        played_by="`tests/unit/cloud/test_answers.py::test_an_incomplete_answer_is_an_error`",
    ),
    Check(
        "attach-after-create",
        attachment_steps.attach,
        expect.claimed,
        "Attach finds an ENI right after Create",
        "accepted at the first try",
        source="denied by [consistency]; aws-sdk issue 301",
        if_false="it is retried for 30 s; then the intent stays open",
        played_by="`tests/lab/cloud_adapter/test_ec2_faults.py::test_a_new_eni_is_not_believed_gone`",
    ),
    Check(
        "create-visible",
        attachment_steps.attach,
        expect.claimed,
        "Describe shows a new ENI at once, and keeps showing it",
        "in the first look and in all after it",
        source="denied by [consistency]; terraform-provider-aws issue 35568",
        if_false="NotFound of a new object is retried for 30 s; an intent counts the ENI as gone after 60 s",
        played_by="`tests/lab/cloud_adapter/test_ec2_faults.py::test_a_new_eni_is_not_believed_gone`, `tests/unit/service/test_operations.py::test_a_creation`",
    ),
    Check(
        "attach-time",
        attachment_steps.attach,
        expect.in_time,
        "An attachment takes less than 60 s",
        "attached in two successive looks within 60 s",
        source="unknown; seconds are reported",
        if_false="the intent stays open and is tried again after a pause",
        played_by="`tests/lab/cloud_adapter/test_attached.py::test_an_attachment_that_never_comes_is_given_up`",
    ),
    Check(
        "link-before-attached",
        attachment_steps.attach,
        expect.claimed,
        "The kernel shows the link before EC2 says attached",
        "link seen no later than attached",
        source="unknown",
        if_false="the daemon waits 10 s for the link, then asks EC2; the set-up of the host waits for it again",
        played_by="`tests/netns/test_host_network.py::test_link_that_appears_late_is_waited_for`",
    ),
    Check(
        "attached-addresses",
        attachment_steps.attach,
        expect.claimed,
        "An ENI shown as attached is shown with all its addresses",
        "those of the answer to Create",
        source="denied by amazon-vpc-cni-k8s issue 1148",
        if_false="the pool requests more addresses, EC2 refuses because the ENI is full, and the pool reads the ENI again",
        played_by="`tests/unit/service/test_provisioner_external_changes.py::test_an_eni_that_another_hand_filled_does_not_stop_the_pool`",
    ),
    Check(
        "metadata-complete",
        attachment_steps.attach,
        expect.claimed,
        "Metadata that lists an ENI lists all its addresses",
        "complete when first listed",
        source="denied by amazon-vpc-cni-k8s issue 1872",
        if_false="it counts as a difference, which costs one Describe; no address is removed",
        played_by="`tests/unit/service/test_external_changes.py::test_growth_is_not_taken_for_other_hands`",
    ),
    Check(
        "terminate-default",
        attachment_steps.attach,
        expect.off,
        "DeleteOnTermination is off after Attach",
        "false",
        source="unknown",
        if_false="no consequence: the daemon sets it only where it is off",
        played_by="none needed",
    ),
    Check(
        "terminate-set",
        attachment_steps.attach,
        expect.claimed,
        "DeleteOnTermination can be set as soon as an attachment is shown",
        "accepted, and shown in the next look",
        source="unknown; [modify] names no state",
        if_false="it is retried for 60 s, and with the next attempt of the intent",
        played_by="`tests/unit/service/test_operations.py::test_a_deletion`",
    ),
    Check(
        "tag-search",
        creation_steps.search,
        expect.at_once,
        "A search by tag finds a new ENI once Describe shows it by its ID",
        "in the first look",
        source="unknown",
        if_false="an empty result counts only after a second search, 60 s later",
        played_by="`tests/contract/ports/test_ec2.py::test_an_eni_is_found_by_the_token_that_made_it`",
    ),
    Check(
        "list-by-instance",
        creation_steps.search,
        expect.at_once,
        "The list of an instance's ENIs has a new one once Describe shows it by its ID",
        "in the first look",
        source="unknown; [consistency] promises no time",
        if_false="an answer without the primary ENI is ignored; an ENI counts as absent after two answers that are apart in time",
        played_by="`tests/unit/service/test_cloud_comparison_enis.py::test_a_vanished_eni_is_no_supply_and_frees_its_place`",
    ),
    Check(
        "list-unpaged",
        creation_steps.search,
        expect.accepted,
        "The list by attachment.instance-id works without a page size",
        "accepted",
        source="[describe]: paged, or filtered by VPC and others",
        if_false="the list is paged and filtered by VPC; a refusal is retried later",
        played_by="`tests/lab/cloud_adapter/test_ec2_calls.py::test_describe_follows_every_page`",
    ),
    Check(
        "list-missing-id",
        creation_steps.search,
        expect.refused_with("InvalidNetworkInterfaceID.NotFound"),
        "A list with one missing ID fails as a whole",
        "InvalidNetworkInterfaceID.NotFound",
        source="amazon-vpc-cni-k8s pull request 1011",
        if_false="no consequence: the daemon describes one ID at a time",
        played_by="none needed",
    ),
    Check(
        "token-replay",
        creation_steps.replay_token,
        expect.claimed,
        "The same token and parameters give the same ENI",
        "the ID of the first answer",
        source="[idempotency]",
        if_false="a crash in a Create leaves a second ENI, tagged, and not attached",
        played_by="none yet",
    ),
    Check(
        "token-mismatch",
        creation_steps.replay_token,
        expect.refused_with("IdempotentParameterMismatch"),
        "The same token with other parameters is refused",
        "IdempotentParameterMismatch",
        source="[idempotency], [errors]",
        if_false="the daemon stores the parameters with the token, so only a defect could send others",
        played_by="`tests/lab/cloud_adapter/test_ec2_faults.py::test_a_token_for_another_request_is_refused`",
    ),
    Check(
        "attach-again",
        attachment_steps.attach_again,
        expect.in_use,
        "Attaching an attached ENI is refused as in use",
        IN_USE,
        source="[errors]; terraform-provider-aws issue 27513",
        if_false="with an unlisted code the attach counts as failed: the ENI is detached and deleted, unless it is recorded",
        played_by="`tests/lab/cloud_adapter/test_attach_refusals.py::test_a_lost_attach_answer_is_found_again`, `tests/unit/service/test_operations.py::test_a_creation`",
    ),
    Check(
        "delete-in-use",
        attachment_steps.attach_again,
        expect.in_use,
        "Deleting an attached ENI is refused as in use",
        IN_USE,
        source="[errors]",
        if_false="only ENIs without a record are deleted (I2), so no pod loses its ENI",
        played_by="`tests/contract/ports/test_ec2.py::test_what_is_attached_is_not_deleted`",
    ),
    Check(
        "assign-answer",
        address_steps.addresses,
        expect.claimed,
        "The answer to Assign names the new addresses only",
        "one address, not on the ENI before",
        source='[assign] says "assigned to the network interface"',
        if_false="known addresses are not added twice; an address of another ENI is reported, and the daemon compares with EC2",
        played_by="`tests/unit/service/test_assumptions.py::test_an_assign_that_names_old_addresses_adds_only_the_new`",
    ),
    Check(
        "assign-visible",
        address_steps.addresses,
        expect.at_once,
        "Describe shows an assigned address at once",
        "in the first look and in the next",
        source="unknown; cilium issue 36428 suspects not",
        if_false="the answer to Assign counts; an address counts as absent after two answers that are apart in time",
        played_by="`tests/stories/test_vpc_cni_3019.py`",
    ),
    Check(
        "assign-metadata",
        address_steps.addresses,
        expect.claimed,
        "Metadata shows an assigned address within 60 s",
        "seen within 60 s",
        source="amazon-vpc-cni-k8s issue 1872 and pull request 194",
        if_false="no address is added or removed (I7); the difference costs one Describe",
        played_by="`tests/stories/test_vpc_cni_3887.py`",
    ),
    Check(
        "assign-over-limit",
        address_steps.addresses,
        expect.refused_with("PrivateIpAddressLimitExceeded"),
        "Assign beyond the limit is refused whole",
        "PrivateIpAddressLimitExceeded",
        source="[errors]",
        if_false="with another code the daemon backs off, and does not read the ENI again",
        played_by="`tests/unit/service/test_provisioner_external_changes.py::test_an_eni_that_another_hand_filled_does_not_stop_the_pool`",
    ),
    Check(
        "unassign-visible",
        address_steps.addresses,
        expect.at_once,
        "Describe stops showing an unassigned address at once",
        "absent in the first look and in the next",
        source="unknown",
        if_false="the success of our Unassign counts; for 5 min the daemon ignores that Describe still shows the address",
        played_by="`tests/unit/service/test_release.py`",
    ),
    Check(
        "unassign-again",
        address_steps.addresses,
        expect.not_assigned,
        "Unassigning an address that is gone is refused as not found",
        "a code that ends in NotFound, or InvalidParameterValue with `not assigned to interface`",
        source="cilium issue 15877 for the words",
        if_false="with another code the addresses that are still there are not released, and a condition reports it",
        played_by="`tests/lab/cloud_adapter/test_ec2_calls.py::test_what_is_not_there_is_released_all_the_same`",
    ),
    Check(
        "prefix-answer",
        address_steps.prefix,
        expect.claimed,
        "A prefix is a /28 on a multiple of 16, alone in the answer",
        "one new aligned /28 in the subnet",
        source="[prefixes] for the size; the multiple follows from CIDR notation",
        if_false="the addresses of that ENI cannot be read: an error, and the intent stays open",
        played_by="`tests/unit/cloud/test_answers.py::test_a_malformed_address_is_an_error`",
    ),
    Check(
        "ipv6-prefix-answer",
        address_steps.ipv6_prefix,
        expect.claimed,
        "A prefix of IPv6 is a /80, alone in the answer",
        "one /80 without host bits",
        source="[prefixes]",
        if_false="the prefix cannot be read: an error, and the intent stays open",
        played_by="`tests/lab/cloud_adapter/false_answers.py`",
    ),
    Check(
        "ipv6-prefix-visible",
        address_steps.ipv6_prefix,
        expect.at_once,
        "Describe shows an assigned /80 at once",
        "in the first look and in the next",
        source="unknown",
        if_false="the answer to Assign counts",
        played_by="`tests/lab/cloud_adapter/false_answers.py`",
    ),
    Check(
        "ipv6-prefix-metadata",
        address_steps.ipv6_prefix,
        expect.claimed,
        "Metadata shows an assigned /80 within 60 s",
        "seen within 60 s",
        source="unknown",
        if_false="it counts as a difference, which costs one Describe",
        played_by="`tests/lab/cloud_adapter/false_answers.py`",
    ),
    Check(
        "detach-again",
        attachment_steps.detach,
        expect.accepted_or_ended,
        "A second Detach is accepted, or refused as gone or busy",
        "success, NotFound or IncorrectState",
        source="unknown; [errors] lists the codes",
        if_false="the deletion is tried again later",
        played_by="`tests/lab/cloud_adapter/test_ec2_calls.py::test_deleting_and_detaching_what_is_gone_is_fine`",
    ),
    Check(
        "delete-detaching",
        attachment_steps.detach,
        expect.accepted_or_in_use,
        "Deleting an ENI that is being detached succeeds, or is refused as in use",
        f"success; {IN_USE}",
        source="[errors]; amazon-vpc-cni-k8s issue 1399",
        if_false="the intent stays open and is tried again",
        played_by="`tests/lab/cloud_adapter/test_ec2_faults.py::test_delete_waits_for_the_detach`",
    ),
    Check(
        "detach-time",
        attachment_steps.detach,
        expect.in_time,
        "A detach takes less than 60 s",
        "no attachment in two successive looks within 60 s",
        source="unknown; amazon-vpc-cni-k8s issue 608 has seconds",
        if_false="the intent stays open; nothing else waits for it",
        played_by="`tests/unit/service/test_provisioner.py::test_a_deletion_that_ec2_refuses_is_tried_again_after_a_pause`",
    ),
    Check(
        "link-gone",
        attachment_steps.detach,
        expect.claimed,
        "The link is gone when EC2 shows no attachment",
        "link gone no later than the attachment",
        source="unknown",
        if_false="the kernel's notification freezes the ENI at once, and EC2's answer decides what follows",
        played_by="`tests/unit/service/test_external_changes_links.py::test_a_link_that_goes_freezes_its_eni_at_once`",
    ),
    Check(
        "delete-visible",
        attachment_steps.delete,
        expect.claimed,
        "Describe says NotFound as soon as Delete was answered",
        "in the first look and in the next",
        source="unknown",
        if_false="the success of our Delete counts; only attached ENIs are recorded",
        played_by="none needed",
    ),
    Check(
        "delete-again",
        attachment_steps.delete,
        expect.is_not_found,
        "Deleting an ENI that is gone is refused as not found",
        "InvalidNetworkInterfaceID.NotFound",
        source="[errors]",
        if_false="the intent stays open and is tried again for ever, after pauses",
        played_by="`tests/lab/cloud_adapter/test_ec2_calls.py::test_deleting_and_detaching_what_is_gone_is_fine`",
    ),
    Check(
        "token-after-delete",
        creation_steps.replay_after_delete,
        expect.claimed,
        "A replay after the ENI was deleted creates no second ENI",
        "the old ID, or a refusal",
        source="unknown",
        if_false="the new ENI is attached and used like any other; a dead ID is NotFound, and closes the intent after 60 s",
        played_by="`tests/unit/service/test_operations.py::test_a_creation`",
    ),
)
"""All checks, in the order of the run. The checks of one step are next to each other."""

NOT_PROBED = (
    "order of the checks of capacity and token: needs a full subnet",
    "codes for a full or fragmented subnet: needs a full or fragmented subnet",
    "AttachmentLimitExceeded, with volumes in the slots: needs all slots of the instance",
    "codes for throttling: needs the account's budget, which others share",
    "another ENI at the device index: needs a second ENI",
    "frozen instance metadata: needs many quick changes, and may stay frozen",
    "forced detach: may leave metadata wrong until the instance is stopped",
)
"""Assumptions that the probe does not check, and why."""
