"""Host veths named by pod (docs/adr/0024): the name goes from a sandbox that is not ready to its successor, or the ADD is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment, pod_veth_name, veth_name
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import IpamError, WiringError
from ipamd.model.refusals import RefusalCode
from ipamd.model.sandbox import SandboxState
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.refusing import refused_with

NAME = pod_veth_name("default", "web-0", prefix="eni")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node whose daemon names host veths by pod."""
    made = FakeNode(tmp_path, network=NetworkConfig(pod_veth_names=True))
    made.bring_up()
    yield made
    made.datastore.close()


def request(node: FakeNode, sandbox: str, *, pod: str = "web-0", ifname: str = "eth0") -> AttachRequest:
    """An ADD for a sandbox of a pod."""
    made = node.request(sandbox)
    return replace(made, names=SandboxNames("default", pod, "uid"), key=replace(made.key, ifname=ifname))


def add(node: FakeNode, sandbox: str, *, pod: str = "web-0", ifname: str = "eth0", deadline_s: float = 60.0) -> Attachment:
    """ADD for a sandbox of a pod."""
    deadline = Deadline.after(node.clock, deadline_s)
    return node.attacher.attach_sandbox(
        request(node, sandbox, pod=pod, ifname=ifname), deadline=deadline, steps=StepTimer(node.clock)
    )


def test_the_formula_is_that_of_the_incumbent() -> None:
    """Prefix, and 11 hexadecimal digits of SHA-1 of `namespace.name`; `printf default.web-0 | sha1sum` gives the same."""
    assert NAME == "eni0d7763386da"


def test_off_by_default(tmp_path: Path) -> None:
    """Without the setting the name is the key's."""
    node = FakeNode(tmp_path)
    node.bring_up()
    assert add(node, "a").host_veth == veth_name(node.key("a"), prefix="eni")
    node.datastore.close()


def test_only_the_pods_own_interface_has_its_name(node: FakeNode) -> None:
    """A further interface, and a container without a pod, are named by their key."""
    assert add(node, "a").host_veth == NAME
    second = add(node, "a", ifname="net1")
    assert second.host_veth == veth_name(second.key, prefix="eni")
    assert add(node, "b", pod="").host_veth == veth_name(node.key("b"), prefix="eni")
    assert add(node, "a").host_veth == NAME  # the same ADD again
    node.assert_sound()


def test_a_ready_predecessor_keeps_its_name(node: FakeNode) -> None:
    """The ADD is refused as retryable with a cause; nothing is spent, nothing renamed (I2, I5, I14)."""
    first = add(node, "a")
    node.runtime.run("a")
    counts = node.datastore.counts()
    with refused_with(RefusalCode.NAME_OF_PREDECESSOR, holder=first.key, state="ready") as caught:
        add(node, "b")
    assert caught.value.retryable
    assert node.datastore.counts() == counts
    assert node.datastore.attachments() == (first,)
    assert list(node.wiring.wired) == [NAME]


def test_what_is_not_known_is_not_dead(node: FakeNode) -> None:
    """A predecessor that is not listed (yet), and a silent runtime, keep the name (I11)."""
    add(node, "a")
    with refused_with(RefusalCode.NAME_OF_PREDECESSOR, state="not in the runtime's list"):
        add(node, "b")
    node.runtime.is_down = True
    with refused_with(RefusalCode.NAME_OF_PREDECESSOR):
        add(node, "b")


def test_a_predecessor_that_is_not_ready_gives_its_name(node: FakeNode) -> None:
    """Its link, its record and its stored answer have the name of its key then; its address stays, and its DEL frees it (I2, I4)."""
    first = add(node, "a")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    second = add(node, "b")
    assert second.host_veth == NAME
    moved = node.datastore.attachment(first.key)
    assert moved is not None
    own = veth_name(first.key, prefix="eni")
    assert (moved.host_veth, moved.address) == (own, first.address)
    assert [one["name"] for one in json.loads(moved.result)["interfaces"]] == [own, "eth0"]
    assert {name: spec.address for name, spec in node.wiring.wired.items()} == {own: first.address, NAME: second.address}
    assert node.delete("a")
    assert list(node.wiring.wired) == [NAME]
    node.cool()
    assert list(node.wiring.wired) == [NAME]
    node.assert_sound()


