"""Multus calls our plugin twice for a sandbox, for eth0 and net1, under a real containerd: both interfaces live and end as they must.

By a stand-in for Multus, and by the real one where MULTUS_BINARY names its binary, which `tools/neighbours_multus.sh` builds of a
checkout, because the module proxy does not serve its module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from lab.errors import LabError
from lab.vpc.family import IPV6
from tests.families import in_both_of_lab, lab_family_for
from tests.rig import Rig, rig, wait_until

REAL = os.environ.get("MULTUS_BINARY", "")

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.heavy]

IN_BOTH = in_both_of_lab("made")

CONFLIST = "/etc/cni/net.d/00-multus.conf"

VERSION = "1.0.0"

NETWORKS = [
    {"cniVersion": VERSION, "name": "vpc-ipamd", "plugins": [{"type": "vpc-cni"}]},
    {"cniVersion": VERSION, "name": "vpc-net1", "type": "vpc-cni"},
]

CONFIG = {
    "cniVersion": VERSION,
    "name": "multus",
    "type": "multus",
    "cniDir": "/var/lib/cni/multus",
    "binDir": "/opt/cni/bin",
    "delegates": NETWORKS,
}

IFNAMES = ("eth0", "net1")

REFERENCE_PLUGINS = Path("/usr/lib/cni")
"""Where Debian has them."""


@pytest.fixture(scope="module", params=["stand-in", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="no Multus"))])
def multus(request: pytest.FixtureRequest) -> Path:
    """The binary that the runtime calls."""
    return Path(REAL) if request.param == "real" else Path(__file__).parent / "multus_delegates.py"


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, multus: Path) -> Iterator[Rig]:
    """A node whose runtime calls Multus."""
    with rig(containerd=True, family=lab_family_for(request)) as node:
        node.node.install(multus, "/opt/cni/bin/multus")
        node.node.write_file(CONFLIST, json.dumps(CONFIG).encode())
        wait_until(lambda: _is_runtime_ready(node), what="containerd has read Multus's configuration")
        yield node


def _is_runtime_ready(made: Rig) -> bool:
    """Whether a sandbox of the runtime has two interfaces by now."""
    sandbox = made.node.cri.run_sandbox("first")
    is_ready = len(interfaces(made, sandbox)) == len(IFNAMES)
    made.node.cri.stop(sandbox)
    made.node.cri.remove(sandbox)
    return is_ready


def interfaces(made: Rig, sandbox: str) -> dict[str, str]:
    """Interface -> address of a sandbox, as the daemon has them."""
    answer = made.client(lambda client: client.ask("ListAttachments"))
    assert answer is not None
    return {row["ifname"]: row["address"] for row in answer["attachments"] if row["container_id"] == sandbox}


def findings(made: Rig) -> list[dict[str, Any]]:
    """What the audit finds, but for what ends by itself."""
    answer = made.client(lambda client: client.ask("Audit"))
    assert answer is not None
    return [finding for finding in answer["findings"] if finding["severity"] != "pending"]


def inside(made: Rig, sandbox: str, words: str) -> list[dict[str, Any]]:
    """What `ip` shows in the sandbox's namespace."""
    dash = "-6" if made.family is IPV6 else "-4"
    done = made.node.run(["ip", "-n", Path(_netns(made, sandbox)).name, "-j", dash, *words.split()])
    return [entry for entry in json.loads(done.stdout or "[]") if entry]


def _netns(made: Rig, sandbox: str) -> str:
    answer = made.client(lambda client: client.ask("ListAttachments"))
    assert answer is not None
    return next(row["netns"] for row in answer["attachments"] if row["container_id"] == sandbox)


def cni(made: Rig, verb: str, sandbox: str, ifname: str, **conf: Any) -> Any:
    """Call our plugin for one interface, as libcni does with the cached result."""
    number = IFNAMES.index(ifname)
    return made.cni(verb, sandbox, netns=_netns(made, sandbox), ifname=ifname, conf={"name": NETWORKS[number]["name"], **conf})


def end(made: Rig, sandbox: str) -> None:
    """Stop and remove a sandbox, and see that nothing is left of it."""
    made.node.cri.stop(sandbox)
    made.node.cri.remove(sandbox)
    assert interfaces(made, sandbox) == {}


@IN_BOTH
def test_both_interfaces_are_reached_and_answer(made: Rig) -> None:
    """Two attachments with links of their own; the default route is eth0's; who asks an address gets its answer."""
    sandbox = made.node.cri.run_sandbox("pod")
    addresses = interfaces(made, sandbox)
    assert set(addresses) == set(IFNAMES)
    assert len(set(addresses.values())) == len(IFNAMES)
    assert [route["dev"] for route in inside(made, sandbox, "route show default")] == ["eth0"]
    sources = [rule["src"] for rule in inside(made, sandbox, "rule") if rule["priority"] == 1536]
    assert sources == [addresses["net1"]]
    assert all(made.lab.ping(source="host-a", targets=map(ip_address, addresses.values())).values())
    assert findings(made) == []
    end(made, sandbox)


@IN_BOTH
def test_restart_keeps_both(made: Rig) -> None:
    """kill -9 of the daemon changes nothing; after a lost datastore both are adopted from the kernel and the runtime."""
    sandbox = made.node.cri.run_sandbox("pod")
    before = interfaces(made, sandbox)
    made.restart()
    assert interfaces(made, sandbox) == before
    made.kill()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{made.node.root}/run/vpc-ipamd/state.db{suffix}").unlink(missing_ok=True)
    made.start()
    wait_until(lambda: interfaces(made, sandbox) == before, what="both interfaces are adopted")
    assert all(made.lab.ping(source="host-a", targets=map(ip_address, before.values())).values())
    assert findings(made) == []
    end(made, sandbox)


