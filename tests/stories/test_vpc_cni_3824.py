"""amazon-vpc-cni-k8s #3824 (2026, open): the prefix of running pods was unassigned at EC2.

In prefix mode a /28 came and went in instance metadata. Its addresses were added to the daemon's records and dropped again for
46 hours without an error; at a restore the pods on it were declared dead because their address was not recorded, and the
record that could have told otherwise was overwritten in the same pass (their pull requests 3825, 3876 and 3877 describe the
three halves). The prefix then looked empty and was released. The pods kept veth, route and rule, and lost every packet.

Here: that an address is not recorded says nothing about its sandbox. A wired sandbox stays, whatever the list lacks
(`StartupReconciler`, `QuarantineService`), and when its address turns up the kernel's word makes it quarantined, not free
(`EniService._admit`; I1, I2), until kernel and runtime agree and the record is made again. Bound: at the first list of the
runtime after the address turned up, that is 10 s (fake); and still so after 46 hours.

A restart in between makes it no worse. Such a sandbox has no row though the new datastore is whole; a start that took "no row" for "no
ADD was answered" would remove its veth as soon as the runtime is slow to answer. Only an address that is recorded and unowned was
being given when an ADD died (`sandbox/judge.py: _record_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.errors import CloudError
from ipamd.model.pool_settings import PoolSettings
from ipamd.sandbox.runtime import RELIST_WITHOUT_EVENTS_S
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import assert_each_its_own, ec2_tells, recorded, run_sandboxes

HOURS = 46


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node in prefix mode with one spare /28."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    made.bring_up()
    yield made
    made.datastore.close()


def play(node: FakeNode) -> None:
    """Datastore lost, and the first answer lacks a /28 with four sandboxes; the pool then finds that /28 by reading back."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(20)])
    eni = node.ec2.enis[PRIMARY]
    used = {prefix for prefix in eni.prefixes if any(address in prefix for address in given.values())}
    missing = next(prefix for prefix in used if given["s19"] in prefix)
    node.crash(keep_datastore=False)
    node.ec2.lose["assign_prefixes"] = [CloudError("connection reset")]
    stale = replace(eni, prefixes=frozenset(used - {missing}))
    with ec2_tells(node.ec2, [stale]):
        node.bring_up()
    node.clock.advance(2)
    node.pool.cycle()  # the lost answer is read back: what EC2 shows on the ENI now, the missing /28 included
    node.cool()  # what only a Describe shows after a lost datastore is given to nobody for a while; after that, to whom?
    new = {f"t{number}": node.add(f"t{number}").address for number in range(14)}
    assert_each_its_own(node)
    for name in new:
        node.runtime.run(name)
    node.clock.advance(RELIST_WITHOUT_EVENTS_S)
    node.runtime_reconciler.reconcile_once()
    assert recorded(node) == given | new, "running sandboxes have no record"
    for _ in range(HOURS):
        node.clock.advance(3600)
        node.pool.cycle()
        node.runtime_reconciler.reconcile_once()
    assert recorded(node) == given | new
    assert used <= node.ec2.enis[PRIMARY].prefixes, "what the sandboxes have was unassigned"
    node.assert_sound()


def test_a_prefix_in_use_is_never_taken_for_empty(node: FakeNode) -> None:
    """Sandboxes whose prefix was not recorded keep it, and get their record back (I1, I2)."""
    play(node)


def test_a_prefix_in_use_is_taken_for_free_without_the_kernels_word(node: FakeNode, mutate: Mutate) -> None:
    """If what turns up were simply free, the next pods would get the addresses of running ones."""
    mutate("wired-addresses-not-known")
    with pytest.raises(AssertionError, match="one address in two sandboxes"):
        play(node)


def play_restart(node: FakeNode) -> None:
    """Datastore lost, the answer lacks a /28 in use for good, and then the daemon restarts while the runtime is silent."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(20)])
    eni = node.ec2.enis[PRIMARY]
    missing = next(prefix for prefix in eni.prefixes if given["s19"] in prefix)
    wired = set(node.wiring.wired)
    with ec2_tells(node.ec2, [replace(eni, prefixes=eni.prefixes - {missing})]):
        node.crash(keep_datastore=False)
        node.bring_up()
        node.runtime.is_down = True
        for _ in range(3):
            node.crash()
            node.bring_up()
            assert set(node.wiring.wired) >= wired, "a running sandbox lost its network"
        assert any("unrecorded sandboxes" in sentence for sentence in node.health.conditions())
        node.runtime.is_down = False
        node.runtime_reconciler.reconcile_once()
    node.enis.sync_with_ec2(node.metadata.told)
    node.clock.advance(RELIST_WITHOUT_EVENTS_S)
    node.runtime_reconciler.reconcile_once()
    assert recorded(node) == given
    assert not any("unrecorded sandboxes" in sentence for sentence in node.health.conditions())
    assert_each_its_own(node)
    node.assert_sound()


def test_a_sandbox_without_a_row_survives_restarts_with_a_silent_runtime(node: FakeNode) -> None:
    """Nothing of it is removed while EC2 does not show its address, and it is recorded once EC2 does (I2, I11)."""
    play_restart(node)


def test_it_loses_its_network_when_no_row_means_no_promise(node: FakeNode, mutate: Mutate) -> None:
    """With every veth without a row taken for the remainder of an ADD, the second start removes it."""
    mutate("rowless-links-removed-unless-quarantined")
    with pytest.raises(AssertionError, match="lost its network"):
        play_restart(node)
