"""`kubectl ipamd migrate --plan`: print the commands that move nodes from amazon-vpc-cni-k8s to vpc-ipamd or back. It only reads."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kubectl_ipamd.api import quoted
from kubectl_ipamd.cluster import CONTAINER
from kubectl_ipamd.errors import EXIT_ATTENTION, CommandLineError
from kubectl_ipamd.migration import OTHER, OTHER_NAMESPACE, Choices, DaemonSets, MigrationNode, plan_back, plan_over, script
from kubectl_ipamd.session import Session
from kubectl_ipamd.verbs.printing import Answer, print_answer


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Print the plan. Returns: 0, or 1 if something must be mended before its first step. Raises: PluginError."""
    if not arguments.plan:
        raise CommandLineError("it executes nothing: give --plan, and run what it prints")
    choices = _choices(session, arguments)
    daemonsets = _daemonsets(session)
    make_plan = plan_back if arguments.back else plan_over
    plan = make_plan(_nodes(session), daemonsets, choices)
    answer: Answer = {**asdict(plan), "notes": []}
    print_answer(answer, output=session.output, as_text=lambda _: script(plan))
    if plan.problems:
        return EXIT_ATTENTION
    return 0


def _choices(session: Session, arguments: argparse.Namespace) -> Choices:
    key, has_value, value = arguments.label.partition("=")
    if not (key and has_value and value):
        raise CommandLineError(f"--label {arguments.label!r} is not KEY=VALUE")
    if min(arguments.batch, arguments.canary, arguments.soak) < 0:
        raise CommandLineError("--batch, --canary and --soak must not be negative")
    return Choices(
        label=(key, value),
        batch=arguments.batch,
        canary=arguments.canary,
        soak_minutes=arguments.soak,
        kubectl=session.kubectl_words,
        plugin=session.plugin_words,
    )


def _daemonsets(session: Session) -> DaemonSets:
    """Return the DaemonSets of vpc-ipamd and amazon-vpc-cni-k8s.

    Raises: PluginError, also if the operator may not list DaemonSets, because a plan without one of the two would be wrong.
    """
    ours = session.api.list(f"/apis/apps/v1/namespaces/{quoted(session.namespace)}/daemonsets", labelSelector=session.selector)
    every = session.api.list(f"/apis/apps/v1/namespaces/{OTHER_NAMESPACE}/daemonsets")
    with_daemon = [daemonset for daemonset in ours if _container_names(daemonset) & {CONTAINER}]
    return DaemonSets(
        ours=next(iter(with_daemon), None),
        other=next((daemonset for daemonset in every if daemonset["metadata"]["name"] == OTHER), None),
        namespace=session.namespace,
    )


def _container_names(daemonset: Mapping[str, Any]) -> set[str]:
    return {container["name"] for container in daemonset["spec"]["template"]["spec"].get("containers") or []}


def _nodes(session: Session) -> list[MigrationNode]:
    images = {name: node.pod.image for name, node in session.cluster().nodes.items() if node.pod is not None}
    return [_node(node, images) for node in session.api.list("/api/v1/nodes")]


def _node(node: Mapping[str, Any], images: Mapping[str, str]) -> MigrationNode:
    metadata = node["metadata"]
    conditions = (node.get("status") or {}).get("conditions") or []
    is_not_ready = any(condition.get("type") == "Ready" and condition.get("status") != "True" for condition in conditions)
    return MigrationNode(metadata["name"], metadata.get("labels") or {}, not is_not_ready, images.get(metadata["name"], ""))