@IN_BOTH
def test_gc_and_check_take_each_by_itself(made: Rig) -> None:
    """CHECK of either passes, GC of one network keeps the other, and a listed or living one is kept."""
    sandbox = made.node.cri.run_sandbox("pod")
    before = interfaces(made, sandbox)
    for ifname in IFNAMES:
        assert cni(made, "CHECK", sandbox, ifname).ok
    for number, ifname in enumerate(IFNAMES):
        for valid in ([{"containerID": sandbox, "ifname": ifname}], []):
            conf = {"name": NETWORKS[number]["name"], "cni.dev/valid-attachments": valid}
            assert made.cni("GC", "", netns="", ifname="", version="1.1.0", conf=conf).ok
    assert interfaces(made, sandbox) == before
    end(made, sandbox)


@IN_BOTH
@pytest.mark.parametrize("order", [IFNAMES, IFNAMES[::-1]], ids=lambda order: order[0])
def test_each_is_deleted_alone(made: Rig, order: tuple[str, str]) -> None:
    """DEL of one leaves the other complete, in any order; the sandbox's own end finds nothing more to do."""
    sandbox = made.node.cri.run_sandbox("pod")
    first, second = order
    left = interfaces(made, sandbox)[second]
    assert cni(made, "DEL", sandbox, first).ok
    assert interfaces(made, sandbox) == {second: left}
    assert cni(made, "CHECK", sandbox, second).ok
    assert cni(made, "DEL", sandbox, second).ok
    end(made, sandbox)


@IN_BOTH
def test_a_failed_net1_cools_nothing_of_its_own(made: Rig) -> None:
    """A pod that has a net1 already: each ADD of ours is refused, eth0 stays, and no address cools."""
    sandbox = made.node.cri.run_sandbox("pod")
    assert cni(made, "DEL", sandbox, "net1").ok
    wait_until(made.is_swept, what="its link is gone")
    netns = Path(_netns(made, sandbox)).name
    made.node.run(["ip", "-n", netns, "link", "add", "net1", "type", "veth", "peer", "name", "other"])
    # A tombstone refuses the deleted key, so another sandbox ID with the same namespace stands for Multus's next attempt.
    wait_until(lambda: made.pool()["cooling_count"] == 0, what="the deleted address has cooled")
    for number in range(3):
        reply = made.cni("ADD", f"other-{number}", netns=_netns(made, sandbox), ifname="net1", conf={"name": "vpc-net1"})
        assert reply.code == 105
    assert made.pool()["cooling_count"] == 0
    assert cni(made, "CHECK", sandbox, "eth0").ok
    end(made, sandbox)


@IN_BOTH
def test_the_runtime_gets_the_error_of_net1(made: Rig) -> None:
    """Multus deletes eth0 again when net1 fails: nothing of the sandbox is left."""
    broken = {**CONFIG, "delegates": [NETWORKS[0], {**NETWORKS[1], "cniVersion": "9.9.9"}]}
    made.node.write_file(CONFLIST, json.dumps(broken).encode())
    try:
        wait_until(lambda: _fails(made), what="containerd has read the broken configuration")
    finally:
        made.node.write_file(CONFLIST, json.dumps(CONFIG).encode())
    wait_until(lambda: _is_runtime_ready(made), what="containerd has read the sound configuration")
    answer = made.client(lambda client: client.ask("ListAttachments"))
    assert answer is not None
    assert answer["attachments"] == []


def test_net1_beside_the_eth0_of_another_plugin(multus: Path) -> None:
    """eth0 is a bridge's with its default route: net1 of ours is reached from the VPC, and answers by itself."""
    ranges = [[{"subnet": "172.30.0.0/24"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/var/lib/cni/networks"}
    bridge = {"cniVersion": VERSION, "name": "other", "type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}
    with rig(containerd=True) as made:
        for name in ("bridge", "host-local"):
            made.node.install(REFERENCE_PLUGINS / name, f"/opt/cni/bin/{name}")
        made.node.install(multus, "/opt/cni/bin/multus")
        made.node.write_file(CONFLIST, json.dumps({**CONFIG, "delegates": [bridge, NETWORKS[1]]}).encode())
        wait_until(lambda: _has_net1_alone(made), what="containerd has read Multus's configuration")
        sandbox = made.node.cri.run_sandbox("pod")
        addresses = interfaces(made, sandbox)
        assert set(addresses) == {"net1"}
        assert [route["dev"] for route in inside(made, sandbox, "route show default")] == ["eth0"]
        assert all(made.lab.ping(source="host-a", targets=map(ip_address, addresses.values())).values())
        assert made.cni("CHECK", sandbox, netns=_netns(made, sandbox), ifname="net1", conf={"name": "vpc-net1"}).ok
        made.restart()
        assert interfaces(made, sandbox) == addresses
        assert [finding for finding in findings(made) if finding["severity"] == "violation"] == []
        end(made, sandbox)


def _has_net1_alone(made: Rig) -> bool:
    sandbox = made.node.cri.run_sandbox("first")
    is_so = set(interfaces(made, sandbox)) == {"net1"}
    made.node.cri.stop(sandbox)
    made.node.cri.remove(sandbox)
    return is_so


def _fails(made: Rig) -> bool:
    try:
        sandbox = made.node.cri.run_sandbox("broken")
    except LabError:
        return True
    end(made, sandbox)
    return False
