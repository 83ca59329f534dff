"""The end of a run: everything made whole, everything removed, and then nothing may be left, anywhere (the strict audit)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lab.chaos.books import Violation
from lab.chaos.journal import Journal
from lab.chaos.kubelet import Kubelet
from lab.chaos.member import Member
from lab.chaos.observer import OURS
from lab.chaos.plan import COOLDOWN_S
from lab.chaos.sight import look
from lab.lab import Lab

READY_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 75.0
"""Ours: above the longest pause of the pool after an error, 60 s (ipamd/service/pool/maintainer.py)."""

UNKNOWN_ENI = "unknown to the datastore"
"""The audit's words (ipamd/service/report/audit.py) for an ENI that is neither recorded nor covered by an open intent."""

REMOVE_TIMEOUT_S = 180.0
ROWS_TIMEOUT_S = 15.0
LISTS_S = 25.0
"""Two CRI lists, 10 s apart, and some: the reaper's first evidence (ipamd/service/reconcile/runtime.py)."""

LATER_S = 3 * 3600.0
"""How far the daemon's clock is put forward for orphans: beyond each step of a plan and the hour of a leaked namespace."""

REAP_TIMEOUT_S = 60.0
REUSABLE_MARGIN_S = 10.0
REPAIR_TIMEOUT_S = 50.0
QUIET_S = 5.0


