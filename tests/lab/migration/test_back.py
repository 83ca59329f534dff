"""Going back, and coming again: no address is given twice, whoever gives them."""

from __future__ import annotations

import json
import sys
from ipaddress import IPv4Address, ip_address
from itertools import chain
from typing import Any

import pytest

from ipamd.process.clean_up import EXIT_KEPT, EXIT_REFUSED
from lab.node.node import REPOSITORY
from lab.vpc.family import IPV4, Family, pool_of
from lab.vpc.model import Address
from tests import aws_node
from tests.aws_node import Pod
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.lab.migration.conftest import Migrated, migrated
from tests.rig import Rig, wait_until
from tests.task_pages import Runner, commands

pytestmark = pytest.mark.privileged


def checkpoint(node: Migrated) -> dict[Address, dict[str, Any]]:
    """Its file, by address."""
    document = json.loads(node.sh(f"cat {aws_node.CHECKPOINT}"))
    assert document["version"] == "vpc-cni-ipam/1"
    name = f"ipv{node.rig.family.version}"
    found = {ip_address(entry[name]): entry for entry in document["allocations"]}
    assert len(found) == len(document["allocations"])
    return found


def egress_files(node: Migrated) -> dict[IPv4Address, str]:
    """What host-local counts as given, for egress: address -> container ID."""
    lines = node.sh(f"cd {aws_node.EGRESS_STATE} 2>/dev/null && for one in *; do echo $one $(head -1 $one); done").splitlines()
    return {IPv4Address(address): container_id for address, container_id in map(str.split, lines)}


def conflists(node: Migrated) -> list[str]:
    """What runtimes and we see."""
    return node.sh("ls /etc/cni/net.d").split()


def undo(rig: Rig) -> None:
    """Lift the export; the process ends."""
    undone = rig.driver.ipamctl("export", "--undo")
    assert undone.returncode == 0, undone.stdout
    assert rig.daemon is not None
    assert rig.daemon.wait(20) == 1  # its supervisor starts it again


@pytest.mark.slow
@EACH_FAMILY_HEAVY_IPV6
def test_there_and_back_and_there_again(family: Family) -> None:
    """Row 12: pods of both daemons live through three changes of hands, each with its address, and with what it has for egress."""
    with migrated(4, start=True, family=family) as node:
        rig = node.rig
        seconds = {pod.container_id: pod.other for pod in node.pods if pod.other is not None}
        for name in ("ours-0", "ours-1"):
            assert rig.add(name).ok
            node.runtime.run_pod(name, name)
        rows = rig.attachments()
        assert len(rows) == 6

        with node.flow() as flow:  # of the imported pods
            done = rig.driver.ipamctl("export")
            assert done.returncode == 0, done.stdout + done.stderr
            wait_until(lambda: flow.sent >= 5, what="packets afterwards")
            assert flow.stop() == set()
        assert conflists(node) == ["10-aws.conflist", "10-vpc-ipamd.conflist.vpc-ipamd-exported"]
        refused = rig.add("too-late")
        assert refused.code == 11, refused.body
        assert refused.body is not None
        assert "goes back to amazon-vpc-cni-k8s" in refused.body["details"]
        entries = checkpoint(node)
        assert {address: entry["containerID"] for address, entry in entries.items()} == {a: c for c, a in rows.items()}
        links = set(node.sh("ls /sys/class/net").split())
        for entry in entries.values():  # what its daemon looks for at its start
            pod = Pod(entry["metadata"]["k8sPodName"], next(iter(rows.values())), 254)
            assert pod.veth in links
        given = {container_id: address for address, container_id in egress_files(node).items()}
        assert given.items() >= seconds.items()
        assert given.keys() - seconds.keys() == ({"ours-0", "ours-1"} if rig.driver.egress else set())
        assert node.reach_outside([pod for pod in node.pods if pod.other is not None])
        targets = dict.fromkeys(rows.values(), True)
        assert rig.lab.ping(source="host-a", targets=rows.values()) == targets

        rig.kill()  # a restart changes nothing
        rig.start(wait=False)
        rig.driver.wait_status(
            lambda s: any("goes back" in lack for lack in s["degraded"]), what="still the other's", timeout_s=120
        )
        again = rig.driver.ipamctl_json("export")
        assert (again["problems"], again["exported_count"]) == ([], 6)
        assert checkpoint(node).keys() == entries.keys()
        assert rig.cni("DEL", "ours-1").ok
        del node.runtime.sandboxes["ours-1"]
        rig.kill()

        # Its daemon comes: it gives a free address, and one pod of before goes.
        enis = rig.lab.vpc.enis_of(rig.node.instance_id)
        pools = sorted(chain.from_iterable(pool_of(eni, family) for eni in enis))
        free = next(address for address in chain.from_iterable(pools) if address not in entries)
        other = next(one for one in map(IPv4Address, list(IPV4.egress)[2:]) if one not in egress_files(node))
        rig_pods = [pod for pod in node.pods if pod.name != "old-0"]
        table = next(eni for eni in enis if any(free in one for one in pool_of(eni, family)))
        assert table.attachment is not None
        index = table.attachment.device_index
        made = Pod("made-by-the-other", free, 254 if index == 0 else index + 1, other if rig.driver.egress else None)
        gone = node.pods[0]
        aws_node.unwire(rig.node, gone)
        node.runtime.stop_pod(gone.container_id)
        aws_node.wire(rig.node, [made], primary=rig.lab.primary_address("node-a"))
        assert rig.lab.ping(source="host-a", targets=[free])[free], "nothing of ours keeps it from looking for the neighbour"
        assert node.reach_outside([made] if made.other else [])
        node.runtime.run_pod(made.container_id, made.name)
        ours = Pod("ours-0", rows["ours-0"], 254)
        stale = {
            "networkName": "aws-cni",
            "containerID": gone.container_id,
            "ifName": "eth0",
            f"ipv{family.version}": str(gone.address),
        }
        keys = [{**entries[ours.address]}, stale]
        aws_node.write_file(rig.node, [*rig_pods, made], extra=keys)

        rig.start(wait=False)  # ours was not taken off: the export holds until somebody lifts it, whatever the other does (I20)
        rig.driver.wait_status(lambda s: "goes back" in s["verdict"], what="still the other's", timeout_s=120)
        node.pass_time()
        assert rig.add("still-too-late").code == 11
        undo(rig)
        rig.start()  # and we come again
        wanted = {pod.container_id: pod.address for pod in [*rig_pods, made]} | {"ours-0": ours.address}
        assert rig.attachments() == wanted
        rig.assert_sound(expected=5)
        with_egress = [pod for pod in (*rig_pods, made) if pod.other is not None]
        assert node.reach_outside(with_egress)
        assert conflists(node) == ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]

        assert rig.driver.ipamctl("export").returncode == 0
        undo(rig)
        rig.start()
        assert conflists(node) == ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]
        assert rig.add("back-again").ok
        rig.assert_sound(expected=6)
        follow_the_page(node)


