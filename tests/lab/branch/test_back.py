"""A pod with a branch ENI on a node that went back to amazon-vpc-cni-k8s, under a real runtime: what its plugin is told at the DEL.

libcni keeps each ADD's result under the network's name, and theirs has another one: of our results nothing is handed over, so its DEL
finds no VLAN ID and asks its daemon (docs/migration.md). Source: github.com/containernetworking/cni libcni/api.go, getCacheFilePath.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.branch.test_kills import runtime
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd, pytest.mark.slow, pytest.mark.heavy]

STUB = '#!/bin/sh\n{ env | grep ^CNI_; cat; } > /run/their-$CNI_COMMAND\necho \'{"cniVersion": "1.0.0"}\'\n'
THEIRS = {"cniVersion": "1.0.0", "name": "aws-cni", "plugins": [{"type": "their-stub"}]}


def test_its_plugin_is_handed_no_result_of_ours() -> None:
    """The links stay, and the command of the page takes them away; our own DEL, which needs no result, leaves nothing."""
    with runtime("strict") as node:
        pod = node.run("web-0")
        sandbox, root = node.kubelet.sandbox(pod), Path(node.rig.node.root)
        told = json.loads(next((root / "var/lib/cni/results").glob(f"vpc-ipamd-{sandbox}-eth0")).read_text(encoding="utf-8"))
        dummies = [one for one in told["result"]["interfaces"] if one["name"].startswith("dummy")]
        assert [one["mac"] for one in dummies] == [str(node.given(pod).vlan)], (
            "a runtime that kept it would hand over the VLAN ID"
        )

        node.rig.kill()
        stub, folder = root / "opt/cni/bin/their-stub", root / "etc/cni/net.d"
        stub.write_text(STUB, encoding="ascii")
        stub.chmod(0o755)
        for path in folder.iterdir():
            path.unlink()
        (folder / "10-aws.conflist").write_text(json.dumps(THEIRS), encoding="ascii")
        record = root / "run/their-DEL"

        def has_ended() -> bool:
            node.rig.node.cri.stop(sandbox)
            return record.exists()

        wait_until(has_ended, what="the runtime calls the other plugin")
        said = record.read_text(encoding="utf-8")
        assert "K8S_POD_NAME=web-0" in said
        assert sandbox in said
        assert "prevResult" not in said
        link = f"vlan.eth.{node.given(pod).vlan}"
        assert link in node.rig.node.netns.tool(["ip", "-o", "link"])
        node.rig.node.netns.tool(["ip", "link", "delete", link])
        assert "vlan.eth" not in node.rig.node.netns.tool(["ip", "route", "show", "table", "all"])
        node.rig.start()
        assert node.rig.cni("DEL", sandbox, pod="web-0").ok
        node.assert_only()