class Closing:
    """Used by one thread."""

    def __init__(self, lab: Lab, *, members: Sequence[Member], kubelets: Sequence[Kubelet], journal: Journal) -> None:
        self._lab = lab
        self._members = members
        self._kubelets = kubelets
        self._journal = journal

    def calm(self) -> None:
        """Faults are gone; restart each daemon once more, unarmed, and remove every sandbox. The observer still looks.

        What only a restart would heal is looked for before it.
        """
        for member in self._members:
            member.queue(lambda: None).result()  # what was queued is done
            if member.wait_ready(READY_TIMEOUT_S):
                self._demand_known_enis(member)
        for future in [member.queue(lambda member=member: member.kill_daemon(down_s=0)) for member in self._members]:  # type: ignore[misc]
            future.result()
        for member in self._members:
            if not member.wait_ready(READY_TIMEOUT_S):
                self._tell("ready", member, f"not ready within {READY_TIMEOUT_S:.0f} s: {member.ask(lambda c: c.status())}")
        for kubelet, member in zip(self._kubelets, self._members, strict=True):
            if not kubelet.remove_all(REMOVE_TIMEOUT_S):
                self._tell("I3", member, f"the runtime could not remove every sandbox in {REMOVE_TIMEOUT_S:.0f} s")

    def audit(self) -> dict[str, Any]:
        """Demand that nothing is left. Returns: figures for the report."""
        facts: dict[str, Any] = {}
        for member in self._members:
            facts[member.name] = {"reaped orphans": self._end_orphans(member)}
            began = time.monotonic()
            self._demand_reusable(member)
            facts[member.name]["all addresses free after s"] = round(time.monotonic() - began, 1)
        for member in self._members:
            self._demand_clean_kernel(member)
            self._demand_no_findings(member)
            self._demand_same_as_ec2(member)
        self._demand_quiet()
        for problem in (*self._lab.fabric.problems, *map(repr, self._lab.vpc.listener_errors)):
            self._journal.say(f"the lab itself is not sound: {problem}", counted="lab error")
        return facts

    def _demand_known_enis(self, member: Member) -> None:
        """No ENI hangs on the node that the daemon neither knows nor has an open intent for (I9)."""
        unknown: list[str] = []

        def is_known() -> bool:
            answer = member.ask(lambda client: client.audit())
            found = answer["findings"] if answer is not None else []
            unknown[:] = [one["subject"] for one in found if UNKNOWN_ENI in one["what"]]
            return answer is not None and not unknown

        if not self._wait(is_known, SETTLE_TIMEOUT_S):
            self._tell("I9", member, f"ENIs that the daemon made and lost sight of, before a restart: {unknown}")

    def _end_orphans(self, member: Member) -> int:
        """Rows without a sandbox: none, but of sandboxes that died with the runtime: reaped once they are old enough."""
        if self._wait(lambda: not member.rows(), ROWS_TIMEOUT_S):
            return 0
        orphans = member.rows() or {}
        if not member.state().runtime_killed_at:
            self._tell("I3", member, f"{len(orphans)} rows are left, and every sandbox was removed: {orphans}")
            return 0
        time.sleep(LISTS_S)
        member.step_clock(LATER_S)
        if not self._wait(lambda: not member.rows(), REAP_TIMEOUT_S):
            told = [member.ask(lambda client, one=one: client.explain(one)) for one in (member.rows() or {})]  # type: ignore[misc]
            self._tell("I3", member, f"orphans were not reaped: {told}")
        return len(orphans)

    def _demand_reusable(self, member: Member) -> None:
        """Every address is free again, at most a cooldown after the last removal."""

        def is_free() -> bool:
            status = member.ask(lambda client: client.status())
            if status is None:
                return False
            pool = status["pool"]
            return int(pool["free_count"]) == int(pool["total_count"]) and int(status["dying_count"]) == 0

        if not self._wait(is_free, COOLDOWN_S + REUSABLE_MARGIN_S):
            status = member.ask(lambda client: client.status()) or {}
            if int(status.get("pool", {}).get("quarantined_count", 0)) and self._end_quarantine(member, is_free):
                return
            self._tell("I8", member, f"not every address is free again: {status.get('pool')}; lacks {status.get('lacks')}")

    def _end_quarantine(self, member: Member, is_free: Callable[[], bool]) -> bool:
        """Quarantined addresses of orphans follow the reap rule too (design 4)."""
        if not member.state().runtime_killed_at:
            return False
        time.sleep(LISTS_S)
        member.step_clock(2 * LATER_S)
        return self._wait(is_free, REAP_TIMEOUT_S)

    def _demand_clean_kernel(self, member: Member) -> None:
        def leftovers() -> list[str]:
            sight = look(member.node, (), None)
            routes = [address for address, device in sight.routes.items() if device.startswith("eni")]
            return [*(veth.name for veth in sight.veths), *routes, *sight.to_rules, *sight.from_rules]

        if not self._wait(lambda: not leftovers(), 5.0):
            self._tell("I4", member, f"left in the kernel: {leftovers()}")
        if not self._wait(
            lambda: member.node.run(["nft", "list", "table", "ip", "vpc-ipamd"], check=False).returncode == 0, REPAIR_TIMEOUT_S
        ):
            self._tell("repair", member, "its nftables table is missing")

    def _demand_no_findings(self, member: Member) -> None:
        answer = member.ask(lambda client: client.audit()) or {"findings": [{"severity": "violation", "what": "no answer"}]}
        worst = [found for found in answer["findings"] if found["severity"] != "pending"]
        if worst:
            self._tell("audit", member, f"the daemon's own audit finds: {worst}")

    def _demand_same_as_ec2(self, member: Member) -> None:
        ours = [eni for eni in self._lab.vpc.enis() if eni.description == f"{OURS}{member.node.instance_id}"]
        loose = [eni.eni_id for eni in ours if eni.attachment is None]
        if loose and not self._wait(lambda: not self._loose(member), 2 * REAP_TIMEOUT_S):
            self._tell("I9", member, f"ENIs of ours are attached to nothing: {self._loose(member)}")
        kept = [eni.eni_id for eni in ours if eni.attachment is not None and not eni.attachment.delete_on_termination]
        if kept:
            self._tell("I9", member, f"ENIs of ours would outlive the instance: {kept}")
        at_ec2 = [eni for eni in self._lab.vpc.enis() if eni.attachment and eni.attachment.instance_id == member.node.instance_id]
        count = sum(len(eni.secondary_addresses) + sum(prefix.num_addresses for prefix in eni.prefixes) for eni in at_ec2)
        status = member.ask(lambda client: client.status())
        known = int(status["pool"]["total_count"]) if status is not None else -1
        if known != count:
            self._tell("I9", member, f"EC2 has {count} addresses on this node's ENIs, the daemon knows {known}")

    def _loose(self, member: Member) -> list[str]:
        description = f"{OURS}{member.node.instance_id}"
        return [eni.eni_id for eni in self._lab.vpc.enis() if eni.description == description and eni.attachment is None]

    def _demand_quiet(self) -> None:
        """At idle: zero EC2 calls (I13). A call may still be on its way when the wait begins, so the second window counts."""
        for is_last in (False, False, True):
            before = len(self._lab.vpc.calls())
            time.sleep(QUIET_S)
            calls = self._lab.vpc.calls()[before:]
            if not calls:
                return
            if is_last:
                made = [(call.instance, call.api, call.outcome) for call in calls]
                self._journal.violate(Violation("I13", self._journal.now(), "both nodes", f"EC2 is called at idle: {made}"))

    def _wait(self, claim: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not claim():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.25)
        return True

    def _tell(self, invariant: str, member: Member, what: str) -> None:
        self._journal.violate(Violation(invariant, self._journal.now(), member.name, f"at the end: {what}"))
