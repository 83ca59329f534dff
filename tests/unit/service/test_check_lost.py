"""CHECK fails for a sandbox whose address EC2 has taken away, and passes while nothing proves that (I11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CheckFailedError, CloudError
from ipamd.model.pool_settings import PoolSettings
from ipamd.settings import NetworkConfig
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.unit.service.cloud_comparison import OTHER, fill

NODES: dict[str, Callable[[Path], FakeNode]] = {
    "single addresses": FakeNode,
    "prefixes": lambda path: FakeNode(path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1)),
    "IPv6": lambda path: FakeNode(path, network=NetworkConfig(ipv6=True)),
}


def check(node: FakeNode, name: str) -> None:
    """CHECK of a sandbox."""
    node.checker.check_sandbox(node.request(name), deadline=Deadline.after(node.clock, 10.0))


def take_by_hand(node: FakeNode, made: Attachment) -> None:
    """Another hand takes the address of a sandbox, or the prefix that it is in."""
    eni = node.ec2.enis[made.eni_id]
    node.ec2.enis[made.eni_id] = replace(
        eni,
        secondary_addresses=eni.secondary_addresses - {made.address},
        prefixes=frozenset(prefix for prefix in eni.prefixes if made.address not in prefix),
    )


@pytest.mark.parametrize("kind", NODES)
def test_an_address_that_ec2_took_away_fails(tmp_path: Path, kind: str) -> None:
    """One answer proves nothing; two do, until EC2 shows the address again. The error has the address and its ENI."""
    node = NODES[kind](tmp_path)
    node.bring_up()
    made = node.add("a")
    whole = node.ec2.enis[made.eni_id]
    take_by_hand(node, made)
    node.clock.advance(RECENT_S)
    assert node.enis.sync_with_ec2(IDENTITY).missing
    check(node, "a")
    node.look_twice()
    with pytest.raises(CheckFailedError) as refusal:
        check(node, "a")
    error = refusal.value
    assert (error.cni_code, error.address, error.eni_id) == (103, str(made.address), made.eni_id)
    assert str(made.address) in error.lost
    assert "delete the pod" in error.lost
    assert error.lost in str(error)
    node.ec2.enis[made.eni_id] = whole
    node.look_twice()
    check(node, "a")
    node.datastore.close()


def test_an_eni_that_was_detached_fails_all_sandboxes_on_it_and_no_other(node: FakeNode) -> None:
    """Its addresses are lost with it."""
    made = fill(node, 20)
    on_it = [one for one in made if one.eni_id == OTHER]
    others = [one for one in made if one.eni_id != OTHER]
    assert on_it
    node.ec2.detach_eni(f"attach-{OTHER}")
    node.look_twice()
    for one in on_it:
        with pytest.raises(CheckFailedError) as refusal:
            check(node, one.key.container_id)
        assert (refusal.value.address, refusal.value.eni_id, bool(refusal.value.lost)) == (str(one.address), OTHER, True)
    for one in others:
        check(node, one.key.container_id)


def test_silence_fails_nothing(node: FakeNode) -> None:
    """EC2 does not answer for hours, and then not plausibly (I11)."""
    made = fill(node, 3)
    node.ec2.fail["describe_enis"] = [CloudError("EC2 does not answer") for _ in range(100)]
    for _ in range(100):
        node.clock.advance(60)
        node.cloud_reconciler.run_once()
        node.pool.run_once()
    node.ec2.fail.clear()
    for eni_id, eni in list(node.ec2.enis.items()):
        node.ec2.enis[eni_id] = replace(eni, secondary_addresses=frozenset())
    assert node.enis.sync_with_ec2(IDENTITY).implausible
    for one in made:
        check(node, one.key.container_id)


def test_a_difference_of_the_wiring_is_no_lost_address(node: FakeNode) -> None:
    """Who reads the error can tell the two apart."""
    made = node.add("a")
    del node.wiring.wired[made.host_veth]
    with pytest.raises(CheckFailedError) as refusal:
        check(node, "a")
    assert (refusal.value.address, refusal.value.lost) == (str(made.address), "")
