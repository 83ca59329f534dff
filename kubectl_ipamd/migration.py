"""Plan how nodes change hands between amazon-vpc-cni-k8s and vpc-ipamd: in which order, and by which commands. Pure.

Nothing here changes a cluster: a plan is text for a person. Each batch ends with a rule that stops the rest.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubectl_ipamd.cluster import ZONE_LABEL
from kubectl_ipamd.placement import is_for_node

OTHER = "aws-node"
"""The DaemonSet of amazon-vpc-cni-k8s, and its namespace below. Source: amazon-vpc-cni-k8s config/master/aws-k8s-cni.yaml."""

OTHER_NAMESPACE = "kube-system"

BATCH_SHARE = 0.1
"""Of the nodes, in one batch. Ours: what a fleet can lose without noticing, if a batch goes wrong."""

SETTLE_S = 20
"""Until both DaemonSets have noticed a label. Ours: their controller takes a second or two."""

TERM_PATH = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/{}"


@dataclass(frozen=True)
class Choices:
    """What the operator chose.

    Args:
        label: what both DaemonSets look at, its key and value.
        batch: nodes in one batch; 0: a tenth of them.
        canary: nodes that go alone before all others.
        soak_minutes: how long the canary is watched.
        kubectl: words of kubectl with the options of the call.
        plugin: words of this plugin with them.
    """

    label: tuple[str, str]
    batch: int
    canary: int
    soak_minutes: int
    kubectl: tuple[str, ...] = ("kubectl",)
    plugin: tuple[str, ...] = ("kubectl", "ipamd")


@dataclass(frozen=True)
class MigrationNode:
    """A node as the API server has it. `image`: of the daemon's pod on it; "" if there is none."""

    name: str
    labels: Mapping[str, str]
    is_ready: bool
    image: str = ""

    @property
    def zone(self) -> str:
        """Its zone, "" if no label names it."""
        return self.labels.get(ZONE_LABEL, "")


@dataclass(frozen=True)
class DaemonSets:
    """Both DaemonSets, as the API server has them; None if one is not there. `namespace`: of ours."""

    ours: Mapping[str, Any] | None
    other: Mapping[str, Any] | None
    namespace: str


@dataclass(frozen=True)
class MigrationStep:
    """Commands to be run in order. `nodes`: those that change hands in it."""

    title: str
    commands: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MigrationPlan:
    """`problems`: what must be mended before the first step. `done`: nodes that need no step. `skipped`: those that can take none."""

    steps: tuple[MigrationStep, ...]
    problems: tuple[str, ...]
    done: tuple[str, ...]
    skipped: tuple[str, ...]


def plan_over(nodes: Iterable[MigrationNode], daemonsets: DaemonSets, choices: Choices) -> MigrationPlan:
    """Plan how nodes come over from amazon-vpc-cni-k8s. Zone by zone, so that a mistake concerns one zone."""
    done, skipped, waiting = _sorted_nodes(nodes, daemonsets, choices)
    steps = _steps_over(waiting, daemonsets, choices)
    return MigrationPlan(tuple(steps), _problems(daemonsets, choices), tuple(done), tuple(skipped))


def _sorted_nodes(
    nodes: Iterable[MigrationNode], daemonsets: DaemonSets, choices: Choices
) -> tuple[list[str], list[str], list[MigrationNode]]:
    """Return the names of nodes that have come over, of those that cannot, and the nodes that wait, zone by zone."""
    key, value = choices.label
    done, skipped, waiting = [], [], []
    for node in sorted(nodes, key=lambda node: (node.zone, node.name)):
        if node.labels.get(key) == value:
            done.append(node.name)
        elif not (node.is_ready and _would_be_on(daemonsets.ours, node, {key: value})):
            skipped.append(node.name)
        else:
            waiting.append(node)
    return done, skipped, waiting


