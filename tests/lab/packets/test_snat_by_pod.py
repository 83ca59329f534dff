"""An elastic IP on the address of a single pod: whom the outside sees, and what brings the choice back (docs/adr/0082)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import pytest

from ipamd.model.pod_annotations import POD_ANNOTATIONS, SNAT
from ipamd.model.pod_snat import PodSnat
from ipamd.model.refusals import REFUSALS, RefusalCode
from lab.fabric import talk
from lab.fabric.internet import OUTSIDE_HOST
from lab.lab import Lab
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc
from tests.rig import CniReply, Rig, wait_until

pytestmark = pytest.mark.privileged

PODS_OF_FIRST_ENI = 3
SMALL = InstanceLimits((2,), PODS_OF_FIRST_ENI + 1)
OUTSIDE = "outside"


@dataclass
class Place:
    """A node whose pods may choose their SNAT, a host outside the VPC, and a server in every pod."""

    rig: Rig
    servers: talk.Servers
    addresses: dict[str, IPv4Address] = field(default_factory=dict)

    def add(self, name: str, annotations: Mapping[str, str]) -> CniReply:
        """ADD of a pod with annotations, as a runtime hands them over; its address gets an elastic IP."""
        reply = self.rig.add(name, conf={"runtimeConfig": {POD_ANNOTATIONS: dict(annotations)}})
        if reply.ok:
            self.addresses[name] = reply.address
            self.rig.lab.internet.associate(reply.address)
            self.servers.add(name, self.path(name), address=reply.address)
        return reply

    def delete(self, name: str) -> None:
        """DEL of a pod."""
        self.servers.remove(name)
        assert self.rig.delete(name).ok

    def path(self, name: str) -> str:
        """The namespace of a pod."""
        return self.rig.node.netns_path(f"/run/netns/{name}")

    def public(self, name: str) -> IPv4Address:
        """The elastic IP of a pod's own address."""
        return self.rig.lab.internet.associate(self.addresses[name])

    def seen_as(self, name: str, *, tcp: bool = False) -> object:
        """Whom the host outside sees when a pod asks it; None without an answer."""
        heard = talk.ask(self.path(name), OUTSIDE_HOST, tcp=tcp)
        return heard and heard.seen_as

    def reached(self, name: str, *, tcp: bool = False) -> object:
        """Who answers the host outside at the elastic IP of a pod."""
        heard = talk.ask(self.rig.lab.internet.outside.path, self.public(name), tcp=tcp)
        return heard and heard.by

    def is_of_second_eni(self, name: str) -> bool:
        """Whether EC2 has a pod's address on another ENI than the primary one."""
        primary = self.rig.lab.vpc.enis_of(self.rig.node.instance_id)[0].eni_id
        return self.rig.eni_of(self.addresses[name]) not in (None, primary)

    def sets(self) -> str:
        """What nft shows of the node's rules, which may be nothing."""
        return self.rig.node.netns.tool(["nft", "list", "ruleset"])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """The first ENI is full, so every further pod is on the second one."""
    vpc = Vpc(limits={"small": SMALL})
    with Lab(nodes=["node-a"], hosts=[], instance_type="small", containerd=False, vpc=vpc) as lab:
        lab.add_internet()
        env = {"MAX_ENI": "2", "VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES": "default"}
        rig = Rig(lab, lab.node("node-a"), env=env)
        rig.start()
        with talk.Servers() as servers:
            servers.add(OUTSIDE, lab.internet.outside.path, address=OUTSIDE_HOST)
            made = Place(rig, servers)
            for number in range(PODS_OF_FIRST_ENI):
                assert made.add(f"filler-{number}", {}).ok
            yield made
        rig.assert_sound()
        assert lab.fabric.problems == []


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("choice", [None, *PodSnat])
def test_the_choice_decides_whom_the_outside_sees(place: Place, choice: PodSnat | None, tcp: bool) -> None:
    """With `none` the elastic IP of a pod of a secondary ENI works both ways; else the node is seen, and the pod is still reached."""
    pod = f"pod-{choice}-{tcp}"
    assert place.add(pod, {SNAT: choice} if choice else {}).ok
    assert place.is_of_second_eni(pod)
    node = place.rig.lab.internet.associate(place.rig.lab.primary_address("node-a"))
    assert place.seen_as(pod, tcp=tcp) == (place.public(pod) if choice is PodSnat.NONE else node)
    assert place.reached(pod, tcp=tcp) == pod
    place.rig.assert_sound()
    place.delete(pod)
    assert str(place.addresses[pod]) not in place.sets()


@pytest.mark.parametrize("loss", ["flush", "kill", "kill and flush"])
def test_the_choice_comes_back(place: Place, loss: str) -> None:
    """After `nft flush ruleset`, after kill -9 and after both, the pod is seen as itself again without anybody's doing."""
    pod = loss.replace(" ", "-")
    assert place.add(pod, {SNAT: PodSnat.NONE}).ok
    assert place.seen_as(pod) == place.public(pod)
    if "kill" in loss:
        place.rig.kill()
    if "flush" in loss:
        place.rig.node.netns.tool(["nft", "flush", "ruleset"])
    if "kill" in loss:
        place.rig.start()
    wait_until(lambda: f"{{ {place.addresses[pod]} }}" in place.sets(), what="the set has its address again")
    assert place.seen_as(pod) == place.public(pod)
    place.delete(pod)
    assert str(place.addresses[pod]) not in place.sets()


def test_a_refused_annotation_gets_nothing(place: Place) -> None:
    """The runtime sees the sentence of the refusal, and no address is taken."""
    before = place.rig.attachments()
    reply = place.add("wrong", {SNAT: "perhaps"})
    assert (reply.ok, reply.code) == (False, REFUSALS[RefusalCode.SNAT_VALUE_UNKNOWN].error.cni_code)
    assert place.rig.attachments() == before
    place.rig.node.remove_netns("wrong")
