"""Compares from outside what five parties say of addresses: containerd, the API server, the daemon, its audit, and EC2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from lab.cluster.cluster import CONTROL, NAMESPACE, Cluster
from lab.cluster.errors import ApiError
from lab.node.errors import NodeError
from lab.node.node import Node

SETTLE_TIMEOUT_S = 90.0  # ours, because: the daemon's own sweep of a sandbox whose DEL was lost comes once a minute
FINISHED = ("Succeeded", "Failed")


def settle(cluster: Cluster) -> str:
    """Wait until nobody disagrees. Returns: the figures as a sentence. Raises: ClusterError with who disagrees with whom."""
    cluster.api.wait(lambda: "; ".join(disagreements(cluster)), what="agreed on addresses", timeout_s=SETTLE_TIMEOUT_S)
    counts = [f"{name} {len(sandboxes(node))}" for name, node in cluster.nodes.items()]
    return f"sandboxes: {', '.join(counts)}; containerd, API server, daemon, audit and EC2 agree, all addresses answer"


def disagreements(cluster: Cluster, *, others: Mapping[str, Callable[[], dict[str, str]]] | None = None) -> list[str]:
    """One sentence for each; none if all agree, no address is had twice, and each answers.

    Args: others: nodes that another software runs, with what it has: container ID -> address.
    """
    found = []
    everywhere: Counter[str] = Counter()
    pods = cluster.api.items("/api/v1/pods")
    for name, node in cluster.nodes.items():
        here = sandboxes(node)
        everywhere.update(here.values())
        told = {
            pod["status"].get("podIP", f"none for {pod['metadata']['name']}")
            for pod in pods
            if pod["spec"].get("nodeName") == name
            and not pod["spec"].get("hostNetwork")
            and pod["status"]["phase"] not in FINISHED
        }
        if told != set(here.values()):
            found.append(
                f"{name}: the API server has {sorted(told - set(here.values()))} more, {sorted(set(here.values()) - told)} less"
            )
        other = (others or {}).get(name)
        rows = daemon_rows(node) if other is None else other()
        if rows != here:
            differing = {key for key in here.keys() | (rows or {}).keys() if here.get(key) != (rows or {}).get(key)}
            found.append(
                f"{name}: containerd and the daemon differ in {len(differing)} sandboxes"
                if rows is not None
                else f"{name}: no daemon"
            )
        vpc = cluster.lab.vpc
        enis = vpc.enis_of(vpc.instance(name).instance_id)
        owned = {str(address) for eni in enis for address in eni.all_addresses if address != eni.primary_address}
        prefixes = [prefix for eni in enis for prefix in eni.all_prefixes]
        foreign = [one for one in here.values() if one not in owned and not any(str(p.network_address) == one for p in prefixes)]
        if foreign:
            found.append(f"{name}: EC2 has not given {foreign} to it")
        if other is None and (problem := audit(cluster, name)):
            found.append(f"{name}: {problem}")
    found += [f"{address} is had {count} times" for address, count in everywhere.items() if count > 1]
    if not found:
        answers = cluster.lab.ping(source=CONTROL, targets=sorted(everywhere))
        found += [f"{address} does not answer" for address, answered in answers.items() if not answered]
    return found


def sandboxes(node: Node) -> dict[str, str]:
    """Sandbox ID -> address, as containerd has them, without those of the host's network."""
    ready = [one.sandbox_id for one in node.cri.list() if one.is_ready]
    states = ((one, node.cri.status(one)) for one in ready)
    return {one: str(state.address) for one, state in states if state.address is not None and state.netns_path}


def daemon_rows(node: Node) -> dict[str, str] | None:
    """Container ID -> address, as the daemon has them; None if it does not answer."""
    try:
        with Client(f"{node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
            answer = client.ask("ListAttachments")
    except (AwayError, RefusedError):
        return None
    return {row["container_id"]: row["address"] for row in answer["attachments"]}


def cooling(cluster: Cluster) -> str:
    """Which daemons still have addresses that cool, or do not answer; "" if none."""
    found = []
    for name, node in cluster.nodes.items():
        try:
            with Client(f"{node.root}{DEFAULT_RUN_DIR}/ipamd.sock") as client:
                count = client.ask("GetStatus")["pool"]["cooling_count"]
        except (AwayError, RefusedError) as error:
            found.append(f"{name}: {error}")
        else:
            found += [f"{name}: {count} addresses cool"] if count else []
    return "; ".join(found)


def audit(cluster: Cluster, node: str) -> str:
    """What `ipamctl audit` in the daemon's own container, called through the kubelet, finds; "" if nothing."""
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
