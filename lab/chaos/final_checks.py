"""The end of a run: undo every fault, remove every sandbox, then demand that nothing is left in kernel, datastore or EC2."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

from lab.chaos.book import RECENT_S, HandsBook, notice_s
from lab.chaos.expected_state import Violation
from lab.chaos.healing import HEAL_S, address_count, prefix_difference
from lab.chaos.history import History
from lab.chaos.kubelet import Kubelet
from lab.chaos.node import ChaosNode
from lab.chaos.observer import OURS
from lab.chaos.plan import COOLDOWN_S
from lab.lab import Lab
from lab.node.kernel_view import VETH_PREFIX, has_nft_tables, read_kernel
from lab.vpc.family import IPV6

READY_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 100.0
"""Ours: above the longest pause of the pool after an error, 60 s (ipamd/pool/maintainer.py), and above a turn of metadata, 60 to 75 s
after a start that EC2 told late (ipamd/eni/external_changes.py)."""

UNKNOWN_ENI = "unknown to the datastore"
"""The audit's words (ipamd/report/audit.py) for an ENI that is neither recorded nor covered by an open intent."""

REMOVE_TIMEOUT_S = 180.0
ROWS_TIMEOUT_S = 15.0
LISTS_S = 25.0
"""Above two CRI lists, 10 s apart: what the reaper needs first (ipamd/sandbox/runtime.py)."""

LATER_S = 3 * 3600.0
"""How much time passes for the daemon, on both clocks, so that orphans are reaped: beyond the hour of a leaked namespace."""

REAP_TIMEOUT_S = 60.0
REUSABLE_MARGIN_S = 10.0
REPAIR_TIMEOUT_S = 50.0
FORGOTTEN_S = 60.0
"""Ours: a turn of maintenance every 5 s, and pauses of at most 30 s after an agent that was away (ipamd/policy/hook.py)."""

QUIET_S = 10.0
"""Longer than the pauses between two ENIs that are released, and than a call takes."""

GIVEN_BACK_S = 120.0
"""Ours: 14 ENIs in excess, each some 3.5 s, after the hold of a chaos run (3 s) and the pause after a throttled call."""


