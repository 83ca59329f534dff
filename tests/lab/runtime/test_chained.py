"""portmap behind ours on a runtime that asks STATUS: the node is Ready with a portmap of any release, and pods run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.node.node import REPOSITORY
from tests.lab.runtime.conftest import rig_with, run_sandbox
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

PORTMAPS = {"Debian's 1.1.1": Path("/usr/lib/cni/portmap"), "the image's": REPOSITORY / "build" / "reference-plugins" / "portmap"}


@pytest.mark.parametrize(
    ("name", "version"),
    [("Debian's 1.1.1", "2"), ("the image's", "2"), pytest.param("the image's", "1.6", marks=pytest.mark.heavy)],
)
def test_the_node_is_ready_and_pods_run(name: str, version: str) -> None:
    """Debian's portmap does not speak 1.1.0: called in it, containerd 2.1 calls the node NotReady, "missing containerID"."""
    portmap = PORTMAPS[name]
    if not portmap.exists():
        pytest.skip(f"{portmap} is not here: `make setup`")
    with rig_with(version, start=False, env={"VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": "true"}) as made:
        made.node.install(portmap, "/opt/cni/bin/portmap")
        made.start()
        wait_until(lambda: made.node.cri.network_problem(timeout_s=120) == "", what="NetworkReady")
        sandbox = run_sandbox(made, "pod")
        made.node.cri.stop(sandbox)
        made.node.cri.remove(sandbox)
        made.node.cri.stop(sandbox)  # as kubelet, which has not heard that it is removed
        made.assert_sound(expected=0)


@pytest.mark.parametrize("version", ["2", "1.7"])
def test_a_plugin_in_the_directory_of_our_network(version: str) -> None:
    """containerd 2.1 chains it behind ours, and 1.7 does not know it: both are Ready, and pods run, with a portmap of 1.0.0."""
    portmap = PORTMAPS["Debian's 1.1.1"]
    if not portmap.exists():
        pytest.skip(f"{portmap} is not here: `make setup`")
    with rig_with(version, start=False) as made:
        made.node.install(portmap, "/opt/cni/bin/portmap")
        made.node.write_file("/etc/cni/net.d/vpc-ipamd/50-others.conf", b'{"type": "portmap"}')
        made.start()
        wait_until(lambda: made.node.cri.network_problem(timeout_s=120) == "", what="NetworkReady")
        sandbox = run_sandbox(made, "pod")
        made.node.cri.stop(sandbox)
        made.node.cri.remove(sandbox)
        made.assert_sound(expected=0)
