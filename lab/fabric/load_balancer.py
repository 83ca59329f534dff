"""A network load balancer: it has one public address, checks targets from its own address in the VPC, and forwards to healthy ones.

Targets are nodes (at a NodePort) or sandboxes (at their own address: "IP mode"). A target sees the client's address or the load
balancer's own ("Edit target group attributes for your Network Load Balancer", NLB user guide: client IP preservation is on by default
for instance targets of TCP, and off by default for IP targets). This module chooses the targets; the router forwards the packets
(internet.py). Different from AWS, health checks run when `check` is called, and not every ten seconds. If no target is healthy, nobody
answers, whereas AWS would use all targets ("fail-open").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv6Address

from lab.fabric.internet import Forwarding, Internet
from lab.fabric.talk import ask
from lab.vpc.model import Address

CHECK_TIMEOUT_S = 1.0  # ours: a lost ARP answer costs 0.1 s (port.py), so a target that is silent for 1 s is not healthy

Target = tuple[Address, int]


class LoadBalancer:
    """One load balancer. Concurrency: one thread at a time, while no other thread changes the `Internet`."""

    def __init__(self, internet: Internet, *, netns_path: str, private: Address) -> None:
        """Take a public address. In IPv6 it is the private address.

        Args:
            netns_path: the namespace of the VPC's host that is the load balancer; it sends the health checks.
            private: the address of that host.
        """
        self._internet = internet
        self._netns_path = netns_path
        self._private = private
        self._checks: dict[int, dict[Target, Target]] = {}
        self.public: Address = private if isinstance(private, IPv6Address) else internet.new_public()

    def listen(
        self, port: int, targets: Iterable[Target], *, keeps_client: bool = True, health_port: int | None = None
    ) -> list[Target]:
        """Forward `port` to those of the targets that are healthy now, and return these.

        Args:
            keeps_client: whether targets see the client's address.
            health_port: the port of the health check, which is a TCP connection; by default the target's own port.
        """
        self._checks[port] = {target: (target[0], health_port or target[1]) for target in targets}
        self._internet.forward(Forwarding(self.public, port, (), self._private, keeps_client))
        return self.check(port)

    def check(self, port: int) -> list[Target]:
        """Check all targets of a listener once, forward to the healthy ones, and return these."""
        healthy = [target for target, where in self._checks[port].items() if self._is_healthy(where)]
        self._internet.forward(replace(self._internet.forwarding(self.public, port), targets=tuple(healthy)))
        return healthy

    def _is_healthy(self, where: Target) -> bool:
        answer = ask(self._netns_path, where[0], port=where[1], tcp=True, timeout_s=CHECK_TIMEOUT_S)
        return answer is not None and bool(answer.by)