class FinalChecks:
    """The checks after the last event. Used by one thread."""

    def __init__(
        self, lab: Lab, *, nodes: Sequence[ChaosNode], kubelets: Sequence[Kubelet], book: HandsBook, history: History
    ) -> None:
        self._lab = lab
        self._book = book
        self._nodes = nodes
        self._kubelets = kubelets
        self._history = history

    def calm(self) -> None:
        """Restart each daemon once more, unarmed, and remove every sandbox, while the observer still looks.

        Unknown ENIs are looked for before the restart, which would hide them.
        """
        for node in self._nodes:
            node.queue(lambda: None).result()  # what was queued is done
            if node.agent is not None:
                node.agent.calm()
            if node.wait_ready(READY_TIMEOUT_S):
                self._demand_known_enis(node)
        for future in [node.queue(lambda node=node: node.kill_daemon(down_s=0)) for node in self._nodes]:  # type: ignore[misc]
            future.result()
        for node in self._nodes:
            if not node.wait_ready(READY_TIMEOUT_S):
                self._tell("ready", node, f"not ready within {READY_TIMEOUT_S:.0f} s: {node.daemon.status()}")
        for kubelet, node in zip(self._kubelets, self._nodes, strict=True):
            if not kubelet.remove_all(REMOVE_TIMEOUT_S):
                self._tell("I3", node, f"the runtime could not remove every sandbox in {REMOVE_TIMEOUT_S:.0f} s")

    def audit(self) -> dict[str, Any]:
        """Demand that nothing is left. Returns: figures for the report."""
        facts: dict[str, Any] = {}
        for node in self._nodes:
            facts[node.name] = {"reaped orphans": self._end_orphans(node)}
            began = time.monotonic()
            self._demand_reusable(node)
            facts[node.name]["all addresses free after s"] = round(time.monotonic() - began, 1)
        self._demand_quiet()
        for node in self._nodes:
            self._demand_clean_kernel(node)
            self._demand_no_findings(node)
            self._demand_same_as_ec2(node)
            self._demand_forgotten(node)
        for problem in (*self._lab.fabric.problems, *map(repr, self._lab.vpc.listener_errors)):
            self._history.say(f"the lab itself is not sound: {problem}", counted="lab error")
        return facts

    def _demand_known_enis(self, node: ChaosNode) -> None:
        """No ENI hangs on the node that the daemon neither knows nor has an open intent for (I9)."""
        unknown: list[str] = []

        def is_known() -> bool:
            answer = node.daemon.ask(lambda client: client.ask("Audit"))
            found = answer["findings"] if answer is not None else []
            unknown[:] = [one["subject"] for one in found if UNKNOWN_ENI in one["text"]]
            return answer is not None and not unknown

        if not self._wait(is_known, SETTLE_TIMEOUT_S):
            self._tell("I9", node, f"ENIs that the daemon made and lost seen of, before a restart: {unknown}")

    def _end_orphans(self, node: ChaosNode) -> int:
        """Demand no row without a sandbox, except of sandboxes that died with the runtime: those must be reaped when old enough."""
        if self._wait(lambda: not node.daemon.rows(), ROWS_TIMEOUT_S):
            return 0
        orphans = node.daemon.rows() or {}
        if not node.state().runtime_killed_at:
            self._tell("I3", node, f"{len(orphans)} rows are left, and every sandbox was removed: {orphans}")
            return 0
        time.sleep(LISTS_S)
        node.pass_time(LATER_S)
        if not self._wait(lambda: not node.daemon.rows(), REAP_TIMEOUT_S):
            told = [node.daemon.ask(methodcaller("ask", "Explain", subject=one)) for one in (node.daemon.rows() or {})]
            self._tell("I3", node, f"orphans were not reaped: {told}")
        return len(orphans)

    def _demand_reusable(self, node: ChaosNode) -> None:
        """Every address is free again, at most a cooldown after the last removal."""

        def is_free() -> bool:
            status = node.daemon.status()
            if status is None:
                return False
            pool = status["pool"]
            return int(pool["free_count"]) == int(pool["total_count"]) and int(status["veths_pending_deletion_count"]) == 0

        if not self._wait(is_free, COOLDOWN_S + REUSABLE_MARGIN_S):
            status = node.daemon.status() or {}
            if int(status.get("pool", {}).get("quarantined_count", 0)) and self._end_quarantine(node, is_free):
                return
            self._tell("I8", node, f"not every address is free again: {status.get('pool')}; degraded {status.get('degraded')}")

    def _end_quarantine(self, node: ChaosNode, is_free: Callable[[], bool]) -> bool:
        """Quarantined addresses of orphans are reaped by the same rule (docs/adr/0010-quarantine-after-a-lost-datastore.md)."""
        if not node.state().runtime_killed_at:
            return False
        time.sleep(LISTS_S)
        node.pass_time(2 * LATER_S)
        return self._wait(is_free, REAP_TIMEOUT_S)

    def _demand_clean_kernel(self, node: ChaosNode) -> None:
        def leftovers() -> list[str]:
            kernel = read_kernel(node.lab_node)
            routes = [address for address, device in kernel.host_routes.items() if device.startswith(VETH_PREFIX)]
            veths = (*kernel.veths, *kernel.egress_veths, *kernel.branch_veths)
            links = [*(veth.name for veth in veths), *(vlan.name for vlan in kernel.vlans)]
            return [*links, *routes, *kernel.to_rules, *kernel.from_rules]

        if not self._wait(lambda: not leftovers(), 5.0):
            self._tell("I4", node, f"left in the kernel: {leftovers()}")
        if not self._wait(lambda: has_nft_tables(node.lab_node, node.daemon.family, node.daemon.egress), REPAIR_TIMEOUT_S):
            self._tell("repair", node, "one of its nftables tables is missing")

    def _demand_forgotten(self, node: ChaosNode) -> None:
        """The policy agent remembers nobody: of a name that it keeps a second sandbox would run unfiltered."""
        agent = node.agent
        if agent is not None and not self._wait(lambda: not agent.names(), FORGOTTEN_S):
            self._tell("I21", node, f"the policy agent remembers names that nobody has: {sorted(agent.names())}")

    def _demand_no_findings(self, node: ChaosNode) -> None:
        """What other hands did a moment before the end is a difference until the daemon has looked twice."""

        def findings() -> list[Any]:
            answer = node.daemon.ask(lambda client: client.ask("Audit")) or {
                "findings": [{"severity": "violation", "text": "no answer"}]
            }
            return [found for found in answer["findings"] if found["severity"] != "pending"]

        if not self._wait(lambda: not findings(), HEAL_S, every_s=5.0):
            self._tell("audit", node, f"the daemon's own audit finds: {findings()}")

    def _demand_same_as_ec2(self, node: ChaosNode) -> None:
        ours = [eni for eni in self._lab.vpc.enis() if eni.description == f"{OURS}{node.lab_node.instance_id}"]
        if self._loose(node) and not self._wait(lambda: not self._loose(node), 2 * REAP_TIMEOUT_S):
            self._tell("I9", node, f"ENIs of ours are attached to nothing: {self._loose(node)}")
        kept = [eni.eni_id for eni in ours if eni.attachment is not None and not eni.attachment.delete_on_termination]
        if kept:
            self._tell("I9", node, f"ENIs of ours would outlive the instance: {kept}")

        def difference() -> str:
            if node.daemon.family is IPV6:
                return prefix_difference(self._lab, node)
            status = node.daemon.status()
            known = int(status["pool"]["total_count"]) if status is not None else -1
            there = address_count(self._lab.vpc.enis_of(node.lab_node.instance_id))
            return "" if there == known else f"EC2 has {there} addresses on this node's ENIs, the daemon knows {known}"

        # What waited for a sandbox with a lost address is noticed after the sandboxes have gone, like any deed of other hands, and
        # what a call of the daemon's own was given counts as no difference for a while (seed 2853: the primary address of an ENI
        # that hands had deleted under its sandboxes).
        patience_s = max(HEAL_S, RECENT_S + notice_s(len(self._lab.vpc.enis_of(node.lab_node.instance_id))))
        if not self._wait(lambda: not difference(), patience_s, every_s=5.0):
            self._tell("I9", node, difference())

    def _loose(self, node: ChaosNode) -> list[str]:
        description = f"{OURS}{node.lab_node.instance_id}"
        ours = [eni.eni_id for eni in self._lab.vpc.enis() if eni.description == description and eni.attachment is None]
        takes = self._book.takes()
        return sorted(set(ours) - takes.detached - takes.forgotten)  # the rounds have demanded the latter, as late as they may be

    def _demand_quiet(self) -> None:
        """At idle, which begins when the pool has released what is in excess: zero EC2 calls (I13)."""
        calls = self._lab.vpc.calls
        deadline = time.monotonic() + GIVEN_BACK_S
        while True:
            before = len(calls())
            time.sleep(QUIET_S)
            made = [(call.instance, call.api, call.outcome) for call in calls()[before:]]
            if not made:
                return
            if time.monotonic() > deadline:
                self._history.violate(Violation("I13", self._history.now(), "all nodes", f"EC2 is called at idle: {made}"))
                return

    def _wait(self, claim: Callable[[], bool], timeout_s: float, *, every_s: float = 0.25) -> bool:
        deadline = time.monotonic() + timeout_s
        while not claim():
            if time.monotonic() > deadline:
                return False
            time.sleep(every_s)
        return True

    def _tell(self, invariant: str, node: ChaosNode, what: str) -> None:
        self._history.violate(Violation(invariant, self._history.now(), node.name, f"at the end: {what}"))
