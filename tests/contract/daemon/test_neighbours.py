"""Other software puts itself into the node's CNI configuration beside a real daemon: it stays, and nobody is blamed.

The agents and Multus are stand-ins (`tests/neighbours/`); `make neighbours` runs the real ones that can be had.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ipamd.runtime.cri import CriRuntime
from lab.lab import missing_requirements
from tests.neighbours.agents import ChainedAgent, IstioAgent, LinkerdAgent, copied, running
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

NET_D = "/etc/cni/net.d"
OURS = "10-vpc-ipamd.conflist"
BIN = "/opt/cni/bin"
TUNING = Path("/usr/lib/cni/tuning")
ANSWER = '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}'
"""Of a plugin that does not speak 1.1.0."""

needs_containerd = pytest.mark.skipif(
    bool(missing_requirements(containerd=True)) or not TUNING.exists(),
    reason=missing_requirements(containerd=True) or "the reference plugins are not installed (containernetworking-plugins)",
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """One node; each test removes what it put there."""
    with rig() as made:
        for name in ("istio-cni", "linkerd-cni", "antrea", "cilium-cni"):
            made.node.write_file(f"{BIN}/{name}", f"#!/bin/sh\necho '{ANSWER}'\n".encode(), 0o755)
        yield made


def directory(made: Rig) -> Path:
    """The node's CNI configuration directory."""
    return Path(made.node.root + NET_D)


def conflist(made: Rig) -> dict[str, Any]:
    """Our conflist as it is."""
    content: dict[str, Any] = json.loads((directory(made) / OURS).read_text())
    return content


def types(made: Rig) -> list[str]:
    """The plugins of our conflist."""
    return [plugin["type"] for plugin in conflist(made)["plugins"]]


def status(made: Rig) -> dict[str, Any]:
    """GetStatus."""
    answer = made.status()
    assert answer is not None
    return answer


def subjects(made: Rig) -> set[str]:
    """The subjects of the conditions but that CRI is off."""
    return {condition["subject"] for condition in status(made)["conditions"]} - {"cri"}


def companions(made: Rig) -> list[tuple[str, str]]:
    """Kind and name of what is beside ours."""
    return [(companion["kind"], Path(companion["name"]).name) for companion in status(made)["companions"]]


def repairs(made: Rig) -> int:
    """How often the history says that something was repaired."""
    answer = made.client(lambda client: client.ask("GetHistory", limit=1000))
    assert answer is not None
    return sum(entry["event"] == "repaired" for entry in answer["entries"])


@pytest.mark.parametrize("kind", [IstioAgent, LinkerdAgent])
def test_a_meshs_agent_and_the_daemon_do_not_fight(shared: Rig, kind: type[ChainedAgent]) -> None:
    """It appends once; the plugin stays, also over a restart without the agent; its uninstall is an end, and the offer is whole
    again."""
    before, repaired = conflist(shared), repairs(shared)
    name = kind.plugin["type"]
    with running(kind(directory(shared))) as agent:
        wait_until(
            lambda: name in types(shared) and "1.1.0" not in conflist(shared)["cniVersions"], what="it is appended and asked"
        )
        time.sleep(1.0)
        assert (agent.writes, types(shared)) == (1, ["vpc-cni", name])
    shared.restart()
    assert types(shared) == ["vpc-cni", name]
    assert conflist(shared)["plugins"][1] == kind.plugin
    wait_until(lambda: companions(shared) == [("appended", name)], what="the fact in status")
    assert (subjects(shared), repairs(shared)) == (set(), repaired)
    assert status(shared)["ready"]
    agent.uninstall()
    wait_until(lambda: conflist(shared) == before, what="the whole offer")
    assert (subjects(shared), repairs(shared), companions(shared)) == (set(), repaired, [])


