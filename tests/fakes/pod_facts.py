"""A source of pod facts that a test changes, also while an ADD waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable

from ipamd.model.cni_request import AttachRequest
from ipamd.model.ids import ContainerId
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from tests.fakes.clock import FakeClock

SUBNET, SUBNET_6 = "10.0.128.0/17", "2001:db8:9::/64"


def annotation(vlan: int, *, host: int = 0, eni: str = "", **changed: object) -> str:
    """What the controller writes of a branch ENI; `host`: the place of its addresses in their subnets."""
    host = host or 100 + vlan
    entry = {
        "eniId": eni or f"eni-0{vlan:04x}",
        "ifAddress": f"06:00:00:00:{vlan >> 8:02x}:{vlan & 255:02x}",
        "privateIp": f"10.0.129.{host}",
        "ipv6Addr": f"2001:db8:9::{host:x}",
        "vlanId": vlan,
        "subnetCidr": SUBNET,
        "subnetV6Cidr": SUBNET_6,
        "associationID": "trunk-assoc-1",
    }
    return json.dumps([entry | changed])


class FakePodFacts:
    """Implements `PodFactsSource`. `of`: facts by sandbox; all others want no branch ENI.

    `meanwhile` runs in each wait, which takes `step_s` on the fake clock, or less; `tells_later`: whether it can tell anything new.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.of: dict[ContainerId, PodFacts] = {}
        self.asked: list[ContainerId] = []
        self.waits: list[float] = []
        self.step_s = 1.0
        self.tells_later = True
        self.meanwhile: Callable[[], None] = lambda: None
        self.is_closed = False
        self._clock = clock

    def put(
        self, sandbox: str, annotation: str = "", *, requirement: GroupRequirement = GroupRequirement.YES, is_marked: bool = False
    ) -> None:
        """From now on this is known of a sandbox's pod."""
        self.of[ContainerId(sandbox)] = PodFacts(requirement, f"a test says {requirement}", annotation, is_marked)

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """See the port."""
        self.asked.append(request.key.container_id)
        return self.of.get(request.key.container_id, PodFacts(GroupRequirement.NO, "no container limits it"))

    def wait(self, *, timeout_s: float) -> bool:
        """See the port."""
        if self.tells_later:
            self.waits.append(timeout_s)
            self.meanwhile()
            self._clock.advance(min(timeout_s, self.step_s))
        return self.tells_later

    def close(self) -> None:
        """See the port."""
        self.is_closed = True
