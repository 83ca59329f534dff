"""A network load balancer: one public address, health checks from its own address in the VPC, targets that pass them.

Targets are nodes (at a NodePort) or sandboxes (at their own address: "IP mode"). It speaks to a target as the client, or as itself
("Edit target group attributes for your Network Load Balancer", NLB user guide, client IP preservation: always for instance targets of
TCP unless switched off, and off by default for IP targets). The packets are the router's (internet.py); here is who gets them.
Different from AWS: health checks run when `check` is called, not every ten seconds; there is no fail-open: without a healthy
target nobody answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv6Address

from lab.fabric.internet import Forwarding, Internet
from lab.fabric.talk import ask
from lab.vpc.model import Address

CHECK_TIMEOUT_S = 1.0  # ours, because: longer than a lost ARP answer in the lab, and short where nobody answers

Target = tuple[Address, int]


class LoadBalancer:
    """One load balancer. Concurrency: one thread at a time, and none that changes the Internet meanwhile."""

    def __init__(self, internet: Internet, *, netns_path: str, private: Address) -> None:
        """Take a public address, which in IPv6 is the private one.

        Args:
            netns_path: the namespace of the host in the VPC that stands for it; `private` is that host's address.
        """
        self._internet = internet
        self._netns_path = netns_path
        self._private = private
        self._checks: dict[int, dict[Target, Target]] = {}
        self.public: Address = private if isinstance(private, IPv6Address) else internet.new_public()

    def listen(
        self, port: int, targets: Iterable[Target], *, keeps_client: bool = True, health_port: int | None = None
    ) -> list[Target]:
        """Balance `port` over those of the targets that are healthy now, and return these.

        Args:
            health_port: where to check, by a TCP connection; by default the target's own port.
        """
        self._checks[port] = {target: (target[0], health_port or target[1]) for target in targets}
        self._internet.forward(Forwarding(self.public, port, (), self._private, keeps_client))
        return self.check(port)

    def check(self, port: int) -> list[Target]:
        """Check all targets of a listener once and balance over the healthy ones, which are returned."""
        healthy = [target for target, where in self._checks[port].items() if self._is_healthy(where)]
        self._internet.forward(replace(self._internet.forwarding(self.public, port), targets=tuple(healthy)))
        return healthy

    def _is_healthy(self, where: Target) -> bool:
        heard = ask(self._netns_path, where[0], port=where[1], tcp=True, timeout_s=CHECK_TIMEOUT_S)
        return heard is not None and bool(heard.by)
