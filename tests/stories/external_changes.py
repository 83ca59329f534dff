"""What another person's hands do to a fake node's ENIs, and time that passes for every loop that keeps it."""

from __future__ import annotations

from dataclasses import replace

from ipamd.eni.external_changes import TURN_JITTER, TURN_S
from ipamd.model.cloud import DescribedEni
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import LinkEvent, LinkEventKind
from tests.fakes.node import FakeNode

TURN_MAX_S = TURN_S * (1 + TURN_JITTER)
"""Longest time between two turns of metadata."""


def pass_time(node: FakeNode, seconds: float) -> None:
    """The clock goes on; every loop does what is due."""
    node.clock.advance(seconds)
    node.cloud_reconciler.run_once()
    node.pool.run_once()
    node.host_reconciler.reconcile()
    node.cloud_reconciler.run_once()


def settle(node: FakeNode) -> None:
    """Until our own changes are no news any more and metadata was read completely."""
    for _ in range(8):
        pass_time(node, TURN_MAX_S)


def described(node: FakeNode) -> int:
    """How often all ENIs were described so far."""
    return node.ec2.calls["describe_enis"]


def detach_by_hand(node: FakeNode, eni_id: EniId) -> DescribedEni:
    """What an operator does in the console; the hypervisor takes the link away. Returns the ENI as it was."""
    before = node.ec2.enis[eni_id]
    node.ec2.enis[eni_id] = replace(
        before, status="available", attachment_id="", attachment_status="", instance_id="", device_index=-1
    )
    return before


def link_event(node: FakeNode, mac: str, kind: LinkEventKind = LinkEventKind.GONE) -> None:
    """The kernel's notification, as the thread `links` gets it."""
    node.cloud_reconciler.links.on_event(LinkEvent(kind, MacAddress(mac)))
