"""The commands of the pages by task, in a node: each as it stands there, run by a shell, in the page's order.

`kubectl exec` is a shell function that runs what it is given in the node itself.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipamd.datastore.migrations import LEVEL
from lab.node.node import REPOSITORY
from tests import aws_node
from tests.lab.migration.conftest import LOOPBACK
from tests.rig import Rig, rig, wait_until
from tests.task_pages import IN_POD, Runner, commands, filled, sections

pytestmark = [pytest.mark.privileged, pytest.mark.heavy]

KUBECTL = 'kubectl() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }; '
FOLLOWING = ("ip -timestamp monitor", "nft monitor")
"""They go on until they are ended."""

ENDED = 124
"""What timeout(1) exits with."""


def shell(made: Rig, command: str, **words: str) -> tuple[int, str]:
    """Run a command of a page in the node: exit status, and what it printed."""
    script = filled(command.replace(IN_POD, "kubectl exec POD -- "), words)
    if command.startswith(FOLLOWING):
        script = f"exec timeout 0.5 {script}"
    path = f"PATH={Path(sys.executable).parent}:$PATH; export PATH; cd /run; "
    done = made.node.run(
        ["/bin/sh", "-c", KUBECTL + path + script],
        cwd=str(REPOSITORY),
        env=made.driver.environment,
        check=False,
        timeout_s=120,
    )
    return done.returncode, done.stdout + done.stderr


def run_page(made: Rig, *pages: str, **words: str) -> dict[str, str]:
    """Run all commands of pages that are for a node, each once; none may fail. Returns: command -> what it printed."""
    printed: dict[str, str] = {}
    for command in dict.fromkeys(command for page in pages for command in commands(page, Runner.NODE)):
        if command.startswith("ipamd ") and made.driver.is_running:
            made.kill()  # those that want no daemon stand at the end
        status, printed[command] = shell(made, command, **words)
        assert status == (ENDED if command.startswith(FOLLOWING) else 0), f"{pages}: {command}: {status}: {printed[command]}"
    assert printed
    return printed


def quoted(page: str, heading: str) -> frozenset[str]:
    """The words in code font of a section."""
    return sections(page)[heading].quoted


@contextmanager
def served(**env: str) -> Iterator[Rig]:
    """A ready node with a pod `web` and a pod `first`."""
    with rig(start=False, env={"VPC_IPAMD_CRI_SOCKET": aws_node.CRI_SOCKET, "VPC_IPAMD_CRI_EVENTS": "false"} | env) as made:
        runtime = aws_node.Runtime(made.node)
        made.node.write_file("/opt/cni/bin/loopback", LOOPBACK, 0o755)
        try:
            made.start()
            for name in ("web", "first"):
                assert made.add(name).ok
                runtime.run_pod(name, name)
            yield made
        finally:
            runtime.close()


def test_install() -> None:
    """The node is ready, the sources agree, and the first pod is explained; what the page quotes is what stands there."""
    words = quoted("install.md", "6. See that it works")
    assert {"ready:", "the sources agree", "default/first"} <= words
    with served() as made:
        printed = run_page(made, "install.md", POD="ipamd")
        address = str(made.attachments()["first"])
    assert printed[f"{IN_POD}ipamctl status"].startswith("ready:")
    assert "the sources agree" in printed[f"{IN_POD}ipamctl audit"]
    explained = printed[f"{IN_POD}ipamctl explain default/first"]
    assert all(word in explained for word in (address, "default/first", "eni-", "first/eth0", " since "))


def test_install_without_the_policy() -> None:
    """What says no: EC2 denies the first call, and the status names the action."""
    assert {"NOT READY: EC2", "UnauthorizedOperation"} <= quoted("install.md", "What says no, and why")
    with rig(start=False) as made:
        denied = {"error": {"code": "UnauthorizedOperation", "message": "told by the lab"}}
        made.lab.faults.apply({"apis": {"DescribeNetworkInterfaces": denied}})
        made.start(wait=False)

        def is_told() -> bool:
            _, text = shell(made, f"{IN_POD}ipamctl status", POD="ipamd")
            return text.startswith("NOT READY: EC2") and "UnauthorizedOperation" in text.splitlines()[0]

        wait_until(is_told, what="the status names the denial")


def test_capacity() -> None:
    """Columns as the page names them, bounds of settings, and plans that change nothing."""
    with served() as made:
        printed = run_page(made, "capacity.md")
    here, there, bounded, plan, targets, prefixes, auto, other = printed.values()
    for column in ("PODS WITH AN ADDRESS", "MAX PODS", "LIMITED BY", "WITHIN EKS'S CAP"):
        assert f"`{column}`" in page_text("capacity.md")
        assert column in here
    assert "8 ENIs x 29 slots = 232" in there
    assert "MAX_ENI=2" in bounded
    assert all(word in plan for word in ("limits", "short"))
    assert "WARM_IP_TARGET=5, MINIMUM_IP_TARGET=10" in targets
    assert "nothing is changed" in prefixes
    assert "ENABLE_PREFIX_DELEGATION=true" in prefixes
    assert "VPC_IPAMD_WARM_TARGET_MODE=auto" in auto
    assert "m5.4xlarge: " in other


def test_a_network_file_is_judged_before_it_is_applied() -> None:
    """The file in force takes nothing; a changed one that is mounted is named by status, and judged by the command of the page."""
    path = "/run/network.json"
    with rig(start=False, env={"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true", "VPC_IPAMD_NETWORK_FILE": path}) as made:
        subnet = made.lab.vpc.enis_of(made.node.instance_id)[0].subnet_id
        other = made.lab.vpc.add_subnet("10.0.48.0/20").subnet_id
        made.node.write_file(path, json.dumps({"zones": {"us-west-2a": {"subnet": subnet}}}).encode())
        made.start()
        printed = run_page(made, "subnets.md")
        assert subnet in printed["ipamctl plan --network network.json"]
        made.node.write_file(path, json.dumps({"zones": {"us-west-2a": {"subnet": other}}}).encode())

        def is_named() -> bool:
            _, text = shell(made, "ipamctl status -o json")
            return "network-file-differs" in {code for each in json.loads(text)["conditions"] for code in each["codes"]}

        wait_until(is_named, what="status names the changed file")
        status, text = shell(made, "ipamctl plan --network network.json -o json")
        network = json.loads(text)["network"]
        fates = {eni["eni_id"]: eni["fate"] for eni in network["enis"]}
        assert (status, network["subnet_id"], set(fates.values())) == (1, other, {"drained", "detached"})
        made.assert_sound()


def page_text(page: str) -> str:
    """A page of docs/."""
    return (REPOSITORY / "docs" / page).read_text()


def test_collect() -> None:
    """An archive that opens, with a list and without a credential that the log had, also of a daemon that is away; the history and
    the state as JSON."""
    with served(VPC_IPAMD_METRICS_ADDRESS=":61678") as made:
        address = str(made.attachments()["web"])
        made.node.run(["/bin/sh", "-c", "echo 'password=hunter2 for default/web' >> /var/log/vpc-ipamd.log"])
        printed = run_page(made, "troubleshooting.md", POD="ipamd", ADDRESS=address)
        run = Path(made.node.root + "/run")
        assert json.loads((run / "status.json").read_text())["ready"]
        entries = json.loads((run / "history.json").read_text())["entries"]
        assert {entry["address"] for entry in entries} == {address}
        with tarfile.open(run / "node.tar.gz") as archive:
            found = [archive.extractfile(entry) for entry in archive]
            text = b"".join(file.read() for file in found if file is not None).decode()
        made.kill()
        bundle = next(command for command in printed if "ipamctl bundle" in command)
        assert shell(made, bundle, POD="ipamd")[0] == 1  # as the page says of a daemon that is away
        assert "vpc-ipamd-bundle/MANIFEST.json" in shell(made, "tar -tzf node.tar.gz")[1]
    assert "hunter2" not in text
    assert "password=[redacted]" in text
    assert address in text
    assert "MANIFEST.json" in printed["tar -tzf node.tar.gz"]
    (manifest,) = (text for command, text in printed.items() if command.endswith("MANIFEST.json"))
    assert [part["problem"] for part in json.loads(manifest)] == [""] * len(json.loads(manifest))
    (watched,) = (text for command, text in printed.items() if "watch" in command)
    assert "ready:" in watched
    assert address in printed[f"{IN_POD}ipamctl explain default/web"]


def test_the_other_pages() -> None:
    """Each command is answered by a ready node."""
    with served() as made:
        printed = run_page(made, "settings.md", "upgrade.md", POD="ipamd", LEVEL=str(LEVEL - 1))
    assert printed[f"{IN_POD}ipamctl status"].startswith("ready:")
    assert "the sources agree" in printed["ipamctl audit"]
    assert f"and is of level {LEVEL - 1}" in printed["ipamd datastore downgrade --to LEVEL"]