def test_the_name_of_a_link_that_has_gone_is_free(node: FakeNode) -> None:
    """The predecessor's namespace died before its DEL: its late DEL does not touch the successor's link (I2)."""
    first = add(node, "a")
    del node.wiring.wired[NAME], node.wiring.netns[first.netns]
    second = add(node, "b")
    assert second.host_veth == NAME
    assert node.delete("a")
    node.cool()
    assert node.wiring.wired[NAME].address == second.address
    node.assert_sound()


def test_a_link_that_is_being_deleted_is_waited_for(node: FakeNode) -> None:
    """A StatefulSet's next pod comes right after the DEL of the last."""
    add(node, "a")
    node.delete("a")
    assert NAME in node.wiring.dying
    assert add(node, "b").host_veth == NAME
    node.delete("b")
    node.wiring.fail["sweep"] = [WiringError("refused")]
    node.wiring.fail["remove_leftover"] = [WiringError("refused")]
    with pytest.raises(IpamError):
        add(node, "c")
    assert add(node, "c").host_veth == NAME


def test_a_rename_that_was_cut_short_is_finished(node: FakeNode) -> None:
    """The record has the new name and the kernel the old one: the retried ADD renames the link."""
    first = add(node, "a")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    node.wiring.fail["rename_veth"] = [WiringError("killed here")]
    with pytest.raises(WiringError):
        add(node, "b")
    node.crash()
    node.bring_up()
    assert add(node, "b").host_veth == NAME
    own = veth_name(first.key, prefix="eni")
    assert set(node.wiring.wired) == {own, NAME}
    assert node.wiring.wired[own].key == first.key
    node.assert_sound()


def test_a_del_after_a_rename_that_was_refused_finds_the_link(node: FakeNode) -> None:
    """The record has the new name, the kernel refused it: DEL takes the link, and its address is not given before (I1)."""
    add(node, "a")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    node.wiring.fail["rename_veth"] = [WiringError("refused")]
    with pytest.raises(WiringError):
        add(node, "b")
    assert node.delete("a")
    assert node.wiring.wired == {}
    assert node.cooldown.is_dying(NAME)
    node.cool()
    assert add(node, "b").host_veth == NAME
    node.assert_sound()


def test_a_link_that_nobody_owns(node: FakeNode) -> None:
    """That of a deleted sandbox is removed, that of an unknown one is left to the adoption."""
    add(node, "a")
    spec = node.wiring.wired[NAME]
    node.delete("a")
    node.cool()
    node.wiring.wired[NAME] = spec
    assert add(node, "b").host_veth == NAME
    assert node.wiring.wired[NAME].key == node.key("b")
    node.wiring.wired[NAME] = replace(spec, key=node.key("stranger"))
    node.runtime.run("b", state=SandboxState.NOTREADY)
    with refused_with(RefusalCode.NAME_OF_UNRECORDED):
        add(node, "c")


def test_a_del_without_a_row_finds_the_link_by_its_alias(node: FakeNode) -> None:
    """A DEL does not tell the pod's name (I4)."""
    add(node, "a")
    node.wiring.wired["eni-of-x"] = replace(node.wiring.wired[NAME], key=node.key("x"), host_veth="eni-of-x")
    node.delete("x")
    assert list(node.wiring.wired) == [NAME]


def test_two_adds_at_once(node: FakeNode) -> None:
    """One gets the name, the other is refused as retryable; no two links, no leak."""
    begun, go_on = threading.Event(), threading.Event()

    def before(_spec: object) -> None:
        begun.set()
        go_on.wait(10)

    node.wiring.before_wire = before
    outcomes: list[object] = []

    def run() -> None:
        outcomes.append(add(node, "a").host_veth)

    first = threading.Thread(target=run)
    first.start()
    begun.wait(10)
    with pytest.raises(IpamError) as caught:
        add(node, "b", deadline_s=0.0)
    assert caught.value.retryable
    go_on.set()
    first.join(10)
    assert outcomes == [NAME]
    assert list(node.wiring.wired) == [NAME]
    node.assert_sound()
