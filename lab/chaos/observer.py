"""Looks at both nodes, at EC2's books and at packets, about once a second, from the beginning to the end of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lab.chaos.books import Books, View
from lab.chaos.journal import Journal
from lab.chaos.judge import DONE_S, Judge, Moment
from lab.chaos.member import Member
from lab.chaos.sight import Sight, look
from lab.fabric.errors import FabricError
from lab.lab import Lab
from lab.node.errors import NodeError

ROUND_S = 0.7
PING_TIMEOUT_S = 1.5
ECHO_TIMEOUT_S = 0.3
ECHOES_MOST = 30
OURS = "aws-K8S-"
"""How the daemon describes an ENI that it makes. Source: upstream_reference 2.7."""


class Observer:
    """A thread that looks and judges. Use as a context manager."""

    def __init__(self, lab: Lab, *, members: Sequence[Member], host: str, books: Books, journal: Journal, judge: Judge) -> None:
        self._lab = lab
        self._members = members
        self._host = host
        self._books = books
        self._journal = journal
        self._judge = judge
        self._faultless_since: float | None = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._lookers = ThreadPoolExecutor(max_workers=len(members), thread_name_prefix="look")
        self.round_count = 0
        self.longest_round_s = 0.0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(60)
        self._lookers.shutdown()

    def faults_are(self, *, in_force: bool) -> None:
        """The cloud's faults began or ended."""
        self._faultless_since = None if in_force else self._journal.now()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._journal.now()
            try:
                for violation in self._judge.judge(self.look()):
                    self._journal.violate(violation)
            except (FabricError, NodeError) as error:
                self._journal.note("a look failed", counted="look failed", error=str(error))
            except Exception as error:  # noqa: BLE001  # top of a loop: a blind observer must be noticed
                self._journal.say(f"the observer failed: {error!r}", counted="lab error")
            took_s = self._journal.now() - began
            self.round_count += 1
            self.longest_round_s = max(self.longest_round_s, took_s)
            self._stopped.wait(max(ROUND_S - took_s, 0.05))

    def look(self) -> Moment:
        """One round. Raises: FabricError."""
        at_s, before = self._journal.now(), self._books.view()
        states = {member.name: member.state() for member in self._members}
        sights = dict(zip(states, self._lookers.map(lambda member: self._sight(member, before), self._members), strict=True))
        on_enis, primaries, loose = self._cloud()
        silent = self._silent(before)
        echoing = self._echoing(before, sights, at_s)
        return Moment(
            at_s=at_s,
            before=before,
            after=self._books.view(),
            nodes=states,
            sights=sights,
            on_enis=on_enis,
            primaries=primaries,
            silent=silent,
            echoing=echoing,
            loose_enis=loose,
            faultless_since=self._faultless_since,
        )

    def _sight(self, member: Member, before: View) -> Sight:
        lives = [life for life in before.lives.values() if life.node == member.name and life.lives]
        is_ready = member.state().ready_since is not None
        return look(member.node, lives, member.rows() if is_ready else None)

    def _cloud(self) -> tuple[dict[str, str], frozenset[str], frozenset[str]]:
        names = {member.node.instance_id: member.name for member in self._members}
        on_enis: dict[str, str] = {}
        primaries, loose = set(), set()
        for eni in self._lab.vpc.enis():
            node = names.get(eni.attachment.instance_id, "") if eni.attachment else ""
            primaries.add(str(eni.primary_address))
            if eni.description.startswith(OURS) and eni.attachment is None:
                loose.add(eni.eni_id)
            addresses = [*eni.secondary_addresses, *(address for prefix in eni.prefixes for address in prefix)]
            on_enis.update((str(address), node) for address in addresses)
        return on_enis, frozenset(primaries), frozenset(loose)

    def _silent(self, before: View) -> frozenset[str]:
        living = [life.address for life in before.lives.values() if life.lives]
        answers = self._lab.ping(source=self._host, targets=living, timeout_s=PING_TIMEOUT_S) if living else {}
        return frozenset(str(address) for address, answered in answers.items() if not answered)

    def _echoing(self, before: View, sights: Mapping[str, Sight], at_s: float) -> frozenset[str]:
        """Which addresses of removed sandboxes answer, though no kernel has them wired."""
        held = {life.address for life in before.lives.values() if life.gone_at is None}
        held |= {veth.address for sight in sights.values() for veth in sight.veths if veth.is_wired}
        gone = [life for life in before.lives.values() if life.gone_at is not None and at_s - life.gone_at > DONE_S]
        asked = sorted({life.address for life in gone} - held)[:ECHOES_MOST]
        answers = self._lab.ping(source=self._host, targets=asked, timeout_s=ECHO_TIMEOUT_S) if asked else {}
        return frozenset(str(address) for address, answered in answers.items() if answered)
