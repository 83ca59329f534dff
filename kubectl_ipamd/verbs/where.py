"""`kubectl ipamd where`: which pod has an address, or which address a pod has, and on which node.

By default only the API server is asked: it knows the address of each pod that runs. With `--ask-nodes` the daemons are asked too. Each
keeps a history of which pod had which address and when, but to ask it the operator needs the right `pods/exec`.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubectl_ipamd.api import quoted
from kubectl_ipamd.cluster import ClusterNode
from kubectl_ipamd.errors import EXIT_ATTENTION, PluginError
from kubectl_ipamd.execution import target
from kubectl_ipamd.session import Session, pod_of
from kubectl_ipamd.text import table
from kubectl_ipamd.verbs.printing import Answer, columns_of, print_answer

ENDED_PHASES = ("Succeeded", "Failed")
"""The phases of a pod that has ended. Its status still shows its address, but the pod does not have this address any more."""

EXEC_PARALLEL_MAX = 8
"""Most processes of kubectl at once. Ours: each takes a tenth of a second of CPU time, and up to a second if kubectl runs a credential
plugin; 8 of them do not overload the operator's machine."""

EXEC_TIMEOUT_S = 30.0
"""Longest time for the history of one node. Ours: as for a page of a list (`LIST_TIMEOUT_S`). The answer itself takes
milliseconds; the rest is for exec through the API server."""

POD_COLUMNS = {"ADDRESS": "addresses", "POD": "pod", "HAS IT": "has_it", "NODE": "node", "PHASE": "phase", "NETWORK": "network"}

NODE_COLUMNS = {"NODE": "node", "POD": "pod", "SINCE": "since", "UNTIL": "until", "ENDED BY": "ended_by", "PROBLEM": "problem"}


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Print who has the address, or which addresses the pod has.

    Returns: 0, or 1 if neither the API server nor a daemon knows the address or pod.
    Raises: PluginError.
    """
    subject: str = arguments.subject
    pods = [_pod_row(pod) for pod in _pods(session, subject)]
    answer: Answer = {"subject": subject, "pods": pods, "nodes": [], "notes": []}
    if _is_address(subject):
        pods += _node_rows(session, subject, answer["notes"])
    if arguments.ask_nodes:
        answer["nodes"] = _ask_nodes(session, subject, {row["node"] for row in pods if row["has_it"]})
    elif not pods:
        text = (
            "no pod has it now, as far as the API server knows; `--ask-nodes` asks the history of all daemons (needs pods/exec)"
        )
        answer["notes"].append(text)

    def as_text(answer: Answer) -> str:
        return _text(answer, output=session.output)

    print_answer(answer, output=session.output, as_text=as_text)
    if pods or any(row["since"] for row in answer["nodes"]):
        return 0
    return EXIT_ATTENTION


def _is_address(subject: str) -> bool:
    try:
        ipaddress.ip_address(subject)
    except ValueError:
        return False
    return True


def _pods(session: Session, subject: str) -> list[dict[str, Any]]:
    """Return the pods that the API server knows with an address, or with a name `NAMESPACE/NAME` or `NAME`."""
    if _is_address(subject):
        canonical = str(ipaddress.ip_address(subject))
        return session.api.list("/api/v1/pods", fieldSelector=f"status.podIP={canonical}")
    namespace, has_namespace, name = subject.rpartition("/")
    selector = f"metadata.name={name}"
    if has_namespace:
        return session.api.list(f"/api/v1/namespaces/{quoted(namespace)}/pods", fieldSelector=selector)
    return session.api.list("/api/v1/pods", fieldSelector=selector)


def _pod_row(pod: dict[str, Any]) -> Answer:
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    addresses = [entry["ip"] for entry in status.get("podIPs") or [] if "ip" in entry]
    if not addresses and status.get("podIP"):
        addresses = [status["podIP"]]
    phase = status.get("phase", "")
    network = "pod"
    if spec.get("hostNetwork"):
        network = "node"
    return {
        "pod": f"{pod['metadata']['namespace']}/{pod['metadata']['name']}",
        "addresses": addresses,
        "has_it": bool(addresses) and phase not in ENDED_PHASES,
        "node": spec.get("nodeName", ""),
        "phase": phase,
        "network": network,
    }


def _node_rows(session: Session, subject: str, notes: list[str]) -> list[Answer]:
    """Return a row for the node whose own address (not a pod's) is `subject`, if there is such a node."""
    try:
        nodes = session.api.list("/api/v1/nodes")
    except PluginError as error:
        notes.append(f"whether it is a node's own address is not known: {error}")
        return []
    canonical = str(ipaddress.ip_address(subject))
    rows = []
    for node in nodes:
        addresses = (node.get("status") or {}).get("addresses") or []
        if any(address.get("address") == canonical for address in addresses):
            name = node["metadata"]["name"]
            row = {"pod": "", "addresses": [canonical], "has_it": True, "node": name, "phase": "", "network": "node"}
            rows.append(row)
    return rows


def _ask_nodes(session: Session, subject: str, holders: set[str]) -> list[Answer]:
    """Ask daemons for their history of `subject`. For a pod that runs only the daemon of its node is asked (`holders`), else all
    daemons.

    Returns: rows of the nodes that know the subject, and rows with a problem of the nodes that did not answer.
    """
    nodes = list(session.cluster().nodes.values())
    if not _is_address(subject) and holders:
        nodes = [node for node in nodes if node.name in holders]
    parallel = min(session.limits.parallel, EXEC_PARALLEL_MAX)
    with ThreadPoolExecutor(parallel, thread_name_prefix="exec") as executor:
        answers = executor.map(lambda node: _history(session, node, subject), nodes)
        return [row for rows in answers for row in rows]


def _history(session: Session, node: ClusterNode, subject: str) -> list[Answer]:
    try:
        with target(session.kubectl, pod_of(node), may_debug=False) as words:
            command = ["exec", *words, "--", "ipamctl", "history", "-o", "json", subject]
            done = session.kubectl.run(command, timeout_s=EXEC_TIMEOUT_S)
    except PluginError as error:
        return [_history_row(node, problem=str(error))]
    if not done.output:
        return [_history_row(node, problem=done.error or f"status {done.status}")]
    try:
        tenures = json.loads(done.output)["tenures"]
        return [_history_row(node, **{key: tenure[key] for key in TENURE_FIELDS}) for tenure in tenures]
    except (ValueError, KeyError, TypeError):
        return [_history_row(node, problem="the daemon's answer is not understood")]


TENURE_FIELDS = ("pod", "address", "since", "until", "ended_by")
"""The fields of an entry of `tenures` (the times in which a pod had an address) in `ipamctl history -o json`. Source:
docs/ipamctl.md."""


def _history_row(node: ClusterNode, **fields: str) -> Answer:
    return {"node": node.name, "problem": "", **dict.fromkeys(TENURE_FIELDS, ""), **fields}


def _text(answer: Answer, *, output: str) -> str:
    parts = []
    if answer["pods"]:
        parts.append(_table(answer["pods"], POD_COLUMNS, output))
    if answer["nodes"]:
        parts.append(_table(answer["nodes"], {"ADDRESS": "address", **NODE_COLUMNS}, output))
    return "\n\n".join(parts)


def _table(rows: Iterable[Answer], columns: dict[str, str], output: str) -> str:
    shown = [{**row, "has_it": {True: "yes", False: "no, it ended", None: ""}[row.get("has_it")]} for row in rows]
    return table(shown, columns_of(columns, wide_only=(), output=output))
