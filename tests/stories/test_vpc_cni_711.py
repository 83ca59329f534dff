"""amazon-vpc-cni-k8s #711 (2019): two running pods with one address, after every restart of the daemon.

A cluster with much churn had dozens of addresses that two pods on one node shared. It followed restarts: the new process asked
the Kubernetes API which pods run here, got an answer before the API client's cache had filled ("0 local pods"), took every
address for free and gave a living pod's address to the next one. Names were no better a source: a StatefulSet's pod comes back
under its old name while the old sandbox still runs.

Here: no Kubernetes API anywhere (I12). After a lost datastore the kernel says which address is wired to which sandbox and CRI
that the sandbox is there; both are asked before ADD is served (`StartupReconciler.reconcile_kernel`), and an address that the
kernel has wired is never taken for free (`EniService._admit`; I1, I2). Names decide nothing: key and veth name come from the
sandbox ID (`model/attachment.veth_name`). Bound: new pods wait at most one cooldown (30 s, fake), because what the lost
datastore may just have released cools once more.
"""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from ipamd.model.sandbox import SandboxState
from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import assert_each_its_own, recorded, run_sandboxes


def play(node: FakeNode) -> None:
    """Five sandboxes run, the daemon loses its state and restarts, twenty more pods come at once."""
    old = run_sandboxes(node, *[f"old-{number}" for number in range(5)])
    node.crash(keep_datastore=False)
    began = node.clock.monotonic()
    node.bring_up()
    new = run_sandboxes(node, *[f"new-{number}" for number in range(20)])
    assert_each_its_own(node)
    assert recorded(node) == old | new
    assert node.clock.monotonic() - began <= COOLDOWN_S
    node.assert_sound()


@in_both("node")
def test_no_address_is_given_twice_after_a_restart(node: FakeNode) -> None:
    """What lives keeps its address, what comes gets another one (I1, I2)."""
    play(node)


def test_addresses_are_given_twice_without_the_kernels_word(node: FakeNode, mutate: Mutate) -> None:
    """A source that knows of no pod, as the API was: CRI alone names the sandboxes, nobody their addresses."""
    mutate("kernel-shows-nothing")
    with pytest.raises(AssertionError, match="one address in two sandboxes"):
        play(node)


def play_the_same_name(node: FakeNode) -> None:
    """web-0 is replaced by web-0 while the old sandbox is still going down; then the old one's DEL comes."""
    given: dict[str, IPv4Address] = {}
    for container_id, state in (("web-0.old", SandboxState.NOTREADY), ("web-0.new", SandboxState.READY)):
        given[container_id] = node.add(container_id, pod="web-0").address
        node.runtime.run(container_id, state=state)
    assert_each_its_own(node)
    assert len(node.wiring.wired) == 2, "the new sandbox took the old one's veth away"
    node.delete("web-0.old")
    node.cool()
    assert recorded(node) == {"web-0.new": given["web-0.new"]}
    assert_each_its_own(node)
    assert len(node.wiring.wired) == 1, "the old sandbox's DEL took the new one's veth away"
    node.assert_sound()


@in_both("node")
def test_two_sandboxes_of_one_name_do_not_meet(node: FakeNode) -> None:
    """Same namespace, name and UID, two sandbox IDs: two attachments with two veths (docs/adr/0001)."""
    play_the_same_name(node)


@in_both("node")
def test_two_sandboxes_of_one_name_meet_without_ids_in_the_veths_name(node: FakeNode, mutate: Mutate) -> None:
    """Named after the pod, as amazon-vpc-cni-k8s does, the second sandbox's link takes the first one's place."""
    mutate("veths-named-after-pods")
    with pytest.raises(AssertionError, match="took the old one's veth away"):
        play_the_same_name(node)
