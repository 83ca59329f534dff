"""amazon-vpc-cni-k8s #3019 (2024): addresses of running pods were released to EC2 or to other pods.

The reconciler compared its records with instance metadata, and only by length: as many addresses here as there, so all is well; a
different number, so believe the list. A change at EC2 then left metadata stale for a long time. Addresses of running pods were
missing from the list, were force-removed from the records, and were handed to the next pod or released to EC2. Nodes showed two
pods with one address, of which one worked.

Here: metadata is not asked for addresses at all (the port `Metadata` has no such method; I7), and a list, even EC2's own, may
never take an address from a sandbox: `EniService._lose` leaves in use what is in use (I2), behind it the datastore's
constraint. Bound: at the very restart, and still so after an hour (fake).
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.model.errors import InvariantError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import assert_each_its_own, ec2_tells, recorded, run_sandboxes

AN_HOUR_S = 3600


def play(node: FakeNode) -> None:
    """A restart while the list lacks a running sandbox's address and has a released one in its place: equal in length."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(6)])
    eni = node.ec2.enis[PRIMARY]
    stale = replace(eni, secondary_addresses=eni.secondary_addresses - {given["s0"]} | {IPv4Address("10.0.15.1")})
    node.crash()
    with ec2_tells(node.ec2, (node.ec2.enis | {PRIMARY: stale}).values()):
        node.bring_up()
    assert recorded(node) == given, "a running sandbox lost its address"
    later = run_sandboxes(node, "t0", "t1")
    for _ in range(60):
        node.clock.advance(AN_HOUR_S / 60)
        node.pool.cycle()
        node.runtime_reconciler.reconcile_once()
    node.crash()
    node.bring_up()
    assert recorded(node) == given | later
    assert_each_its_own(node)
    assert node.ec2.calls["unassign"] == 0
    node.assert_sound()


def test_a_stale_list_takes_no_address_from_a_sandbox(node: FakeNode) -> None:
    """What a sandbox has stays its own, whatever a list says (I2)."""
    play(node)


def test_a_sandbox_loses_its_address_without_the_rule_of_use(node: FakeNode, mutate: Mutate) -> None:
    """With the rule of amazon-vpc-cni-k8s in its place (not in the list: force-remove) a running sandbox loses its record."""
    mutate("sandboxes-of-absent-addresses-removed")
    with pytest.raises(AssertionError, match="lost its address"):
        play(node)


def test_the_datastore_refuses_what_the_rule_would_let_pass(node: FakeNode, mutate: Mutate) -> None:
    """Were the rule merely forgotten, the second line holds: the start stops with I2 instead of forgetting a sandbox."""
    mutate("absent-addresses-removed")
    with pytest.raises(InvariantError, check=failed(FailureCode.ADDRESSES_IN_USE)):
        play(node)
