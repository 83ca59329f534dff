"""After the last event and fault: every node agrees with EC2 again, everybody not hit by other hands has network, nothing is lost.

Checked while sandboxes still run, because their removal and the last restart would hide what the daemon did not notice by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any

from lab.chaos.book import MASS_LOSS_S, is_most, notice_s
from lab.chaos.expected_state import ExpectedState, Violation
from lab.chaos.hands import pool_of
from lab.chaos.history import History
from lab.chaos.node import ADDRESSES_PER_ENI, ChaosNode
from lab.chaos.tolerances import REPAIR_S
from lab.lab import Lab
from lab.vpc.family import FAMILIES, IPV6
from lab.vpc.family import pool_of as pool_networks
from lab.vpc.hands import NO_MANAGE
from lab.vpc.model import Eni

READY_TIMEOUT_S = 60.0
HEAL_S = 120.0
"""A background look at metadata, at most 60 s away; a second look after 30 s; what that leads to, 30 s. More with many ENIs."""

PING_S = REPAIR_S + 5.0
"""A route that chaos took a moment before the end is put back at the next repair."""

POLL_S = 1.0
_UNUSED_TYPES = ("efa-only", "trunk", "branch")


class Healing:
    """The checks between the last event and the removal of all sandboxes. Used by one thread."""

    def __init__(
        self,
        lab: Lab,
        *,
        nodes: Sequence[ChaosNode],
        host: str,
        expected: ExpectedState,
        history: History,
        unplaced: Collection[str] = (),
    ) -> None:
        """`unplaced`: sandboxes whose ENI nothing tells, as the checker finds them."""
        self._lab = lab
        self._unplaced = unplaced
        self._nodes = nodes
        self._host = host
        self._expected = expected
        self._history = history

    def demand(self) -> None:
        """Demand all of it; what one node may need is for all nodes together."""
        for node in self._nodes:
            node.queue(lambda: None).result()
            if not node.wait_ready(READY_TIMEOUT_S):
                self._tell("ready", node.name, f"not ready within {READY_TIMEOUT_S:.0f} s: {node.daemon.status()}")
                return
        began_s = time.monotonic()
        patience_s = {node.name: self.patience_s(node) for node in self._nodes}
        for node in self._nodes:
            if not _wait(lambda node=node: not self.difference(node), began_s + patience_s[node.name]):  # type: ignore[misc]
                self._tell("heal", node.name, f"{patience_s[node.name]:.0f} s after the last fault: {self.difference(node)}")
        if not _wait(lambda: not self.silent(), time.monotonic() + PING_S):
            self._tell("heal", "all nodes", f"sandboxes that nobody hit do not answer: {self.silent()}")
        self._demand_foreign_untouched()

    def patience_s(self, node: ChaosNode) -> float:
        """How long from now a node may take to agree with EC2 after the last deed of other hands."""
        agreed_s = (at_s for (name, _), at_s in self._expected.book.takes().agreed_s.items() if name == node.name)
        left_s = max(agreed_s, default=0.0) - self._history.now()
        noticed_s = max(HEAL_S, notice_s(len(self._lab.vpc.enis_of(node.lab_node.instance_id))), left_s)
        return noticed_s + (MASS_LOSS_S if self._is_mass_loss(node) else 0.0)

    def _is_mass_loss(self, node: ChaosNode) -> bool:
        """Whether EC2 has less than half of the ENIs that the daemon knows, or of the addresses of the node's sandboxes: as we know
        them, or as the daemon does, to whom a sandbox counts until its DEL; or of those that sandboxes had when hands took something
        last: what our own calls have added since is not missed for minutes, and so counts for nobody."""
        enis = self._lab.vpc.enis_of(node.lab_node.instance_id)
        pools = [network for eni in enis for network in pool_networks(eni, node.daemon.family)]
        living = self._expected.wanted(node.name)
        wanted = {record.address for record in living if not record.vlan}  # a branch ENI's address is no pool's
        answer = node.daemon.ask(lambda client: client.ask("ListEnis")) or {}
        known = {eni["eni_id"] for eni in answer.get("enis", [])}
        held = set((node.daemon.rows() or {}).values()) - {record.address for record in living if record.vlan}
        taken_at_s = [at_s for (name, _), at_s in self._expected.book.takes().since_s.items() if name == node.name]
        before = {one.address for one in living if not one.vlan and one.created_at_s <= max(taken_at_s, default=0.0)}
        lacking = (
            (known - {eni.eni_id for eni in enis}, known),
            *(([one for one in of if not any(ip_address(one) in pool for pool in pools)], of) for of in (wanted, held, before)),
        )
        return any(is_most(gone, of) for gone, of in lacking)

    def difference(self, node: ChaosNode) -> str:
        """Say how EC2 and the daemon differ about a node's addresses; "" if they do not."""
        if node.daemon.family is IPV6:
            return prefix_difference(self._lab, node)
        status = node.daemon.status()
        if status is None:
            return "the daemon does not answer"
        pool: Mapping[str, Any] = status["pool"]
        known = int(pool["total_count"]) - int(pool.get("lost_count", 0))
        there = address_count(self._lab.vpc.enis_of(node.lab_node.instance_id), lost=lost_by_eni(node))
        return "" if known == there else f"EC2 has {there} addresses for this node's sandboxes, the daemon knows {known}"

    def silent(self) -> list[str]:
        """Living sandboxes whose address EC2 has on their node, and that do not answer."""
        takes = self._expected.book.takes()
        living = {
            record.address: f"{record.node}/{record.pod} {record.address}"
            for node in self._nodes
            for record in self._expected.wanted(node.name)
            if not (takes.hit(record.node, record.address, record.created_at_s) or record.is_mistold)
            and record.sandbox_id not in self._unplaced
        }
        answers = self._lab.ping(source=self._host, targets=living, timeout_s=POLL_S) if living else {}
        return sorted(living[str(address)] for address, answered in answers.items() if not answered)

    def _demand_foreign_untouched(self) -> None:
        world = self._lab.vpc.world
        for eni_id, node in self._expected.book.foreign().items():
            eni = world.enis.get(eni_id)
            if eni is None or eni.attachment is None:
                self._tell("foreign", node, f"{eni_id} of somebody else is {'gone' if eni is None else 'detached'}")
            elif not is_for_sandboxes(eni) and any(pool_of(eni, family) for family in FAMILIES):
                self._tell("foreign", node, f"{eni_id} ({eni.interface_type}) is not ours to use, and was given {pool_of(eni)}")

    def _tell(self, invariant: str, subject: str, what: str) -> None:
        self._history.violate(Violation(invariant, self._history.now(), subject, what))


