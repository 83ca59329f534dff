"""Plan how nodes are moved from amazon-vpc-cni-k8s to vpc-ipamd or back: in which order, and by which commands.

Nothing here reads or changes a cluster: a plan is text for a person. A node with the label (Choices.label) belongs to vpc-ipamd. Each
batch on the way to vpc-ipamd ends with a command that stops the script if a node is in trouble.
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
"""The DaemonSet of amazon-vpc-cni-k8s; OTHER_NAMESPACE is its namespace.

Source of both: amazon-vpc-cni-k8s config/master/aws-k8s-cni.yaml.
"""

OTHER_NAMESPACE = "kube-system"

BATCH_SHARE = 0.1
"""The part of the nodes that one batch has. Ours: if a batch goes wrong, a fleet can do without a tenth of its nodes."""

SETTLE_S = 20
"""Pause after a change of labels, so that both DaemonSets have noticed it. Ours: their controller takes a second or two; this is ten
times as long."""

TERM_PATH = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/{}"


@dataclass(frozen=True)
class Choices:
    """The operator's choices for a plan.

    Args:
        label: key and value of the label by which both DaemonSets select their nodes.
        batch: the number of nodes in one batch; 0: a tenth of the nodes that wait (BATCH_SHARE).
        canary: the number of nodes that are moved first, before all batches.
        soak_minutes: how long the canary nodes are watched before the first batch.
        kubectl: the words that begin a command of kubectl, with the operator's options.
        plugin: the words that begin a command of this plugin, with the same options and those about the daemon's pods.
    """

    label: tuple[str, str]
    batch: int
    canary: int
    soak_minutes: int
    kubectl: tuple[str, ...] = ("kubectl",)
    plugin: tuple[str, ...] = ("kubectl", "ipamd")


@dataclass(frozen=True)
class MigrationNode:
    """A node as the API server knows it. `image`: the image of the daemon's pod on the node; "" if no such pod is there."""

    name: str
    labels: Mapping[str, str]
    is_ready: bool
    image: str = ""

    @property
    def zone(self) -> str:
        """The node's zone; "" if no label names it."""
        return self.labels.get(ZONE_LABEL, "")


@dataclass(frozen=True)
class DaemonSets:
    """The DaemonSets of vpc-ipamd (`ours`) and of amazon-vpc-cni-k8s (`other`), from the API server; None for an absent one.

    `namespace`: the namespace of vpc-ipamd.
    """

    ours: Mapping[str, Any] | None
    other: Mapping[str, Any] | None
    namespace: str


@dataclass(frozen=True)
class MigrationStep:
    """Commands to be run in order. `nodes`: the nodes that this step moves."""

    title: str
    commands: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MigrationPlan:
    """A plan.

    `problems`: what must be mended before the first step. `done`: nodes that need no step. `skipped`: nodes that cannot be moved
    now.
    """

    steps: tuple[MigrationStep, ...]
    problems: tuple[str, ...]
    done: tuple[str, ...]
    skipped: tuple[str, ...]


def plan_over(nodes: Iterable[MigrationNode], daemonsets: DaemonSets, choices: Choices) -> MigrationPlan:
    """Plan how nodes are moved from amazon-vpc-cni-k8s to vpc-ipamd, zone by zone, so that a mistake concerns one zone only."""
    done, skipped, waiting = _sorted_nodes(nodes, daemonsets, choices)
    steps = _steps_over(waiting, daemonsets, choices)
    return MigrationPlan(tuple(steps), _problems(daemonsets, choices), tuple(done), tuple(skipped))


def _sorted_nodes(
    nodes: Iterable[MigrationNode], daemonsets: DaemonSets, choices: Choices
) -> tuple[list[str], list[str], list[MigrationNode]]:
    """Return the names of nodes that were moved already, the names of those that cannot be moved now, and the nodes that wait.

    All three lists are sorted by zone. A node cannot be moved if it is not Ready or if our DaemonSet would not select it.
    """
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
    """Return the steps that move the waiting nodes: a change of the other DaemonSet's affinity if needed, the canary, the batches."""
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
    """Plan how nodes are moved back to amazon-vpc-cni-k8s, one after the other, because each needs an export by its own daemon."""
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
    """Write a plan as a shell script that stops at the first command that fails."""
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
    """Whether the DaemonSet selects the node after the node got the labels `more`.

    An absent DaemonSet (None) counts as if it selected every node. The plan is of no use then anyway: `_problems` reports the absence.
    """
    if daemonset is None:
        return True
    return is_for_node(_pod_spec(daemonset), name=node.name, labels={**node.labels, **more})


def _affinity_patch(daemonsets: DaemonSets, choices: Choices) -> tuple[str, ...]:
    """Return the commands that keep the other DaemonSet off nodes with the label, as docs/install.md has them.

    The expression is added to each term of the node affinity, because a node needs to match only one of the terms.
    """
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
    """Yield batches, each as a zone and the names of at most `size` nodes in this zone."""
    by_zone: dict[str, list[str]] = {}
    for node in nodes:
        by_zone.setdefault(node.zone, []).append(node.name)
    for zone, names in by_zone.items():
        for start in range(0, len(names), size):
            yield zone, names[start : start + size]
