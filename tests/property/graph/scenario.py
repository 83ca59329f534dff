"""What happens to a node, drawn from a seed, and what must hold whatever happens: judged as kubelet and EC2 see it.

A run has four parts: a storm, in which everything goes wrong at once; a calm, after which everything must be sound; a quiet hour
without an EC2 call; and a state that no retry can change (a denied action, a full subnet, a silent EC2), in which the calls of an
hour are counted. The script of the storm is made first, each event with a source of randomness of its own, so that a failing script
can be shortened event by event.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from random import Random
from unittest import mock

from ipamd.model.attachment import Attachment
from ipamd.model.eni import InstanceLimits
from ipamd.model.eni_tags import INSTANCE_TAG, NO_MANAGE_TAG
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.ids import EniId
from ipamd.model.sandbox import EventKind, SandboxState
from ipamd.process.served_mark import ServedMark
from ipamd.settings import PoolConfig
from tests.fakes.cloud import INSTANCE, PRIMARY
from tests.fakes.kernel import TRUNK
from tests.property.graph.branches import Workload
from tests.property.graph.ec2 import ACTIONS, CHANGES, RoughEc2, Weather, addresses_of, is_of_pool, slot
from tests.property.graph.node import GraphNode
from tests.property.graph.world import Killed, World, installed

LIMITS = (InstanceLimits("m5.large", 3, 10), InstanceLimits("t3.small", 3, 4), InstanceLimits("m5.xlarge", 4, 15))
COOLDOWN_S = 30.0

BEGIN_S = 1000.0
STORM_S = 1800.0
CALM_S = 3 * 3600.0
AUTO_CALM_S = 5 * 3600.0
"""Longer than every hold and window: the hour of release, and the two hours that an automatic target remembers."""

HOUR_S = 3600.0
STATE_S = 2 * HOUR_S
"""After which a state counts as lasting."""

KILLED_AT = ("growth.", "growth.", "release.", "attach.", "detach.", "adopt.", "leaked.", "cooling.")
"""Failpoints of these are chosen."""

JUDGED_EACH_S, CALM_JUDGED_EACH_S = 30.0, 300.0

CALLS_PER_HOUR = 6
"""Of each kind, in a state that no retry changes."""

USELESS_PER_HOUR = 2
"""ENIs that are made and deleted because nobody could be given what is on them."""

DEL_AGAIN_S = 10.0
SHOWN_S = 200.0
"""Of what has been there for so long two Describes in a row tell, however late."""

TAKEN_S = 1800.0
"""For so long an address that other hands took may still be given: metadata, throttled Describes and restarts have to show it."""

KINDS = (
    ("add", 40),
    ("delete", 24),
    ("vanish", 3),
    ("kill", 5),
    ("kill-in", 10),
    ("kill-at", 10),
    ("lose-datastore", 2),
    ("weather", 12),
    ("fair", 8),
    ("deny", 6),
    ("settings", 4),
    ("runtime", 3),
    ("metadata", 3),
    ("seize-address", 3),
    ("seize-eni", 2),
    ("add-address", 3),
    ("foreign", 2),
    ("others", 4),
    ("routes", 3),
    ("links", 2),
    ("burst", 3),
)

BRANCH_KINDS = (
    ("workload", 40),
    ("next-sandbox", 8),
    ("facts", 4),
    ("agent", 5),
    ("agent-forgets", 4),
    ("vlan", 3),
    ("trunk", 2),
    ("forged", 3),
)
"""Besides, where pods may have branch ENIs."""

STATES = (*(f"deny {action}" for action in ACTIONS), "full", "no blocks", "attachments", "silent", "throttled")


@dataclass(frozen=True)
class Step:
    """One event of the storm. `seed`: of what it draws."""

    at_s: float
    kind: str
    seed: str


@dataclass
class Pod:
    """A sandbox as kubelet knows it. `state`: adding, live, doomed (its DEL is due) or gone."""

    name: str
    state: str = "adding"
    address: IpAddress | None = None
    is_forfeited: bool = False
    workload: Workload | None = None

    @property
    def has_branch(self) -> bool:
        """Whether its address is a branch ENI's: the control plane cools it, and EC2 shows it on no ENI of the node."""
        return self.workload is not None and self.workload.wants_branch


@dataclass
class Outcome:
    """One run. `problems` is empty if everything held; `hourly`: state -> the most calls of each kind within an hour."""

    seed: int
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    hourly: dict[str, Counter[str]] = field(default_factory=dict)
    kills: int = 0
    failpoints: frozenset[str] = frozenset()
    state: str = ""


class Violation(Exception):
    """Something did not hold; the run ends."""


def script(seed: int, *, has_branches: bool = False) -> list[Step]:
    """The storm of a seed."""
    draw = Random(f"script/{seed}")
    kinds, weights = zip(*(KINDS + BRANCH_KINDS if has_branches else KINDS), strict=True)
    steps, at_s = [], BEGIN_S + 20.0
    while at_s < BEGIN_S + STORM_S:
        steps.append(Step(at_s, draw.choices(kinds, weights)[0], f"{seed}/{len(steps)}"))
        at_s += draw.choice((0.0, 0.3, 2.0, 5.0, 10.0, 30.0))
    return steps


