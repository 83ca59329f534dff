"""The plan of a run, made before it starts: a seed becomes a sequence of timed events, which can be written as JSON.

Pure. An event names what to do and a random number (`pick` in [0, 1)), never an address: addresses are known only during the run.
Every event can stand alone (removing an absent pod does nothing), so any subset of a plan is a plan; shrinking depends on it.
Rejected: drawing events during the run, because a slow machine would then change the plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any

from lab.chaos.lies import HANDS, IPV6_HANDS, other_hands, standing_conditions
from lab.chaos.nemesis import cloud_fault, ipv6_fault
from lab.chaos.pair import NETWORK_FILE
from lab.chaos.wishes import DEFAULT_NAMESPACE, KEEPING, KEPT_MAX_S, OWN, POOLS, RANGES, TAKING
from lab.vpc.family import IPV6

NODES = ("node-a", "node-b")
IPV6_NODE = "node-c"
POLICY_NODE = "node-p"
BRANCH_NODE = "node-s"
PAIR_NODES = ("node-m", "node-n")
"""Between which pods move with their addresses, and which have pools of pods."""

COOLDOWN_S = 5
"""Ours: short enough that addresses come round again and again within a run; the default of 30 s would hide reuse."""

RELEASE_HOLD_S = 3
"""Ours: shorter than most lives of a daemon in a run; each waits for a whole window, and the pool is to release many times."""

PODS_MOST = 16
"""Ours, per node: two ENIs of an m5.large are needed for them, and two cores can keep them running."""

POD_GAP_S = 1.4
NEMESIS_GAP_S = 3.5
"""Mean seconds between two pod events of a node, and between two events of the nemesis. Ours: a sandbox takes 0.3 s of a core here, a
restart of the daemon a second; the machine must be busy and not late."""

CALM_EVERY_S, CALM_S = 300.0, 120.0
"""At the end of every five minutes two in which nothing is killed and the cloud does not fail: only then can a daemon notice by
itself what other hands did, which takes up to 90 s (lab/chaos/book.py). Nodes that hands leave alone have none."""

CLOCK_STEPS_S = (-3600, -600, -90, 45, 600, 3600)


class Kind(StrEnum):
    """Kinds of events. The first two are the kubelet's, the rest the nemesis's."""

    RUN_POD = "run-pod"
    REMOVE_POD = "remove-pod"
    KILL_DAEMON = "kill-daemon"
    STOP_DAEMON = "stop-daemon"
    ARM_FAILPOINT = "arm-failpoint"
    LOSE_DATASTORE = "lose-datastore"
    KILL_RUNTIME = "kill-runtime"
    CLOUD_FAULT = "cloud-fault"
    DELETE_WIRING = "delete-wiring"
    STEP_CLOCK = "step-clock"
    OTHER_HANDS = "other-hands"
    DISTURB_AGENT = "disturb-agent"
    DISTURB_CONTROL = "disturb-control"
    MOVE_POD = "move-pod"


WEIGHTS: Mapping[Kind, float] = {
    Kind.KILL_DAEMON: 5,
    Kind.STOP_DAEMON: 2,
    Kind.ARM_FAILPOINT: 6,
    Kind.LOSE_DATASTORE: 0.7,
    Kind.KILL_RUNTIME: 2,
    Kind.CLOUD_FAULT: 6,
    Kind.DELETE_WIRING: 4,
    Kind.STEP_CLOCK: 2,
    Kind.OTHER_HANDS: 3,
}
"""Ours; each seed multiplies every weight by 0.5 to 2, so that seeds differ in kind and not only in order."""

POLICY_WEIGHTS: Mapping[Kind, float] = {
    kind: weight
    for kind, weight in {**WEIGHTS, Kind.DISTURB_AGENT: 14.0}.items()
    if kind not in (Kind.CLOUD_FAULT, Kind.OTHER_HANDS)
}
"""The cloud's faults are all nodes', and drawn already."""

POLICY_PODS = 6
"""Ours: names that come again and again, and of replicas, so that a name has a predecessor and programs are shared."""

POLICY_FAILPOINTS = ("policy.", "attach.", "detach.", "adopt.", "restore.")
"""How failpoints begin that a kill between the agent and us can hit, or what comes of it; no other node arms those of the first."""


BRANCH_WEIGHTS: Mapping[Kind, float] = {
    kind: weight
    for kind, weight in {**WEIGHTS, Kind.DISTURB_CONTROL: 10.0}.items()
    if kind not in (Kind.CLOUD_FAULT, Kind.OTHER_HANDS)
}

POOL_PODS = 4
"""Ours, of each pool and node: more than one ENI has addresses."""

BRANCH_PODS = 10
"""Ours: names that come again and again, one more than the branches of the type, so that a trunk is full now and then."""

BRANCH_FAILPOINTS = ("branch.", "attach.", "detach.", "adopt.", "restore.", "kernel.")
"""How failpoints begin that a kill at the wiring of a branch can hit, or what comes of it."""

PAIR_WEIGHTS: Mapping[Kind, float] = {
    kind: weight for kind, weight in WEIGHTS.items() if kind not in (Kind.CLOUD_FAULT, Kind.OTHER_HANDS)
}

PAIR_FAILPOINTS = ("pinned.", "attach.", "detach.", "adopt.", "restore.", "growth.", "release.")

MOVE_GAP_S = 5.0
"""Mean seconds between two moves. Ours: most moves end before their pod is moved again."""

MOVING_PODS = (*(f"{KEEPING}-{number}" for number in range(4)), *(f"{TAKING}-{number}" for number in range(3)))

MOVES: Mapping[str, Mapping[str, float]] = {
    KEEPING: {"delete": 4, "kill": 3, "stop": 2, "rival": 2, "end": 1},
    TAKING: {"delete": 2, "kill": 2, "stop": 1, "cut": 3, "take": 4, "end": 1},
}
"""Weights of the ways in which pods of a namespace move (lab/chaos/mover.py). Ours: an ordinary delete is the most frequent move of
KEEPING, as in a cluster; `cut` and `take` are for TAKING alone, so they are half of its moves."""

CALM_KINDS = frozenset({Kind.OTHER_HANDS, Kind.DELETE_WIRING, Kind.STEP_CLOCK})


@dataclass(frozen=True)
class Event:
    """One thing to do `at_s` seconds after the beginning. `node` is empty for what concerns the cloud."""

    at_s: float
    kind: Kind
    node: str = ""
    args: Mapping[str, Any] | None = None

    def arg(self, name: str, default: Any = None) -> Any:
        """One argument."""
        return (self.args or {}).get(name, default)

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in (self.args or {}).items())
        return f"{self.at_s:7.2f} {self.node or 'cloud':<7} {self.kind} {words}".rstrip()


@dataclass(frozen=True)
class _Draw:
    """How the nemesis' events are drawn: of which nodes, how many seconds apart in the mean, and what is done to cloud and ENIs."""

    nodes: Sequence[str]
    gap_s: float
    fault: Callable[[Random], dict[str, Any]]
    hands: Mapping[str, float]
    wiring: Sequence[str]
    weights: Mapping[Kind, float]