def _steps_over(waiting: Sequence[MigrationNode], daemonsets: DaemonSets, choices: Choices) -> list[MigrationStep]:
    """Return the steps by which the waiting nodes come over: the affinity if it is needed, the canary, then the batches."""
    key, value = choices.label
    steps = []
    example = waiting[0] if waiting else None
    if example is not None and _would_be_on(daemonsets.other, example, {key: value}):
        steps.append(
            MigrationStep(
                f"keep {OTHER} off nodes with the label; this restarts it on the others", _affinity_patch(daemonsets, choices)
            )
        )
    canary = [node.name for node in waiting[: choices.canary]]
    if canary:
        steps.append(
            MigrationStep(
                "canary", tuple(_over_commands(canary, daemonsets, choices, soak_minutes=choices.soak_minutes)), tuple(canary)
            )
        )
    for zone, names in _batches(waiting[choices.canary :], choices.batch or _tenth(len(waiting))):
        steps.append(
            MigrationStep(f"batch in {zone or 'no zone'}", tuple(_over_commands(names, daemonsets, choices)), tuple(names))
        )
    return steps


def plan_back(nodes: Iterable[MigrationNode], daemonsets: DaemonSets, choices: Choices) -> MigrationPlan:
    """Plan how nodes go back to amazon-vpc-cni-k8s, one after the other: each is exported by its own daemon."""
    key, value = choices.label
    steps, done, skipped = [], [], []
    for node in sorted(nodes, key=lambda node: (node.zone, node.name)):
        if node.labels.get(key) != value:
            done.append(node.name)
        elif not node.image:
            skipped.append(node.name)
        else:
            steps.append(MigrationStep("back", tuple(_back_commands(node, choices)), (node.name,)))
    problems = (
        ()
        if daemonsets.other is not None
        else (f"there is no DaemonSet {OTHER} in {OTHER_NAMESPACE}: nobody would serve the nodes",)
    )
    return MigrationPlan(tuple(steps), problems, tuple(done), tuple(skipped))


def script(plan: MigrationPlan) -> str:
    """Write a plan as a script of a shell, which stops at the first command that fails."""
    lines = ["#!/bin/sh", "# Nothing of this was executed. Read it; then run it as a whole or step by step.", "set -eu"]
    lines += [f"# BEFORE THE FIRST STEP: {problem}" for problem in plan.problems]
    if plan.problems:
        lines.append("exit 1  # delete this line when it is mended")
    for title, names in (("have changed hands already", plan.done), ("cannot now, and are left out", plan.skipped)):
        if names:
            lines.append(f"# {len(names)} {title}: {' '.join(names)}")
    for number, step in enumerate(plan.steps, 1):
        lines += ["", f"# {number}. {step.title}{': ' if step.nodes else ''}{' '.join(step.nodes)}", *step.commands]
    return "\n".join(lines)


def _problems(daemonsets: DaemonSets, choices: Choices) -> tuple[str, ...]:
    key, value = choices.label
    problems = []
    if daemonsets.ours is None:
        problems.append(
            f"there is no DaemonSet of vpc-ipamd in {daemonsets.namespace}: install it with nodeSelector {key}={value}"
        )
    elif (_pod_spec(daemonsets.ours).get("nodeSelector") or {}).get(key) != value and _would_be_on(
        daemonsets.ours, MigrationNode("", {"kubernetes.io/os": "linux"}, is_ready=True), {}
    ):
        problems.append(f"the DaemonSet of vpc-ipamd does not wait for the label {key}={value}: set its nodeSelector")
    if daemonsets.other is None:
        problems.append(f"there is no DaemonSet {OTHER} in {OTHER_NAMESPACE}: nothing to come over from")
    return tuple(problems)


