"""Observes all nodes, EC2's records and packets about once a second, from the start to the end of a run."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from lab.chaos.book import is_most
from lab.chaos.checker import Checker, Round, Whereabouts
from lab.chaos.expected_state import ExpectedSnapshot, ExpectedState, PodRecord
from lab.chaos.history import History
from lab.chaos.node import ChaosNode
from lab.chaos.observation import NodeObservation, observe
from lab.chaos.tolerances import DONE_S
from lab.fabric.errors import FabricError
from lab.lab import Lab
from lab.node.errors import NodeError
from lab.vpc.family import family_of
from lab.vpc.model import Eni, Network

ROUND_S = 0.7
PING_TIMEOUT_S = 1.5
ECHO_TIMEOUT_S = 0.3
ECHOES_MOST = 30
ASKED_A_ROUND = 3
"""Ours: each sandbox with egress has its turn within some rounds, and a round stays short."""

FORGOTTEN_S = 15.0
"""A creation that EC2 had taken shows within this time after the datastore went, late answers included."""

OURS = "aws-K8S-"
"""How the daemon describes an ENI that it makes. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, AllocENI."""


class Homes:
    """Where EC2 has the addresses for sandboxes, of both families."""

    def __init__(self) -> None:
        """Nothing is anywhere."""
        self._addresses: dict[str, str] = {}
        self._prefixes: list[tuple[Network, str]] = []

    def add(self, node: str, eni: Eni) -> None:
        """Note an ENI that hangs on a node, "" for none."""
        self._addresses.update((str(address), node) for address in eni.secondary_addresses)
        self._prefixes += [(prefix, node) for prefix in eni.all_prefixes]

    def add_one(self, node: str, address: str) -> None:
        """Note one address of a node, that of a branch ENI."""
        self._addresses[address] = node

    def get(self, address: str, /) -> str | None:
        """The node of an address, "" if its ENI hangs on none; None if no ENI has it."""
        if address in self._addresses:
            return self._addresses[address]
        one = ip_address(address)
        return next((node for prefix, node in self._prefixes if one in prefix), None)


class Observer:
    """A thread that observes and checks. Use as a context manager."""

    def __init__(
        self,
        lab: Lab,
        *,
        nodes: Sequence[ChaosNode],
        host: str,
        expected: ExpectedState,
        history: History,
        checker: Checker,
        stranger: str = "",
    ) -> None:
        """`stranger`: a host that no security group names; "" where no pod has groups."""
        self._lab = lab
        self._nodes = nodes
        self._host, self._stranger = host, stranger
        self._expected = expected
        self._history = history
        self._checker = checker
        self._faultless_since: float | None = 0.0
        self._lied_until = -1.0
        self._is_lying = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._lookers = ThreadPoolExecutor(max_workers=len(nodes), thread_name_prefix="look")
        self._mute: set[str] = set()
        self._turn = itertools.count()
        self.round_count = 0
        self.longest_round_s = 0.0
        self.busiest_minute = 0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(60)
        self._lookers.shutdown()

    def faults_are(self, *, in_force: bool) -> None:
        """Note that cloud faults began, or that the last one ended."""
        self._faultless_since = None if in_force else self._history.now()

    def describe_lies(self, *, in_force: bool) -> None:
        """Note that Describe began to leave objects out, or that it tells all of them again."""
        if self._is_lying or in_force:
            self._lied_until = self._history.now()
        self._is_lying = in_force

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = self._history.now()
            try:
                for violation in self._checker.check(self.look()):
                    self._history.violate(violation)
            except (FabricError, NodeError) as error:
                self._history.note("a look failed", counted="look failed", error=str(error))
            except Exception as error:  # noqa: BLE001  # top of a loop: a blind observer must be noticed
                self._history.say(f"the observer failed: {error!r}", counted="lab error")
            took_s = self._history.now() - began
            self.round_count += 1
            self.longest_round_s = max(self.longest_round_s, took_s)
            self._stopped.wait(max(ROUND_S - took_s, 0.05))

    def look(self) -> Round:
        """Observe one round. Raises: FabricError."""
        at_s, before = self._history.now(), self._expected.snapshot()
        states = {node.name: node.state() for node in self._nodes}
        away = [name for name, state in states.items() if state.ready_since is None]
        calls = self._calls()
        self.busiest_minute = max(self.busiest_minute, *(counts.total() for counts in calls.values()))
        observations = dict(zip(states, self._lookers.map(lambda node: self._observe(node, before), self._nodes), strict=True))
        on_enis, primaries, loose = self._cloud()
        branches = self._branches()
        doubted = [node.name for node in self._nodes if _lacks_most(node.name, before, on_enis)]
        self._expected.book.look(at_s, away=away, blind=self._faultless_since is None, doubted=doubted)
        self._forgive_forgotten(before, at_s)
        silent = self._silent(before)
        self._ask_for_egress(before)
        echoing = self._echoing(before, observations, at_s)
        return Round(
            at_s=at_s,
            before=before,
            after=self._expected.snapshot(),
            nodes=states,
            observations=observations,
            on_enis=on_enis,
            primaries=primaries,
            branches=branches,
            open=self._reached_by_strangers(before),
            silent=silent,
            mute=frozenset(self._mute),
            echoing=echoing,
            loose_enis=loose,
            faultless_since=self._faultless_since,
            lied_until=at_s if self._is_lying else self._lied_until,
            takes=self._expected.book.takes(),
            calls_a_minute=calls,
        )

    def _observe(self, node: ChaosNode, before: ExpectedSnapshot) -> NodeObservation:
        records = [record for record in before.pods.values() if record.node == node.name and record.is_wanted]
        is_ready = node.state().ready_since is not None
        return observe(node.lab_node, records, node.daemon.rows() if is_ready else None, agent=node.agent)

    def _cloud(self) -> tuple[Homes, frozenset[str], frozenset[str]]:
        names = {node.lab_node.instance_id: node.name for node in self._nodes}
        on_enis = Homes()
        primaries: set[str] = set()
        loose: set[str] = set()
        for eni in self._lab.vpc.enis():
            node = names.get(eni.attachment.instance_id, "") if eni.attachment else ""
            primaries.update(map(str, (*([eni.primary_address] if eni.primary_address else ()), *eni.ipv6_addresses)))
            if eni.description.startswith(OURS) and eni.attachment is None:
                loose.add(eni.eni_id)
            on_enis.add(node, eni)
        for address, place in self._branches().items():
            on_enis.add_one(place.partition("/")[0], address)
        return on_enis, frozenset(primaries), frozenset(loose)

    def _branches(self) -> dict[str, str]:
        """Addresses of branch ENIs -> the node of their trunk, and their VLAN ID."""
        names = {node.lab_node.instance_id: node.name for node in self._nodes}
        world = self._lab.vpc.world
        found: dict[str, str] = {}
        for eni in world.enis.values():
            trunk = world.enis.get(eni.association.trunk_id) if eni.association is not None else None
            if eni.association is not None and trunk is not None and trunk.attachment is not None:
                place = f"{names.get(trunk.attachment.instance_id, '')}/{eni.association.vlan}"
                found.update((str(address), place) for address in eni.all_addresses)
        return found

    def _reached_by_strangers(self, before: ExpectedSnapshot) -> frozenset[str]:
        """Addresses of living sandboxes with groups that answer a host whom these do not name."""
        living = [record.address for record in before.pods.values() if record.is_wanted and (record.vlan or record.is_guarded)]
        if not living or not self._stranger:
            return frozenset()
        answers = self._lab.ping(source=self._stranger, targets=living, timeout_s=ECHO_TIMEOUT_S)
        return frozenset(str(address) for address, answered in answers.items() if answered)

    def _forgive_forgotten(self, before: ExpectedSnapshot, at_s: float) -> None:
        """Note the ENIs that a daemon was making when its datastore was destroyed."""
        for node in self._nodes:
            if 0 <= at_s - before.lost_at.get(node.name, at_s + 1) < FORGOTTEN_S:
                description = f"{OURS}{node.lab_node.instance_id}"
                for eni in self._lab.vpc.enis():
                    if eni.attachment is None and eni.description == description:
                        self._expected.book.forgotten(eni.eni_id)

    def _calls(self) -> dict[str, Counter[str]]:
        """Count each node's EC2 calls of the last minute, by their API and outcome."""
        since = self._lab.vpc.clock() - 60.0
        latest = [call for call in self._lab.vpc.calls() if call.at >= since]
        return {
            node.name: Counter(f"{call.api} {call.outcome}" for call in latest if call.instance == node.lab_node.instance_id)
            for node in self._nodes
        }

    def _silent(self, before: ExpectedSnapshot) -> frozenset[str]:
        living = [record.address for record in before.pods.values() if record.is_wanted]
        answers = self._lab.ping(source=self._host, targets=living, timeout_s=PING_TIMEOUT_S) if living else {}
        return frozenset(str(address) for address, answered in answers.items() if not answered)

    def _ask_for_egress(self, before: ExpectedSnapshot) -> None:
        """Let a few sandboxes ask the host in the family that they have for egress alone: the next ones, and those that were mute."""
        living = {record.sandbox_id: record for record in before.pods.values() if record.is_wanted and record.egress}
        self._mute &= set(living)
        ids = sorted(living)
        turn = next(self._turn) * ASKED_A_ROUND
        asked = {ids[(turn + number) % len(ids)] for number in range(min(ASKED_A_ROUND, len(ids)))} | self._mute
        heard = dict(zip(sorted(asked), self._lookers.map(self._is_heard, (living[one] for one in sorted(asked))), strict=True))
        self._mute = {sandbox_id for sandbox_id, is_heard in heard.items() if not is_heard}

    def _is_heard(self, record: PodRecord) -> bool:
        """Whether a sandbox reaches the host in its family for egress; true of one that is just being removed."""
        target = self._lab.own_address(self._host, family_of(ip_address(record.egress)))
        source = (self._lab.node(record.node), record.netns_path)
        try:
            return all(self._lab.ping(source=source, targets=[target], timeout_s=PING_TIMEOUT_S).values())
        except FabricError:
            return True

    def _echoing(self, before: ExpectedSnapshot, observations: Mapping[str, NodeObservation], at_s: float) -> frozenset[str]:
        """Which addresses of removed sandboxes answer, though no kernel has them wired."""
        held = {record.address for record in before.pods.values() if record.removed_at_s is None}
        kernels = [seen.kernel for seen in observations.values()]
        held |= {veth.address for kernel in kernels for veth in (*kernel.veths, *kernel.branch_veths) if veth.is_wired}
        gone = [
            record for record in before.pods.values() if record.removed_at_s is not None and at_s - record.removed_at_s > DONE_S
        ]
        asked = sorted({record.address for record in gone} - held)[:ECHOES_MOST]
        answers = self._lab.ping(source=self._host, targets=asked, timeout_s=ECHO_TIMEOUT_S) if asked else {}
        return frozenset(str(address) for address, answered in answers.items() if answered)


def _lacks_most(node: str, before: ExpectedSnapshot, on_enis: Whereabouts) -> bool:
    wanted = [record.address for record in before.pods.values() if record.node == node and record.is_wanted]
    return is_most([address for address in wanted if on_enis.get(address) != node], wanted)