@dataclass(frozen=True)
class Plan:
    """A whole run. `env`: settings of each node's daemon; `cloud`: what is wrong with the cloud all the time, as a fault spec."""

    seed: int
    duration_s: float
    env: Mapping[str, Mapping[str, str]]
    events: tuple[Event, ...]
    cloud: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the run."""
        return tuple(self.env)

    def with_events(self, events: Sequence[Event]) -> Plan:
        """The same run with other events."""
        return replace(self, events=tuple(events))

    def to_json(self) -> str:
        """Write it for `--replay`."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote. Raises: ValueError, KeyError for anything else."""
        raw = json.loads(text)
        events = tuple(Event(one["at_s"], Kind(one["kind"]), one["node"], one["args"]) for one in raw["events"])
        return cls(int(raw["seed"]), float(raw["duration_s"]), raw["env"], events, raw.get("cloud", {}))


def make_plan(
    seed: int,
    *,
    minutes: float,
    failpoints: Sequence[str],
    ipv6: bool = True,
    policy: bool = False,
    branch: bool = False,
    moves: bool = False,
    pools: bool = False,
) -> Plan:
    """Draw a run.

    Args:
        ipv6: whether a third node has IPv6, and the second one egress of IPv6 with some seeds. It has dice of its own: what happens to
            the two nodes of a seed is the same without it.
        policy: whether one more node has a policy agent. It has dice of its own too.
        branch: whether one more node has a trunk, and pods with security groups beside others. So has it.
        moves, pools: whether there is a pair of nodes more, between which pods move with their addresses, or which have pools of pods.
            So has it, and moves have dice of their own beside pools.
        minutes: above 0; how long events come. Settling and the last audit take longer.
        failpoints: n >= 1 names, in any order.
    Returns: events ascending in time; the same arguments give the same plan.
    """
    rng = Random(seed)
    duration_s = minutes * 60
    events: list[Event] = []
    for node in NODES:
        events += _pods(Random(rng.random()), node, duration_s)
    names = sorted(name for name in set(failpoints) if not name.startswith(POLICY_FAILPOINTS[0]))
    events += _nemesis_events(Random(rng.random()), duration_s, names, _IPV4_DRAW)
    env = {node: _env(rng) for node in NODES}
    cloud = standing_conditions(Random(rng.random()))
    if ipv6:
        own = Random(f"{seed} {IPV6_NODE}")
        events += _pods(Random(own.random()), IPV6_NODE, duration_s, gap_s=2 * POD_GAP_S, most=PODS_MOST // 2)
        events += _nemesis_events(Random(own.random()), duration_s, names, _IPV6_DRAW)
        env[IPV6_NODE] = _ipv6_env(own)
        env[NODES[-1]] = env[NODES[-1]] | {"ENABLE_V6_EGRESS": own.choice(("true", "false"))}
    for is_on, more in ((policy, _policy_node), (branch, _branch_node)):
        if is_on:
            events += more(seed, duration_s, failpoints, env)
    if moves or pools:
        events += _pair(seed, duration_s, failpoints, env, moves=moves, pools=pools)
    return Plan(seed, duration_s, env, tuple(sorted(events, key=lambda event: event.at_s)), cloud)


def _policy_node(seed: int, duration_s: float, failpoints: Sequence[str], env: dict[str, dict[str, str]]) -> list[Event]:
    """Draw the events of the node with a policy agent, and add its settings to `env`."""
    own = Random(f"{seed} {POLICY_NODE}")
    events = _pods_of_few_names(Random(own.random()), POLICY_NODE, duration_s)
    near = sorted(name for name in set(failpoints) if name.startswith(POLICY_FAILPOINTS))
    events += _nemesis_events(Random(own.random()), duration_s, near, _POLICY_DRAW)
    env[POLICY_NODE] = _env(own) | {"VPC_IPAMD_POD_VETH_NAMES": "true", "NETWORK_POLICY_ENFORCING_MODE": "standard"}
    return events


def _branch_node(seed: int, duration_s: float, failpoints: Sequence[str], env: dict[str, dict[str, str]]) -> list[Event]:
    """Draw the events of the node with a trunk, and add its settings to `env`."""
    own = Random(f"{seed} {BRANCH_NODE}")
    apps = ("sg-db", "sg-web", "web")
    events = _pods_of_few_names(Random(own.random()), BRANCH_NODE, duration_s, apps=apps, most=BRANCH_PODS // 2)
    near = sorted(name for name in set(failpoints) if name.startswith(BRANCH_FAILPOINTS))
    events += _nemesis_events(Random(own.random()), duration_s, near, _BRANCH_DRAW)
    env[BRANCH_NODE] = _branch_env(own)
    return events


def _pair(
    seed: int, duration_s: float, failpoints: Sequence[str], env: dict[str, dict[str, str]], *, moves: bool, pools: bool
) -> list[Event]:
    """Draw the events of the pair of nodes with moves or pools, and add their settings to `env`."""
    own = Random(f"{seed} {PAIR_NODES}")
    near = sorted(name for name in set(failpoints) if name.startswith(PAIR_FAILPOINTS))
    events = _nemesis_events(Random(own.random()), duration_s, near, _PAIR_DRAW)
    env |= {node: _pair_env(own, moves=moves, pools=pools) for node in PAIR_NODES}
    if moves:
        events += _moves(Random(f"{seed} moves"), duration_s)
    for node in PAIR_NODES if pools else ():
        events += _pods_of_few_names(Random(f"{seed} pools {node}"), node, duration_s, apps=(*POOLS, OWN), most=POOL_PODS)
    return events


def _env(rng: Random) -> dict[str, str]:
    """Small targets and a short hold, so that the pool grows and releases in many steps and EC2 is asked often; one node in three
    uses prefixes, and one in two has fewer addresses than pods now and then, so that addresses are given again as soon as they have
    cooled."""
    env = _common_env()
    if rng.random() < 1 / 2:
        env["VPC_IPAMD_MAX_PODS"] = str(rng.randint(PODS_MOST // 2, PODS_MOST - 4))
    if rng.random() < 1 / 3:
        return env | {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}
    return env | {"WARM_IP_TARGET": str(rng.randint(1, 3)), "MINIMUM_IP_TARGET": str(rng.randint(0, 6))}


def _ipv6_env(rng: Random) -> dict[str, str]:
    """A pool that is never empty; one node in four is without egress."""
    return {**_common_env(), **IPV6.settings, "ENABLE_V4_EGRESS": rng.choice(("true", "true", "true", "false"))}


def _branch_env(rng: Random) -> dict[str, str]:
    """Either mode, and what the pod needs from annotations or from kubelet."""
    mode = rng.choice(("strict", "standard"))
    return _env(rng) | {
        "ENABLE_POD_ENI": "true",
        "POD_SECURITY_GROUP_ENFORCING_MODE": mode,
        "DISABLE_TCP_EARLY_DEMUX": str(mode == "strict").lower(),
        "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": rng.choice(("annotations", "kubelet")),
    }


def _pair_env(rng: Random, *, moves: bool, pools: bool) -> dict[str, str]:
    """Single addresses only: an ENI that is full of prefixes has no slot for an address that a pod names."""
    env = _common_env() | {"WARM_IP_TARGET": str(rng.randint(1, 3)), "MINIMUM_IP_TARGET": str(rng.randint(0, 6))}
    if moves:
        env["VPC_IPAMD_PINNED_ADDRESSES"] = ",".join(f"{namespace}={cidr}" for namespace, cidr in RANGES.items())
        env["VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES"] = TAKING
        env["VPC_IPAMD_PINNED_ADDRESS_KEEP_SECONDS"] = str(KEPT_MAX_S)
    if pools:
        env["VPC_IPAMD_NETWORK_FILE"] = NETWORK_FILE
        env["VPC_IPAMD_POOL_ANNOTATION_NAMESPACES"] = ",".join(f"{DEFAULT_NAMESPACE}={pool}" for pool in POOLS)
    return env


def _common_env() -> dict[str, str]:
    return {
        "IP_COOLDOWN_PERIOD": str(COOLDOWN_S),
        "VPC_IPAMD_DRAIN_SECONDS": "2",
        "CLUSTER_NAME": "chaos",
        "VPC_IPAMD_RELEASE_HOLD_SECONDS": str(RELEASE_HOLD_S),
    }


def _pods(rng: Random, node: str, duration_s: float, *, gap_s: float = POD_GAP_S, most: int = PODS_MOST) -> list[Event]:
    """Draw the kubelet's events: the number of pods drifts towards a target that changes now and then."""
    events: list[Event] = []
    pods: list[str] = []
    at_s, wish, number = 0.0, rng.randint(4, most), 0
    while (at_s := at_s + rng.expovariate(1 / gap_s)) < duration_s:
        if rng.random() < 0.04:
            wish = rng.randint(1, most)
        if pods and rng.random() < (0.3 if len(pods) < wish else 0.7):
            pod = pods.pop(rng.randrange(len(pods)))
            events.append(Event(round(at_s, 2), Kind.REMOVE_POD, node, {"pod": pod}))
        else:
            number += 1
            pods.append(f"p{number}")
            events.append(Event(round(at_s, 2), Kind.RUN_POD, node, {"pod": pods[-1]}))
    return events


def _pods_of_few_names(
    rng: Random, node: str, duration_s: float, *, apps: Sequence[str] = ("web", "db"), most: int = POLICY_PODS
) -> list[Event]:
    """The same of replicas and stateful sets: each name is run and removed in turn."""
    events: list[Event] = []
    running: set[str] = set()
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / (2 * POD_GAP_S))) < duration_s:
        pod = f"{rng.choice(apps)}-{rng.randrange(most)}"
        kind = Kind.REMOVE_POD if pod in running else Kind.RUN_POD
        running ^= {pod}
        events.append(Event(round(at_s, 2), kind, node, {"pod": pod}))
    return events


def _moves(rng: Random, duration_s: float) -> list[Event]:
    """Draw the moves of pods with addresses that stay. The mover knows where each pod is, and runs one that is nowhere."""
    events: list[Event] = []
    at_s = 1.0
    for pod in MOVING_PODS:
        events.append(_move(rng, at_s, pod))
        at_s += 0.5
    while (at_s := at_s + rng.expovariate(1 / MOVE_GAP_S)) < duration_s:
        events.append(_move(rng, at_s, rng.choice(MOVING_PODS)))
    return events


def _move(rng: Random, at_s: float, pod: str) -> Event:
    weights = MOVES[pod.partition("-")[0]]
    how = rng.choices(list(weights), list(weights.values()))[0]
    return Event(round(at_s, 2), Kind.MOVE_POD, "", {"pod": pod, "how": how, "for_s": round(rng.uniform(2, 14), 2)})


def _nemesis_events(rng: Random, duration_s: float, failpoints: Sequence[str], draw: _Draw) -> list[Event]:
    names_rng = Random(rng.random())  # its own: a new failpoint changes no other event of a seed
    weights = {kind: weight * rng.uniform(0.5, 2) for kind, weight in draw.weights.items()}
    events: list[Event] = []
    unused: list[str] = []
    at_s = 3.0
    while (at_s := at_s + rng.expovariate(1 / draw.gap_s)) < duration_s:
        is_calm = Kind.OTHER_HANDS in weights and at_s % CALM_EVERY_S > CALM_EVERY_S - CALM_S
        drawn = {kind: weight for kind, weight in weights.items() if kind in CALM_KINDS or not is_calm}
        kind = rng.choices(list(drawn), list(drawn.values()))[0]
        if kind is Kind.ARM_FAILPOINT and not unused:
            unused = names_rng.sample(failpoints, len(failpoints))  # every name has its turn before one comes again
        args = _ARGUMENTS[kind](rng, unused, draw)
        node = "" if kind is Kind.CLOUD_FAULT else rng.choice(draw.nodes)
        events.append(Event(round(at_s, 2), kind, node, args))
    return events


def _down(rng: Random, _: list[str], __: _Draw) -> dict[str, Any]:
    # one death in four is long: the DELs of that time go into the spool
    return {"down_s": round(rng.uniform(0, 5) if rng.random() < 0.75 else rng.uniform(5, 10), 2)}


def _armed(rng: Random, unused: list[str], _: _Draw) -> dict[str, Any]:
    name = unused.pop()
    # replay needs DELs that were spooled meanwhile, adoption a datastore that was lost; growth is made to happen by the player
    least_s = 4.0 if name.startswith("restore.") else 0.0
    count = rng.choice((1, 1, 2, 3))
    if name.startswith(("adopt.", "growth.", "release.")):
        count = 1  # these come once or twice in the record of a process
    return {"name": name, "count": count, "down_s": round(least_s + rng.uniform(0, 2), 2), "lose": name.startswith("adopt.")}


def _wiring(rng: Random, _: list[str], draw: _Draw) -> dict[str, Any]:
    return {"what": rng.choice(draw.wiring), "pick": round(rng.random(), 4)}


AGENT_DEEDS = ("kill", "restart", "upgrade", "forget", "slow", "silence", "refuse", "refuse-delete")


def _agent(rng: Random, _: list[str], __: _Draw) -> dict[str, Any]:
    """What is done to the agent, and for how long; how slow it is, in seconds: as often as not slower than anybody waits for it."""
    return {"what": rng.choice(AGENT_DEEDS), "for_s": round(rng.uniform(0.5, 8), 2), "slow_s": round(rng.uniform(0.2, 4), 2)}


CONTROL_DEEDS = (
    "slow",
    "die",
    "mistell",
    "forget-annotations",
    "forget-ends",
    "kubelet-starts",
    "kubelet-slow",
    "kubelet-dies",
)


def _control(rng: Random, _: list[str], __: _Draw) -> dict[str, Any]:
    """What is done to the control plane of branch ENIs, and for how long; how slow it is, in seconds."""
    return {"what": rng.choice(CONTROL_DEEDS), "for_s": round(rng.uniform(0.5, 8), 2), "slow_s": round(rng.uniform(0.2, 4), 2)}


_ARGUMENTS: Mapping[Kind, Callable[[Random, list[str], _Draw], dict[str, Any]]] = {
    Kind.KILL_DAEMON: _down,
    Kind.STOP_DAEMON: _down,
    Kind.LOSE_DATASTORE: _down,
    Kind.KILL_RUNTIME: lambda rng, _, __: {"down_s": round(rng.uniform(0, 4), 2)},
    Kind.ARM_FAILPOINT: _armed,
    Kind.CLOUD_FAULT: lambda rng, _, draw: draw.fault(rng),
    Kind.DELETE_WIRING: _wiring,
    Kind.OTHER_HANDS: lambda rng, _, draw: other_hands(rng, draw.hands),
    Kind.STEP_CLOCK: lambda rng, _, __: {"offset_s": rng.choice(CLOCK_STEPS_S)},
    Kind.DISTURB_AGENT: _agent,
    Kind.DISTURB_CONTROL: _control,
}

_IPV4_DRAW = _Draw(NODES, NEMESIS_GAP_S, cloud_fault, HANDS, ("to-rule", "from-rule", "route", "nft"), WEIGHTS)
_IPV6_DRAW = _Draw((IPV6_NODE,), 2 * NEMESIS_GAP_S, ipv6_fault, IPV6_HANDS, ("to-rule", "route", "egress-route", "nft"), WEIGHTS)
_POLICY_DRAW = _Draw((POLICY_NODE,), NEMESIS_GAP_S, cloud_fault, HANDS, ("to-rule", "from-rule", "route"), POLICY_WEIGHTS)
_BRANCH_DRAW = _Draw(
    (BRANCH_NODE,), NEMESIS_GAP_S, cloud_fault, HANDS, ("to-rule", "from-rule", "route", "vlan-link", "nft"), BRANCH_WEIGHTS
)
_PAIR_DRAW = _Draw(PAIR_NODES, 2 * NEMESIS_GAP_S, cloud_fault, HANDS, ("to-rule", "from-rule", "route", "nft"), PAIR_WEIGHTS)
