"""Pods with branch ENIs in the randomised graph: the control plane that names the ENIs late, who tells of pods and is silent at times,
and a policy agent that remembers names, forgets them, and is away. All of it outlives the daemon's lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from random import Random

from ipamd.model.attachment import pod_veth_name
from ipamd.model.cloud import DescribedEni
from ipamd.model.cni_request import AttachRequest
from ipamd.model.eni_tags import INSTANCE_TAG
from ipamd.model.errors import PolicyAgentRefusedError, PolicyAgentSilentError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.ids import EniId, MacAddress, PodName
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from tests.fakes.cloud import INSTANCE, SUBNET
from tests.fakes.kernel import TRUNK, FakeWiring
from tests.fakes.pod_facts import annotation
from tests.property.graph.ec2 import RoughEc2
from tests.property.graph.world import World

TRUNK_ID = EniId("eni-0000000000000000f")
COOLING_S = 60.0
"""The controller's. Source: amazon-vpc-resource-controller-k8s pkg/provider/branch/cooldown."""

HIGHEST_VLAN = 12
"""Of this trunk: few, so that IDs are soon used again and the trunk is full at times. A real one has up to 120."""


@dataclass
class Workload:
    """A pod as the API server has it. `given`: its branch ENI, and `text` the annotation, once the controller has written it."""

    name: str
    wants_branch: bool
    text: str = ""
    given: tuple[int, IpAddress, EniId] | None = None
    is_gone: bool = False
    is_forged: bool = False


class Controller:
    """amazon-vpc-resource-controller-k8s: names branch ENIs after a while, lowest ID first, and lets them cool."""

    def __init__(self, world: World, ec2: RoughEc2, *, seed: int, family: Family) -> None:
        self._world, self._ec2, self._family = world, ec2, family
        self._random = Random(f"controller/{seed}")
        self._used: set[int] = set()
        self._made = 0
        place = ec2.limits.eni_count - 1
        ec2.enis[TRUNK_ID] = DescribedEni(
            TRUNK_ID, TRUNK, SUBNET, IPv4Address("10.0.15.250"),
            status="in-use", interface_type="trunk", description="trunk-eni", tags={INSTANCE_TAG: INSTANCE},
            attachment_id="attach-trunk", attachment_status="attached", instance_id=INSTANCE, device_index=place,
            delete_on_termination=True, has_ipv6=family.is_sparse,
        )  # fmt: skip

    def bind(self, workload: Workload) -> None:
        """Name the branch ENI of a pod, after some seconds."""
        self._in(self._random.choice((0.1, 1.0, 3.0, 8.0, 40.0)), lambda: self._name(workload))

    def _name(self, workload: Workload) -> None:
        free = sorted(set(range(1, HIGHEST_VLAN + 1)) - self._used)
        if workload.is_gone:
            return
        if not free:  # full: one that cools is due within its cooldown
            self._in(5.0, lambda: self._name(workload))
            return
        self._made += 1
        vlan, host = free[0], 256 + self._made
        eni, mac = EniId(f"eni-0b{self._made:06x}"), MacAddress(f"06:00:00:00:{self._made >> 8:02x}:{self._made & 255:02x}")
        address, address6 = IPv4Address("10.0.128.0") + host, IPv6Address("2001:db8:9::") + host
        self._used.add(vlan)
        workload.given = (vlan, address if self._family is IPV4 else address6, eni)
        self._ec2.enis[eni] = DescribedEni(
            eni, mac, SUBNET, address, status="in-use", interface_type="branch", description="branch-eni",
            tags={VLAN_TAG: str(vlan), TRUNK_TAG: TRUNK_ID}, ipv6_addresses=frozenset((address6,)),
        )  # fmt: skip
        workload.text = annotation(vlan, eni=eni, ifAddress=mac, privateIp=str(address), ipv6Addr=str(address6))

    def release(self, workload: Workload) -> None:
        """The pod is gone: its branch ENI cools, and its ID is free afterwards."""
        workload.is_gone = True
        if workload.given is not None and not workload.is_forged:
            vlan, _, eni = workload.given
            self._in(COOLING_S, lambda: (self._ec2.enis.pop(eni, None), self._used.discard(vlan)))

    def _in(self, seconds: float, do: Callable[[], object]) -> None:
        self._world.at(self._world.monotonic() + seconds, do)


class RoughPodFacts:
    """Implements `PodFactsSource`: kubelet, or the annotations of a sandbox's beginning, which never change."""

    def __init__(self, world: World, *, is_kubelet: bool) -> None:
        self._world, self._is_kubelet = world, is_kubelet
        self.is_silent = False
        self.workloads: dict[str, Workload] = {}
        """By sandbox."""
        self.began: dict[str, str] = {}
        """The annotation with which a sandbox was begun."""

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """See the port."""
        name = str(request.key.container_id)
        self._world.sleep(min(timeout_s, 0.01))
        if self.is_silent:
            return PodFacts(GroupRequirement.UNKNOWN, "nobody tells")
        workload = self.workloads.get(name)
        if workload is None or not workload.wants_branch:
            return PodFacts(GroupRequirement.NO, "no container limits it", is_marked=not self._is_kubelet)
        text = workload.text if self._is_kubelet else self.began[name]
        return PodFacts(GroupRequirement.YES, "a container limits it", text, is_marked=not self._is_kubelet)

    def wait(self, *, timeout_s: float) -> bool:
        """See the port."""
        if self._is_kubelet:
            self._world.sleep(min(timeout_s, 0.5))
        return self._is_kubelet

    def close(self) -> None:
        """See the port."""


@dataclass
class RoughAgent:
    """Implements `PolicyAgent`: remembers names, and hangs a filter on the link that has the name's hash.

    `filtered`: sandboxes with a filter that it keeps up to date.
    """

    world: World
    wiring: FakeWiring
    is_silent: bool = False
    is_cross: bool = False
    known: set[PodName] = field(default_factory=set)
    filtered: set[str] = field(default_factory=set)

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float, interface_count: int = 1) -> None:  # one of each here
        """See the port."""
        self._take(timeout_s)
        if pod not in self.known:
            self.known.add(pod)
            self.filtered |= self._owners(pod)

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """See the port."""
        self._take(timeout_s)
        if pod in self.known:
            self.known.discard(pod)
            self.filtered -= self._owners(pod)

    def _owners(self, pod: PodName) -> set[str]:
        names = {pod_veth_name(pod.namespace, pod.pod, prefix=prefix) for prefix in ("eni", STRICT_VETH_PREFIX)}
        return {str(self.wiring.wired[name].key.container_id) for name in names & self.wiring.wired.keys()}

    def _take(self, timeout_s: float) -> None:
        if self.is_silent:
            self.world.sleep(timeout_s)
            raise PolicyAgentSilentError("the network policy agent does not answer")
        self.world.sleep(min(timeout_s, 0.02))
        if self.is_cross:
            raise PolicyAgentRefusedError("the network policy agent refused")

    def close(self) -> None:
        """See the port."""