class Run:
    """One node's run."""

    def __init__(
        self,
        world: World,
        seed: int,
        directory: Path,
        *,
        steps: Sequence[Step],
        state: str,
        family: Family = IPV4,
        has_branches: bool = False,
    ) -> None:
        self.family, self.has_branches = family, has_branches
        self.seed, self.steps, self.state, self.is_short = seed, steps, state, False
        draw = Random(f"run/{seed}")
        self.world = world
        self.outcome = Outcome(seed, state=state)
        self.pods: dict[str, Pod] = {}
        self.workloads: list[Workload] = []
        self.cooling: dict[IpAddress, float] = {}
        self._pod_count = 0
        self._seen: dict[IpAddress, tuple[EniId, float]] = {}
        self._seen_in = -1
        pool = self._targets(draw)
        self.node = GraphNode(
            directory,
            self.world,
            limits=draw.choice(LIMITS),
            pool=pool,
            seed=seed,
            address_count=draw.choice((60, 120, 400)),
            family=family,
            branch_mode=("strict", "standard")[seed % 2] if has_branches else "",
        )
        self.node.trace = self.say
        self.ec2: RoughEc2 = self.node.rough
        self.say(f"{self.node.rough.limits.instance_type}, {_differing(pool)}")
        if draw.random() < 0.25 and not has_branches:
            self._migrate(draw)

    # The parts of a run.

    def play(self) -> None:
        """Everything, from the first life to the last hour. Raises: Violation."""
        self.node.live()
        for step in self.steps:
            self.world.at(step.at_s, lambda step=step: self._do(step))  # type: ignore[misc]
        self.world.at(BEGIN_S, self._kubelet)
        self._until(BEGIN_S + STORM_S)
        self._fair()
        self.say("CALM")
        self._until(BEGIN_S + STORM_S + (AUTO_CALM_S if self.node.current.now.pool.warm_target == "auto" else CALM_S))
        self._judge_sound("after the calm")
        if self.is_short:
            return
        self._quiet_hour()
        if not self._probe() and not self._is_useless():
            self._violated("an ADD is not served after the calm")
        if not self.node.health.is_ready:
            self._violated("an ADD is served, and the daemon is not ready")
        self._lasting_state()
        self._recovered()

    def finish(self) -> Outcome:
        """What came of it."""
        self.outcome.kills, self.outcome.failpoints = self.node.kill_count, frozenset(self.node.failpoints_seen)
        self.node.finish()
        return self.outcome

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.outcome.trace.append(f"{self.world.monotonic() - BEGIN_S:9.1f} {text}")

    def _until(self, until_s: float) -> None:
        while self.world.monotonic() < until_s:
            step_s = JUDGED_EACH_S if self.world.monotonic() < BEGIN_S + STORM_S + HOUR_S else CALM_JUDGED_EACH_S
            self.world.run(min(until_s, self.world.monotonic() + step_s), is_over=lambda: bool(self.outcome.problems))
            self._judge()
            if self.outcome.problems or self.world.failures:
                raise Violation("; ".join([*self.outcome.problems, *self.world.failures]))

    def _quiet_hour(self) -> None:
        since_s = self.world.monotonic()
        self._until(since_s + HOUR_S)
        counted = self.ec2.counts(since_s, self.world.monotonic())
        self._note_hour("healthy", counted)
        changing = {method: count for method, count in counted.items() if method in CHANGES}
        # An ENI on which EC2 put a live pod's address is made anew: seldom, and it is said. This EC2 gives what it got back last, so
        # that the next one has the address too.
        allowed = dict.fromkeys(("create_eni", "delete_eni"), USELESS_PER_HOUR) if self._is_useless() else {}
        if any(count > allowed.get(method, 0) for method, count in changing.items()):
            self._violated(f"changing calls in a quiet hour: {changing}")
        if counted and self._is_healthy():
            self._violated(f"EC2 calls in an idle hour of a healthy node: {dict(counted)}")

    def _is_useless(self) -> bool:
        """Whether each new ENI has an address of a live pod, and it is said."""
        return "useless" in self.node.health.conditions_by_subject().get("ec2", "")

    def _lasting_state(self) -> None:
        """Want more or have too much, in a state that does not change; then count."""
        draw = Random(f"state/{self.seed}")
        pool = self._bitten(draw)
        self.say(f"STATE {self.state}, {_differing(pool)}")
        self._enter_state()
        self.world.spawn(lambda: self.node.offer(pool), name="settings")
        for pod in draw.sample(live := self._live(), len(live) // draw.choice((1, 2))):
            self._delete(pod)
        for _ in range(draw.choice((0, 3, 12))):
            self._add()
        self._until(self.world.monotonic() + STATE_S)
        for _ in range(1):
            since_s = self.world.monotonic()
            self._until(since_s + HOUR_S)
            counted = self.ec2.counts(since_s, self.world.monotonic())
            self._note_hour(self.state, counted)
            if many := {method: count for method, count in counted.items() if count > CALLS_PER_HOUR}:
                self._violated(f"calls within an hour of the state {self.state!r}: {many}")

    def _bitten(self, draw: Random) -> PoolConfig:
        """Targets that need what the state refuses."""
        wants_less = any(word in self.state for word in ("unassign", "detach_eni", "delete_eni"))
        if wants_less or (self.state in ("silent", "throttled") and draw.random() < 0.5):
            return PoolConfig(warm_ip_target=1, release_hold_s=60)
        if "prefixes" in self.state or "blocks" in self.state:
            return PoolConfig(prefix_delegation=True, warm_prefix_target=draw.randint(2, 6))
        return draw.choice(
            (PoolConfig(warm_eni_target=self.ec2.limits.eni_count), PoolConfig(warm_ip_target=draw.randint(10, 40)))
        )

    def _recovered(self) -> None:
        """Once the state ends an ADD is served."""
        self.say("the state ends")
        self._fair()
        self._until(self.world.monotonic() + HOUR_S)
        self._judge_sound("after the state")

    def _enter_state(self) -> None:
        ec2, state = self.ec2, self.state
        if self.family.is_sparse:  # one is enough for ever: only without it anything is asked for
            for eni in [eni for eni in ec2.attached() if eni.prefixes]:
                self._forfeit(addresses_of(eni))
                ec2.seize_prefixes(eni.eni_id)
        if state.startswith("deny "):
            ec2.weather = Weather(refused=frozenset((state.removeprefix("deny "),)))
        elif state == "full":
            ec2.left_count = ec2.left_prefix_count = 0
        elif state == "no blocks":
            ec2.left_prefix_count = 0
        elif state == "attachments":
            ec2.attached_count_max = len(ec2.attached())
        elif state == "silent":
            ec2.weather = Weather(is_silent=True)
        elif state == "throttled":
            ec2.weather = Weather(throttled=1.0)

    def _fair(self) -> None:
        """Everything works again, and kubelet deletes what it gave up."""
        self.ec2.weather = Weather()
        self.ec2.attached_count_max = 99
        self.ec2.left_count = max(self.ec2.left_count, 200)
        self.ec2.left_prefix_count = max(self.ec2.left_prefix_count, 20)
        self.node.runtime.is_down = False
        self.node.is_metadata_silent = False
        self.node.metadata.frozen = None
        self.node.hostnet.unplugged.clear()
        self.node.kill_in = None
        if self.node.agent:
            self.node.agent.is_silent = self.node.agent.is_cross = self.node.told.is_silent = False
            self.node.wiring.trunks.add(TRUNK)

    # What kubelet does.

    def _kubelet(self) -> None:
        """Every few seconds: the DELs that are due."""
        for pod in list(self.pods.values()):
            if pod.state == "doomed":
                self._delete(pod)
        self.world.at(self.world.monotonic() + DEL_AGAIN_S, self._kubelet)

    def _add(self, deadline_s: float = 60.0, workload: Workload | None = None) -> None:
        if not self.node.is_serving:
            return
        self._pod_count += 1
        pod = self.pods[name] = Pod(name := f"pod{self._pod_count}", workload=workload)
        if workload is not None:
            self.node.told.workloads[name], self.node.told.began[name] = workload, workload.text

        def add() -> None:
            try:
                of_pod = name if workload is None else workload.name
                made = self.node.add_of(name, of_pod, deadline_s=deadline_s)
            except IpamError as error:
                self.say(f"ADD {name} refused: {str(error)[:600]}")
                pod.state = "doomed" if pod.state == "adding" else pod.state
            except Killed:
                pod.state = "doomed"
                raise
            else:
                if self.has_branches:
                    self._judge_added(pod, made)
                self._added(pod, made.address, made.eni_id)

        self.world.spawn(add, name=f"ADD {name}")

    def _judge_added(self, pod: Pod, made: Attachment) -> None:
        """I19, by what the control plane gave; and the agent's filter hangs on the link."""
        workload, has_branch = pod.workload, made.uplink is not None
        if has_branch != pod.has_branch:
            self._violated(
                f"I19: {pod.name} has {made.address}, and {'must' if pod.has_branch else 'must not'} have a branch ENI"
            )
        elif workload and made.uplink and (made.uplink.vlan, made.address, made.eni_id) != workload.given:
            self._violated(f"I19: {pod.name} has {made.address} by VLAN {made.uplink.vlan}, and was given {workload.given}")
        if self.node.agent and pod.name not in self.node.agent.filtered:
            self._violated(f"I21: the ADD of {pod.name} is answered, and nothing filters it")

    def _added(self, pod: Pod, address: IpAddress, eni_id: EniId) -> None:
        now_s = self.world.monotonic()
        self.say(f"ADD {pod.name} -> {address}")
        for other in self.pods.values():
            if other is not pod and other.address == address and other.state in ("live", "doomed-live"):
                self._violated(f"I1: {address} is given to {pod.name} and {other.name} has it")
        cooled_s = self.cooling.get(address)
        if cooled_s is not None and now_s < cooled_s + COOLDOWN_S and self.ec2.left_at.get(slot(address), 0.0) < cooled_s:
            self._violated(f"I8: {address} is given to {pod.name} {now_s - cooled_s:.1f} s after it was released")
        pod.address = address
        if pod.has_branch:
            self._runs(pod)
            return
        is_there = self.ec2.address_owner().get(slot(address)) == eni_id
        if not is_there and now_s - self.ec2.taken.get(slot(address), -TAKEN_S) >= TAKEN_S:
            self._violated(f"I7: {address} is given to {pod.name} and is not on {eni_id}")
        # Also if others have put it on another ENI of ours since: its sandbox sends by the one that has lost it.
        pod.is_forfeited = slot(address) in self.ec2.taken and (not is_there or eni_id in self.ec2.seized)
        self._runs(pod)

    def _runs(self, pod: Pod) -> None:
        pod.state = "live"
        self.node.runtime.run(pod.name)
        self.node.runtime.emit(pod.name, EventKind.CREATED)

    def _delete(self, pod: Pod) -> None:
        """The sandbox stops, and its DEL comes; again if it fails."""
        if pod.state == "gone":
            return
        pod.state = "doomed"
        if pod.address is not None and not pod.is_forfeited and not pod.has_branch:
            self.cooling.setdefault(pod.address, self.world.monotonic())
        if pod.name in self.node.runtime.listed:
            self.node.runtime.run(pod.name, state=SandboxState.NOTREADY)
        if not self.node.is_up:
            return

        def delete() -> None:
            try:
                self.node.delete(pod.name)
            except IpamError as error:
                self.say(f"DEL {pod.name} refused: {str(error)[:600]}")
            else:
                if pod.state != "gone":
                    self.say(f"DEL {pod.name}")
                    self._gone(pod)

        self.world.spawn(delete, name=f"DEL {pod.name}")

    def _gone(self, pod: Pod) -> None:
        pod.state = "gone"
        self.node.wiring.netns.pop(f"/run/netns/{pod.name}", None)
        self.node.runtime.listed.pop(pod.name, None)
        self.node.runtime.emit(pod.name, EventKind.DELETED)
        if workload := pod.workload:
            self._next_of(workload)
        if pod.address is not None and not pod.is_forfeited and not pod.has_branch:  # else EC2 took it long ago
            self.cooling[pod.address] = min(self.cooling.get(pod.address, self.world.monotonic()), self.world.monotonic())

    # The storm.

    def _do(self, step: Step) -> None:
        if self.outcome.problems:
            return
        draw = Random(step.seed)
        handler = getattr(self, f"_step_{step.kind.replace('-', '_')}")
        handler(draw)

    def _step_add(self, draw: Random) -> None:
        self._add(draw.choice((2.0, 20.0, 60.0)))

    def _step_burst(self, draw: Random) -> None:
        for _ in range(draw.randint(4, 14)):
            self._add(draw.choice((20.0, 60.0)))

    def _step_delete(self, draw: Random) -> None:
        if live := self._live():
            self._delete(draw.choice(live))

    def _step_vanish(self, draw: Random) -> None:
        """A sandbox dies and no DEL comes."""
        if live := self._live():
            pod = draw.choice(live)
            self.say(f"{pod.name} vanishes")
            for veth, spec in list(self.node.wiring.wired.items()):
                if spec.key.container_id == pod.name:
                    del self.node.wiring.wired[veth]
                    self.node.wiring.routes.pop(spec.address, None)  # the kernel takes them with the link
            if not pod.has_branch:
                self.cooling[pod.address] = self.world.monotonic()  # type: ignore[index]
            self._gone(pod)

    # What happens to pods with names of their own, with branch ENIs or without, and to who tells and filters.

    def _step_workload(self, draw: Random) -> None:
        """A pod is made; names come again as those of a StatefulSet do."""
        living = {one.name for one in self.workloads if not one.is_gone}
        free = [name for name in (f"web-{number}" for number in range(12)) if name not in living]
        if free and self.node.is_up:
            workload = Workload(draw.choice(free), draw.random() < 0.7)
            self.workloads.append(workload)
            if workload.wants_branch:
                self.node.controller.bind(workload)
            self._add(draw.choice((5.0, 20.0, 60.0)), workload)

    def _step_forged(self, draw: Random) -> None:
        """The webhook was away: a pod's author wrote the annotation of another one, which lives."""
        known = [one for one in self.workloads if one.given and not one.is_gone and not one.is_forged]
        if known and self.node.is_serving and any(pod.workload is known[-1] for pod in self._live()):
            forged = Workload(f"forged-{len(self.workloads)}", True, known[-1].text, is_forged=True)
            self.workloads.append(forged)
            self._add(20.0, forged)

    def _step_next_sandbox(self, draw: Random) -> None:
        """A pod's sandbox dies, and kubelet makes the next one before, or after, the DEL of that."""
        if live := [pod for pod in self._live() if pod.workload]:
            pod = draw.choice(live)
            self.say(f"the sandbox {pod.name} dies")
            pod.state = "doomed"
            self.node.runtime.run(pod.name, state=SandboxState.NOTREADY)
            if draw.random() < 0.5:
                self._add(20.0, pod.workload)

    def _next_of(self, workload: Workload) -> None:
        """A sandbox is gone: the pod has another one, or it ends too."""
        if workload.is_gone or any(one.workload is workload and one.state != "gone" for one in self.pods.values()):
            return
        if self.world.monotonic() < BEGIN_S + STORM_S and not workload.is_forged and self.world.random.random() < 0.7:
            self.world.at(self.world.monotonic() + 2.0, lambda: self._again(workload))
        else:
            self.node.controller.release(workload)

    def _again(self, workload: Workload) -> None:
        if self.node.is_serving:
            self._add(20.0, workload)
        else:
            self.world.at(self.world.monotonic() + 5.0, lambda: self._next_of(workload))

    def _step_facts(self, draw: Random) -> None:
        self.node.told.is_silent = draw.random() < 0.3
        self.say(f"who tells of pods is {'silent' if self.node.told.is_silent else 'back'}")

    def _step_agent(self, draw: Random) -> None:
        if agent := self.node.agent:
            agent.is_silent, agent.is_cross = draw.random() < 0.3, draw.random() < 0.1
            self.say(f"the agent: silent {agent.is_silent}, cross {agent.is_cross}")

    def _step_agent_forgets(self, draw: Random) -> None:
        """It starts again, and what hangs on links stays."""
        if self.node.agent:
            self.node.agent.known.clear()

    def _step_vlan(self, draw: Random) -> None:
        """Somebody deletes a VLAN link."""
        known = {one.address for one in self.node.datastore.attachments()} if self.node.is_serving else set()
        if vlans := sorted(vlan for vlan, link in self.node.wiring.vlans.items() if link.address in known):
            self.say(f"somebody deletes VLAN link {(vlan := draw.choice(vlans))}")
            self.node.wiring.tear_vlan(vlan)

    def _step_trunk(self, draw: Random) -> None:
        """The trunk's link is out of sight for a while."""
        self.node.wiring.trunks.discard(TRUNK)
        self.world.at(self.world.monotonic() + draw.uniform(5.0, 200.0), lambda: self.node.wiring.trunks.add(TRUNK))

    def _step_kill(self, draw: Random) -> None:
        if self.node.is_up:
            self.node.crash_now("at some moment")

    def _step_kill_in(self, draw: Random) -> None:
        self.node.kill_at, self.node.kill_in = "", draw.randint(1, 25)

    def _step_kill_at(self, draw: Random) -> None:
        """The next time that an ENI is made, or whatever else has failpoints of its own."""
        self.node.kill_at = draw.choice((*KILLED_AT, *(("branch.", "policy.", "agent.", "attach.") if self.has_branches else ())))
        self.node.kill_in = draw.randint(1, 5)

    def _step_lose_datastore(self, draw: Random) -> None:
        if self.node.is_up:
            torn = self.node.wiring.torn
            for pod in self._live():  # of whom the storm took both copies: told of, and stays as it is (docs/security-groups.md)
                given = pod.workload.given if pod.workload and pod.has_branch else None
                if given and torn.get(given[0]) == pod.address:
                    self.say(f"{pod.name} loses its row, and VLAN link {given[0]} is deleted")
                    pod.is_forfeited = True
            self.node.loses_datastore = True
            self.node.crash_now("with its datastore")

    def _step_weather(self, draw: Random) -> None:
        share = lambda most: draw.choice((0.0, 0.0, draw.random() * most))  # noqa: E731
        self.ec2.weather = Weather(
            throttled=share(0.6),
            failed=share(0.3),
            lost=share(0.4),
            partial=draw.choice((0.0, 0.4, 0.9)),
            lag_s=draw.choice((0.0, 0.0, 2.0, 10.0, 40.0, 100.0)),
            is_silent=draw.random() < 0.08,
            latency=draw.choice(((0.1, 0.8), (0.1, 0.8), (2.0, 9.0))),
        )
        self.say(f"{self.ec2.weather}")

    def _step_fair(self, draw: Random) -> None:
        self.ec2.weather = Weather()
        self.say("fair weather")

    def _step_deny(self, draw: Random) -> None:
        self.ec2.weather = replace(self.ec2.weather, refused=frozenset(draw.sample(ACTIONS, draw.choice((1, 1, 3)))))
        self.say(f"denied: {sorted(self.ec2.weather.refused)}")

    def _step_settings(self, draw: Random) -> None:
        pool = self._targets(draw)
        self.say(f"settings: {_differing(pool)}")
        self.world.spawn(lambda: self.node.offer(pool), name="settings")

    def _step_runtime(self, draw: Random) -> None:
        self.node.runtime.is_down = draw.random() < 0.6
        if self.node.runtime.is_down:
            self.node.runtime.break_stream()

    def _step_metadata(self, draw: Random) -> None:
        self.node.is_metadata_silent = draw.random() < 0.6

    def _step_seize_address(self, draw: Random) -> None:
        if self.family.is_sparse:
            if draw.random() < 0.5:
                eni_id = draw.choice(sorted(eni.eni_id for eni in self.ec2.attached() if eni.prefixes) or [PRIMARY])
                self.say(f"others take the prefixes of {eni_id}")
                self._forfeit(addresses_of(self.ec2.enis[eni_id]))
                self.ec2.seize_prefixes(eni_id)
            return
        of_ours = sorted(a for eni in self.ec2.attached() if self._is_ours(eni.eni_id) for a in eni.secondary_addresses)
        if of_ours:
            taken = draw.sample(of_ours, min(draw.choice((1, 1, 3)), len(of_ours)))
            self.say(f"others take {', '.join(map(str, taken))}")
            self._forfeit(taken)
            self.ec2.seize_addresses(taken)

    def _step_seize_eni(self, draw: Random) -> None:
        secondary = sorted(e.eni_id for e in self.ec2.ours() if e.attachment_status == "attached")
        if secondary:
            eni_id, is_deleted = draw.choice(secondary), draw.random() < 0.7
            self.say(f"others detach {eni_id}{' and delete it' if is_deleted else ''}")
            self._forfeit(addresses_of(self.ec2.enis[eni_id]))
            self.ec2.seize_eni(eni_id, is_deleted=is_deleted)
            self.world.at(self.world.monotonic() + 6.0, self.node.forget_links)

    def _step_add_address(self, draw: Random) -> None:
        self.ec2.add_addresses(
            draw.choice(sorted(e.eni_id for e in self.ec2.attached() if self._is_ours(e.eni_id))), draw.randint(1, 3)
        )

    def _step_foreign(self, draw: Random) -> None:
        if eni_id := self.ec2.attach_foreign():
            self.say(f"others attach {eni_id}")

    def _step_others(self, draw: Random) -> None:
        self.ec2.give_to_others(draw.randint(1, 6))

    def _step_routes(self, draw: Random) -> None:
        """Somebody flushes a route, a rule or an ENI's table."""
        wiring = self.node.wiring
        if wiring.routes and draw.random() < 0.5:
            wiring.routes.pop(draw.choice(sorted(wiring.routes, key=lambda one: (one.version, int(one)))), None)
        elif self.node.hostnet.enis:
            self.node.hostnet.enis.pop(draw.choice(sorted(self.node.hostnet.enis)), None)

    def _step_links(self, draw: Random) -> None:
        """A link is out of sight for a while, and its ENI is not detached."""
        links = sorted(e.mac for e in self.ec2.attached() if e.eni_id != PRIMARY and is_of_pool(e))
        if links:
            mac = draw.choice(links)
            self.say(f"the link {mac} is gone for a while")
            self.node.hostnet.unplugged.add(mac)
            self.world.at(self.world.monotonic() + draw.uniform(5.0, 400.0), lambda: self.node.hostnet.unplugged.discard(mac))

    # What must hold.

    def _judge(self) -> None:
        """At each moment: nothing live is lost or shared, and a primary address is nobody's."""
        wired = {spec.key.container_id: spec for spec in [*self.node.wiring.wired.values(), *self.node.wiring.foreign.values()]}
        owner = self.ec2.address_owner()
        held: dict[IpAddress, str] = {}
        for pod in self._live():
            assert pod.address is not None
            if other := held.setdefault(pod.address, pod.name) != pod.name:
                self._violated(f"I1: {pod.name} and {other} have {pod.address}")
            if pod.name not in wired or wired[pod.name].address != pod.address:
                self._violated(f"I2: the wiring of {pod.name} ({pod.address}) is gone")
            if self.node.agent and pod.name not in self.node.agent.filtered:
                self._violated(f"I21: {pod.name} lives, and nothing filters it")
            if slot(pod.address) not in owner and not pod.is_forfeited and not pod.has_branch:
                self._violated(f"I2: {pod.address} of {pod.name} is on no attached ENI, and no other hand took it")
        self._judge_memory()
        primaries = {eni.primary_address for eni in self.ec2.enis.values() if eni.interface_type != "branch"}
        for pod in self._live():
            if pod.address in primaries and not pod.is_forfeited:
                self._violated(f"I6: {pod.name} has the primary address {pod.address}")

    def _judge_memory(self) -> None:
        """What EC2 has had on an ENI of ours all the time stays on record: no answer, and no single silence, takes it away (I11)."""
        try:
            # Of a /80 what is free has no row but that of the rest.
            known = [row for row in self.node.datastore.addresses() if slot(row.address) == row.address]
            rows = {row.address: row.eni_id for row in known} if self.node.is_serving else None
        except RuntimeError:
            rows = None  # somebody is at work in there
        if rows is None:
            return
        owner, life = self.ec2.address_owner(), self.world.life.number
        shown_s = self.world.monotonic() - SHOWN_S
        if life == self._seen_in:
            for address, (eni_id, since_s) in self._seen.items():
                stayed = (
                    owner.get(address) == eni_id
                    and self.ec2.left_at.get(address, 0.0) < since_s
                    and self.ec2.came_at.get(address, 0.0) < shown_s
                )
                if address not in rows and stayed and address not in self.ec2.added:
                    self._violated(f"I11: {address} of {eni_id} is forgotten, and EC2 has had it there all the time")
        now_s = self.world.monotonic()
        self._seen = {address: (eni_id, self._seen.get(address, (eni_id, now_s))[1]) for address, eni_id in rows.items()}
        self._seen_in = life

    def _judge_sound(self, when: str) -> None:
        """When nothing has happened for long: records, kernel and EC2 agree, nothing is left over, and an ADD is served."""
        found: list[str] = []
        self.world.spawn(lambda: found.extend(self.node.audit()), name="audit")
        self._until(self.world.monotonic() + 60.0)
        forfeited = [str(pod.address) for pod in self._live() if pod.is_forfeited]
        found = [one for one in found if not any(f" {address}:" in one for address in forfeited)]
        found += [
            f"{one.name} is without network: {one.cause}: {one.address}"
            for one in self.node.without_network()
            if str(one.address) not in forfeited
        ]
        live = {pod.name: pod.address for pod in self._live()}
        rows = {str(one.key.container_id): one.address for one in self.node.datastore.attachments()}
        kept = {pod.name for pod in self._live() if not pod.is_forfeited}
        lost = {name: address for name, address in live.items() if rows.get(name) != address and name in kept}
        if lost or rows.keys() - live.keys():
            found.append(f"recorded attachments differ: lost {_plain(lost)}, left over {sorted(rows.keys() - live.keys())}")
        if left := sorted({spec.key.container_id for spec in self.node.wiring.wired.values()} - live.keys()):
            found.append(f"wiring of nobody: {left}")
        for pod in self._live():
            is_strict = pod.has_branch and self.node.network.enforcing_mode == "strict"
            if not pod.is_forfeited and not is_strict and self.node.wiring.routes.get(pod.address) is None:  # type: ignore[arg-type]
                found.append(f"no route to {pod.name}")
        found += self._vlans_differ()
        found += self._leaks()
        if when == "after the calm":
            found += self._addresses_differ()
        if found:
            self._violated(f"{when}: {'; '.join(found)}")
            raise Violation(self.outcome.problems[0])

    def _vlans_differ(self) -> list[str]:
        """Each pod with a branch ENI has its VLAN link, and no other is there; who lost it is told of; the agent is owed nothing."""
        if not self.has_branches:
            return []
        given = {
            pod.workload.given[0]: pod.address
            for pod in self._live()
            if pod.workload and pod.workload.given and pod.has_branch and not pod.is_forfeited
        }
        there = {vlan: link.address for vlan, link in self.node.wiring.vlans.items() if not link.is_dying}
        found = [] if given == there else [f"VLAN links: {there}, and pods have {given}"]
        told = {one.address for one in self.node.without_network()}
        if silent := [pod.name for pod in self._live() if pod.has_branch and pod.is_forfeited and pod.address not in told]:
            found.append(f"nobody tells that {silent} are without network")
        if owed := self.node.app.policy.pending_cleanups() if self.node.app.policy else ():
            found.append(f"the agent is owed {sorted(map(str, owed))}")
        return found

    def _leaks(self) -> list[str]:
        recorded = {eni.eni_id for eni in self.node.datastore.enis()}
        found = []
        for eni in self.ec2.ours():
            if not eni.instance_id and eni.eni_id not in self.ec2.seized:
                found.append(f"I9: {eni.eni_id} leaked ({eni.status})")
            elif eni.instance_id and eni.eni_id not in recorded:
                found.append(f"I9: {eni.eni_id} is attached and not recorded")
            elif eni.instance_id and not eni.delete_on_termination:
                found.append(f"I9: {eni.eni_id} would outlive its instance")
        return found

    def _addresses_differ(self) -> list[str]:
        # What a sandbox keeps that lost its network stays on record, with its ENI.
        kept = {pod.address for pod in self._live() if pod.is_forfeited}
        rows = self.node.datastore.addresses()
        if self.family.is_sparse:
            return self._prefixes_differ()
        kept_enis = {row.eni_id for row in rows if row.address in kept}
        recorded = {row.address for row in rows}
        forfeited = {
            row.address for row in rows if row.address in kept or (row.eni_id in kept_enis and row.eni_id not in self.ec2.enis)
        }
        at_ec2 = {a for eni in self.ec2.attached() if self._is_ours(eni.eni_id) for a in addresses_of(eni)}
        # A taken ENI that sandboxes keep on record keeps its primary address too: if EC2 gives us that again it is left alone.
        enis = self.node.datastore.enis()
        primaries = {eni.primary_address for eni in enis if eni.eni_id in kept_enis}
        # An ENI whose primary address is on record as a sandbox's, or as that of a taken ENI, is not recorded itself, and takes its
        # place only.
        known, held = {eni.eni_id for eni in enis}, (kept & recorded) | primaries
        barred = [eni for eni in self.ec2.attached() if eni.eni_id not in known and eni.primary_address in held]
        at_ec2 -= {address for eni in barred for address in addresses_of(eni)}
        # And a /28 that EC2 gives us again while one of its addresses is kept so is not taken in.
        blocks = {IPv4Network((int(row.address) & ~0xF, 28)) for row in rows if row.eni_id in kept_enis}
        again = {address for block in blocks for address in block}
        missing, surplus = sorted(at_ec2 - recorded - primaries - again), sorted(recorded - at_ec2 - forfeited)  # type: ignore[type-var]
        return ([f"at EC2 and not recorded: {_few(missing)}"] if missing else []) + (
            [f"recorded and not at EC2: {_few(surplus)}"] if surplus else []
        )

    def _prefixes_differ(self) -> list[str]:
        """What is recorded of /80s is at EC2, but for what its sandboxes lost; one serves."""
        owner = self.ec2.address_owner()
        serving = {row.address: row.eni_id for row in self.node.datastore.addresses() if row.is_rest}
        found = [f"{rest} serves and is not on {eni_id}" for rest, eni_id in serving.items() if owner.get(rest) != eni_id]
        stray = [
            str(row.address) for row in self.node.datastore.addresses() if not row.is_lost and slot(row.address) not in owner
        ]
        found += [f"recorded and not at EC2: {_few(stray)}"] if stray else []
        return found if serving else [*found, "no /80 serves"]

    def _probe(self) -> bool:
        """Whether an ADD is served now, if the node has room."""
        limits = self.ec2.limits
        count = limits.eni_count - self.ec2.foreign_count - self.has_branches
        room = count * limits.slots_per_eni - len(self._live())
        if room < 4:
            return True
        before = len(self._live())
        self._add()
        self._until(self.world.monotonic() + 90.0)
        live = self._live()
        return len(live) > before

    def _is_healthy(self) -> bool:
        """Whether the node says so."""
        conditions = self.node.health.conditions_by_subject()
        self.say(f"conditions: {dict(conditions)}")
        return not conditions

    # Small things.

    def _violated(self, sentence: str) -> None:
        if sentence not in self.outcome.problems:
            self.say(f"VIOLATION {sentence}")
            self.outcome.problems.append(sentence)

    def _note_hour(self, state: str, counted: Counter[str]) -> None:
        worst = self.outcome.hourly.setdefault(state, Counter())
        for method, count in counted.items():
            worst[method] = max(worst[method], count)

    def _live(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.state == "live"]

    def _is_ours(self, eni_id: str) -> bool:
        """Whether an ENI is the pool's: those of others without a tag are adopted."""
        tags = self.ec2.enis[eni_id].tags  # type: ignore[index]
        if not is_of_pool(self.ec2.enis[eni_id]):  # type: ignore[index]
            return False
        return tags.get(NO_MANAGE_TAG) != "true" and tags.get(INSTANCE_TAG, INSTANCE) == INSTANCE

    def _forfeit(self, addresses: Collection[IpAddress]) -> None:
        for pod in self.pods.values():
            if pod.address is not None and slot(pod.address) in addresses and pod.state != "gone":
                pod.is_forfeited = True

    def _migrate(self, draw: Random) -> None:
        """amazon-vpc-cni-k8s was here before us, and its pods run."""
        self.ec2.add_addresses(PRIMARY, self.ec2.limits.slots_per_eni)
        for number in range(draw.randint(1, 5)):
            address = self.node.wire_theirs(name := f"theirs{number}")
            if address is not None:
                self.pods[name] = Pod(name, "live", address)
                self.say(f"{name} comes over with {address}")

    def _targets(self, draw: Random) -> PoolConfig:
        hold_s = draw.choice((60, 600, 3600))
        common = PoolConfig(release_hold_s=hold_s, spare_eni_delay_s=draw.choice((0, 30)))
        return draw.choice(
            (
                common,
                replace(common, warm_ip_target=draw.randint(1, 6)),
                replace(common, warm_ip_target=2, minimum_ip_target=draw.randint(4, 16)),
                replace(common, prefix_delegation=True),
                replace(common, prefix_delegation=True, warm_prefix_target=draw.randint(1, 2)),
                replace(common, prefix_delegation=True, warm_ip_target=5),
                replace(common, warm_target="auto"),
                replace(common, warm_eni_target=0),
            )
        )


def assert_sound(seed: int, *, family: Family = IPV4, has_branches: bool = False) -> None:
    """Play a seed: I1, I2, I6 to I9, I11 and I13 hold, and no state that lasts costs more than six calls of a kind an hour; with
    branch ENIs and a policy agent I19 and I21 too.
    """
    outcome = run(seed, family=family, has_branches=has_branches)
    assert not outcome.problems, told(outcome)
    assert outcome.kills > 3, "the storm kills"


def told(outcome: Outcome) -> str:
    """What went wrong, and what had happened before."""
    lines = [f"seed {outcome.seed}: {'; '.join(outcome.problems)}", *outcome.trace[-120:]]
    return "\n".join([*lines, f"again: python -m tests.property.graph --seeds {outcome.seed} --shrink 60"])


def _differing(pool: PoolConfig) -> str:
    default = PoolConfig()
    changed = [f"{name}={value}" for name, value in vars(pool).items() if value != getattr(default, name)]
    return ", ".join(changed) or "defaults"


def _plain(addresses: dict[str, IpAddress | None]) -> dict[str, str]:
    return {name: str(address) for name, address in addresses.items()}


def _few(addresses: Sequence[object]) -> str:
    return ", ".join(map(str, addresses[:6])) + (f" and {len(addresses) - 6} more" if len(addresses) > 6 else "")


def run(
    seed: int,
    *,
    steps: Sequence[Step] | None = None,
    state: str | None = None,
    is_short: bool = False,
    family: Family = IPV4,
    has_branches: bool = False,
) -> Outcome:
    """Play one seed, of a pool of `family`. `steps`, `state`: others than its own; `is_short`: only the storm and the calm."""
    random.seed(seed)
    world, shm = World(seed), Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="graph-", dir=shm if shm.is_dir() else None))
    was_disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # The plugin alone reads the mark, and is not here: it would be a tenth of the time.
        with installed(world), mock.patch.object(ServedMark, "leave"):
            made = Run(
                world,
                seed,
                directory / "node",
                steps=script(seed, has_branches=has_branches) if steps is None else steps,
                state=STATES[seed % len(STATES)] if state is None else state,
                family=family,
                has_branches=has_branches,
            )
            try:
                made.is_short = is_short
                made.play()
            except Violation as violation:
                if not made.outcome.problems:
                    made.outcome.problems.append(str(violation))
                    made.say(f"VIOLATION {violation}")
            return made.finish()
    finally:
        logging.disable(was_disabled)
        shutil.rmtree(directory, ignore_errors=True)
