"""Compare the addresses that five parties report: containerd, the API server, the daemon, the daemon's audit, and EC2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from lab.cluster.cluster import CONTROL, NAMESPACE, Cluster
from lab.cluster.errors import ApiError
from lab.node.errors import NodeError
from lab.node.node import Node

SETTLE_TIMEOUT_S = 90.0  # ours: longer than the minute after which the daemon looks for sandboxes whose DEL was lost
FINISHED = ("Succeeded", "Failed")


def settle(cluster: Cluster) -> str:
    """Wait until all parties agree. Returns: the numbers of sandboxes, as a sentence. Raises: ClusterError with the disagreements."""
    cluster.api.wait(lambda: "; ".join(disagreements(cluster)), what="agreed on addresses", timeout_s=SETTLE_TIMEOUT_S)
    counts = [f"{name} {len(sandboxes(node))}" for name, node in cluster.nodes.items()]
    return f"sandboxes: {', '.join(counts)}; containerd, API server, daemon, audit and EC2 agree, all addresses answer"


def disagreements(cluster: Cluster, *, others: Mapping[str, Callable[[], dict[str, str]]] | None = None) -> list[str]:
    """List the disagreements, a sentence for each. There are none if all parties agree, no two sandboxes have the same address, and
    each address answers.

    `others`: nodes on which other software assigns addresses -> function that returns its assignments (container ID -> address).
    """
    problems = []
    everywhere: Counter[str] = Counter()
    pods = cluster.api.items("/api/v1/pods")
    for name, node in cluster.nodes.items():
        here = sandboxes(node)
        everywhere.update(here.values())
        reported = {
            pod["status"].get("podIP", f"none for {pod['metadata']['name']}")
            for pod in pods
            if pod["spec"].get("nodeName") == name
            and not pod["spec"].get("hostNetwork")
            and pod["status"]["phase"] not in FINISHED
        }
        if reported != set(here.values()):
            problems.append(
                f"{name}: the API server has {sorted(reported - set(here.values()))} more, "
                f"{sorted(set(here.values()) - reported)} less"
            )
        other = (others or {}).get(name)
        rows = daemon_rows(node) if other is None else other()
        if rows != here:
            differing = {key for key in here.keys() | (rows or {}).keys() if here.get(key) != (rows or {}).get(key)}
            problems.append(
                f"{name}: containerd and the daemon differ in {len(differing)} sandboxes"
                if rows is not None
                else f"{name}: no daemon"
            )
        vpc = cluster.lab.vpc
        enis = vpc.enis_of(vpc.instance(name).instance_id)
        owned = {str(address) for eni in enis for address in eni.all_addresses if address != eni.primary_address}
        prefixes = [prefix for eni in enis for prefix in eni.all_prefixes]
        foreign = [ip for ip in here.values() if ip not in owned and not any(str(p.network_address) == ip for p in prefixes)]
        if foreign:
            problems.append(f"{name}: EC2 has not given {foreign} to it")
        if other is None and (problem := audit(cluster, name)):
            problems.append(f"{name}: {problem}")
    problems += [f"{address} is had {count} times" for address, count in everywhere.items() if count > 1]
    if not problems:
        answers = cluster.lab.ping(source=CONTROL, targets=sorted(everywhere))
        problems += [f"{address} does not answer" for address, answered in answers.items() if not answered]
    return problems


def sandboxes(node: Node) -> dict[str, str]:
    """Return sandbox ID -> address, as containerd reports them. Sandboxes of the host's network are left out."""
    ready = [sandbox.sandbox_id for sandbox in node.cri.list() if sandbox.is_ready]
    states = ((sandbox_id, node.cri.status(sandbox_id)) for sandbox_id in ready)
    return {sandbox_id: str(state.address) for sandbox_id, state in states if state.address is not None and state.netns_path}


def daemon_rows(node: Node) -> dict[str, str] | None:
    """Return container ID -> address, as the daemon reports them; None if it does not answer."""
    try:
        with Client(f"{node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
            answer = client.ask("ListAttachments")
    except (AwayError, RefusedError):
        return None
    return {row["container_id"]: row["address"] for row in answer["attachments"]}


def cooling(cluster: Cluster) -> str:
    """Return a text about daemons that still have cooling addresses (freed, but not assigned again yet) or do not answer; "" if
    none."""
    problems = []
    for name, node in cluster.nodes.items():
        try:
            with Client(f"{node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
                count = client.ask("GetStatus")["pool"]["cooling_count"]
        except (AwayError, RefusedError) as error:
            problems.append(f"{name}: {error}")
        else:
            problems += [f"{name}: {count} addresses cool"] if count else []
    return "; ".join(problems)


def audit(cluster: Cluster, node: str) -> str:
    """Run `ipamctl audit` in the daemon's container, by `kubectl exec`. Returns: its findings; "" if it has none."""
    try:
        for pod in cluster.daemon_pods():
            if pod["spec"].get("nodeName") == node and "deletionTimestamp" not in pod["metadata"]:
                cluster.kubectl(
                    "--namespace", NAMESPACE, "exec", pod["metadata"]["name"], "--container", "ipamd", "--", "ipamctl", "audit"
                )
                return ""
    except (NodeError, ApiError) as error:
        return f"audit: {str(error)[-300:]}"
    return "there is no pod of vpc-ipamd"