def is_for_sandboxes(eni: Eni) -> bool:
    """Whether the daemon may use an ENI's addresses: not of special kinds, and not tagged as unmanaged."""
    return eni.interface_type not in _UNUSED_TYPES and not NO_MANAGE.items() <= eni.tags.items()


def prefix_difference(lab: Lab, node: ChaosNode) -> str:
    """Say how EC2 and a daemon of IPv6 differ; "" if it knows a /80 that the primary ENI has. It may know of one that is lost."""
    answer = node.daemon.ask(lambda client: client.ask("ListEnis"))
    if answer is None:
        return "the daemon does not answer"
    known = {prefix for eni in answer["enis"] for prefix in eni["prefixes"]}
    first, *_ = lab.vpc.enis_of(node.lab_node.instance_id)
    there = set(pool_of(first, IPV6))
    if not there and len(first.ipv6_addresses) >= ADDRESSES_PER_ENI:
        # Other hands filled the ENI and took the /80s: nobody can have one, and the daemon has to say so.
        refused = f"{first.eni_id} takes no /80"
        said = node.daemon.status()
        return "" if refused in str(said) else f"nothing tells that {refused}: {said}"
    return "" if known & there else f"EC2 has {sorted(there)} on the primary ENI, the daemon knows {sorted(known)}"


def address_count(enis: Sequence[Eni], *, lost: Mapping[str, Sequence[IPv4Address]] | None = None) -> int:
    """Count the addresses for sandboxes on a node's ENIs.

    `lost`: by the ENI on which the daemon has them, addresses that EC2 took and that sandboxes still have. One that EC2 has given to
    another ENI, with the rest of its prefix, is not the daemon's to record there before its sandbox is gone.
    """
    return sum(len(pool_of(eni)) - _waiting_count(eni, lost or {}) for eni in enis if is_for_sandboxes(eni))


def lost_by_eni(node: ChaosNode) -> dict[str, list[IPv4Address]]:
    """The lost addresses that sandboxes of a node still have for the daemon, by the ENI on which it has them."""
    answer = node.daemon.ask(lambda client: client.ask("ListAttachments")) or {}
    found: dict[str, list[IPv4Address]] = {}
    for row in answer.get("attachments", ()):
        if row["lost_since"]:
            found.setdefault(row["eni_id"], []).append(IPv4Address(row["address"]))
    return found


def _waiting_count(eni: Eni, lost: Mapping[str, Sequence[IPv4Address]]) -> int:
    elsewhere = {address for eni_id, addresses in lost.items() if eni_id != eni.eni_id for address in addresses}
    prefixes = [prefix for prefix in eni.prefixes if any(address in prefix for address in elsewhere)]
    return sum(prefix.num_addresses for prefix in prefixes) + len(elsewhere & set(eni.secondary_addresses))


def _wait(claim: Callable[[], bool], deadline: float) -> bool:
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