def test_our_settings_change_under_an_appended_plugin(shared: Rig) -> None:
    """A plugin of ours comes and goes with a restart; the mesh's stays behind it."""
    shared.node.write_file(f"{BIN}/tuning", f"#!/bin/sh\necho '{ANSWER}'\n".encode(), 0o755)
    with running(IstioAgent(directory(shared))) as agent:
        wait_until(lambda: types(shared) == ["vpc-cni", "istio-cni"], what="it is appended")
    shared.restart(env={"VPC_IPAMD_CHAINED_PLUGINS": '[{"type":"tuning"}]'})
    assert types(shared) == ["vpc-cni", "tuning", "istio-cni"]
    shared.restart(env={"VPC_IPAMD_CHAINED_PLUGINS": ""})
    assert types(shared) == ["vpc-cni", "istio-cni"]
    agent.uninstall()


def multus(**fields: Any) -> dict[str, Any]:
    """As the agent of Multus writes it."""
    return {"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", **fields}


def test_files_that_sort_first(shared: Rig) -> None:
    """Those that lead to us are facts of status, those that do not are conditions, and the node is ready throughout."""
    wait_until(lambda: types(shared) == ["vpc-cni"] and "1.1.0" in conflist(shared)["cniVersions"], what="nobody is beside us")
    ours = conflist(shared)
    old = {**ours, "cniVersion": "0.3.1"}
    cases: list[tuple[str, dict[str, Any], set[str]]] = [
        ("00-multus.conf", multus(delegates=[ours]), set()),
        ("00-multus.conf", multus(type="multus-shim", clusterNetwork=f"/host{NET_D}/{OURS}"), set()),
        ("02-istio-cni.conflist", copied(ours, "istio-cni"), set()),
        ("05-antrea.conflist", copied(ours, "antrea", name="antrea"), set()),
        ("05-cilium.conflist", copied(ours, "cilium-cni"), set()),
        ("05-cilium.conflist", copied(old, "cilium-cni"), {"other conflist copy"}),
        ("05-other.conflist", {"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}, {"other conflist"}),
        ("00-multus.conf", multus(clusterNetwork="a-definition"), {"other conflist unclear"}),
    ]
    for name, content, expected in cases:
        path = directory(shared) / name
        path.write_text(json.dumps(content))
        facts = [("first", name)] if expected <= {"other conflist copy"} else []
        wait_until(lambda: (companions(shared), subjects(shared)) == (facts, expected), what=name)  # noqa: B023
        assert status(shared)["ready"]
        path.unlink()
        wait_until(lambda: companions(shared) == [] and subjects(shared) == set(), what=f"the end of {name}")


@needs_containerd
def test_a_runtime_runs_what_was_appended_and_what_sorts_first() -> None:
    """A real containerd: a sandbox has the appended plugin's doing; through Multus' file it gets our address; DEL leaves nothing."""
    key = "net.ipv4.conf.eth0.arp_announce"
    with rig(containerd=True) as made:
        made.node.install(TUNING, f"{BIN}/mesh-cni")
        with closing(CriRuntime(socket=made.node.root + "/run/containerd/containerd.sock")) as runtime:
            assert Path(BIN) in runtime.plugin_directories()
        made.node.install(Path(__file__).parents[2] / "neighbours" / "multus.py", f"{BIN}/multus")

        class Mesh(IstioAgent):
            plugin: ClassVar[dict[str, Any]] = {"type": "mesh-cni", "name": "mesh-cni", "sysctl": {key: "2"}}

        with running(Mesh(directory(made))):
            wait_until(lambda: types(made) == ["vpc-cni", "mesh-cni"], what="it is appended")
            wait_until(lambda: "1.1.0" not in conflist(made)["cniVersions"], what="its versions")
        for sorts_first in (None, multus(delegates=[conflist(made)]), multus(clusterNetwork=f"{NET_D}/{OURS}")):
            if sorts_first is not None:
                made.node.write_file(f"{NET_D}/00-multus.conf", json.dumps(sorts_first).encode(), 0o644)
                wait_until(lambda: ("first", "00-multus.conf") in companions(made), what="the fact in status")
                time.sleep(1.0)  # the runtime reads its directory when it is notified
            sandbox = made.node.cri.run_sandbox(f"pod-{sorts_first is None}")
            assert len(made.attachments()) == 1
            assert subjects(made) == set()
            made.node.cri.stop(sandbox)
            made.node.cri.remove(sandbox)
            made.assert_sound(expected=0)