def clean_up(node: Migrated, words: list[str]) -> None:
    """Run the command as the page says: our daemon is off the node, and the other's answers. Pods keep address and egress."""
    targets = dict.fromkeys(node.rig.attachments().values(), True)
    node.rig.kill()
    refused = node.rig.node.run([sys.executable, "-m", "ipamd.daemon", *words], cwd=str(REPOSITORY), check=False)
    assert refused.returncode == EXIT_REFUSED, "nobody translates what pods send yet"
    node.agent.start()
    tables = set(node.sh("nft list tables").splitlines())
    done = node.rig.node.run([sys.executable, "-m", "ipamd.daemon", *words], cwd=str(REPOSITORY), check=False)
    egress = {table for table in tables if table.endswith("vpc-ipamd-egress")}
    assert done.returncode == (EXIT_KEPT if egress else 0), done.stdout + done.stderr
    left = {table for table in node.sh("nft list tables").splitlines() if "vpc-ipamd" in table}
    assert left == ({table for table in tables if "vpc-ipamd" in table} if "--dry-run" in words else egress)
    assert "113213" not in node.sh("ip rule; ip -6 rule") or "--dry-run" in words
    assert node.rig.lab.ping(source="host-a", targets=targets) == targets
    assert node.reach_outside([pod for pod in node.pods if pod.other is not None and pod.address in targets])
    node.agent.kill()
    node.rig.start(wait=False)
    node.rig.driver.wait_status(lambda s: "goes back" in s["verdict"], what="still the other's", timeout_s=120)


def follow_the_page(node: Migrated) -> None:
    """Every command of docs/migration.md, in its order; what only shows something first."""
    found = commands("migration.md", Runner.NODE)
    assert [" ".join(command.split()[1:]) for command in found] == [
        "status", "attachments", "audit", "export", "clean-up --dry-run", "clean-up", "export --undo",
    ]  # fmt: skip
    for command in found:
        _, *words = command.split()
        if words[0] == "clean-up":
            clean_up(node, words)
            continue
        done = node.rig.driver.ipamctl(*words)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "problem " not in done.stdout