def _pod_spec(daemonset: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


def _would_be_on(daemonset: Mapping[str, Any] | None, node: MigrationNode, more: Mapping[str, str]) -> bool:
    """Whether the DaemonSet is for the node once it has more labels. One that is not there is for each: a problem says so already."""
    if daemonset is None:
        return True
    return is_for_node(_pod_spec(daemonset), name=node.name, labels={**node.labels, **more})


def _affinity_patch(daemonsets: DaemonSets, choices: Choices) -> tuple[str, ...]:
    """The commands of docs/install.md, for each of the terms, of which one is enough for a node."""
    affinity = (_pod_spec(daemonsets.other).get("affinity") or {}).get("nodeAffinity") or {} if daemonsets.other else {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    expression = f'{{"key": "{choices.label[0]}", "operator": "DoesNotExist"}}'
    operations = [
        f'{{"op": "add", "path": "{TERM_PATH.format(number)}/matchExpressions/-", "value": {expression}}}'
        for number in range(len(terms))
    ]
    if not operations:
        path = "/spec/template/spec/affinity"
        required = f'{{"nodeSelectorTerms": [{{"matchExpressions": [{expression}]}}]}}'
        value = f'{{"nodeAffinity": {{"requiredDuringSchedulingIgnoredDuringExecution": {required}}}}}'
        operations = [f'{{"op": "add", "path": "{path}", "value": {value}}}']
    patch = ["-n", OTHER_NAMESPACE, "patch", "daemonset", OTHER, "--type", "json", "--patch", f"[{', '.join(operations)}]"]
    wait = ["-n", OTHER_NAMESPACE, "rollout", "status", f"daemonset/{OTHER}", "--timeout=30m"]
    return shlex.join([*choices.kubectl, *patch]), shlex.join([*choices.kubectl, *wait])


def _over_commands(names: Sequence[str], daemonsets: DaemonSets, choices: Choices, *, soak_minutes: int = 0) -> Iterable[str]:
    name = "vpc-ipamd"
    if daemonsets.ours is not None:
        name = daemonsets.ours["metadata"]["name"]
    kubectl, plugin, label = choices.kubectl, choices.plugin, "=".join(choices.label)
    yield shlex.join([*kubectl, "label", "node", *names, label])
    yield f"sleep {SETTLE_S}"
    yield shlex.join([*kubectl, "-n", daemonsets.namespace, "rollout", "status", f"daemonset/{name}", "--timeout=15m"])
    for node in names:
        yield shlex.join([*plugin, "exec", node, "audit"])
    if soak_minutes:
        yield f"sleep {60 * soak_minutes}  # watch it: pods that come and go, alerts, kubectl ipamd status"
    yield f"{shlex.join([*plugin, 'status', '--troubled'])} || {{ echo 'stopped: look at these nodes first' >&2; exit 1; }}"


def _back_commands(node: MigrationNode, choices: Choices) -> Iterable[str]:
    kubectl, plugin = choices.kubectl, choices.plugin
    yield shlex.join([*plugin, "exec", node.name, "export"])
    yield shlex.join([*kubectl, "label", "node", node.name, f"{choices.label[0]}-"])
    yield f"sleep {SETTLE_S}"
    yield shlex.join([*kubectl, "-n", OTHER_NAMESPACE, "rollout", "status", f"daemonset/{OTHER}", "--timeout=15m"])
    clean_up = shlex.join([*plugin, "clean-up", node.name, f"--image={node.image}"])
    yield f"{clean_up} || [ $? -eq 1 ]  # 1: pods of ours still need something; run it again when they are gone"


def _tenth(count: int) -> int:
    return max(1, math.ceil(count * BATCH_SHARE))


def _batches(nodes: Sequence[MigrationNode], size: int) -> Iterable[tuple[str, list[str]]]:
    """Batches of at most `size` nodes, each of one zone."""
    by_zone: dict[str, list[str]] = {}
    for node in nodes:
        by_zone.setdefault(node.zone, []).append(node.name)
    for zone, names in by_zone.items():
        for start in range(0, len(names), size):
            yield zone, names[start : start + size]
