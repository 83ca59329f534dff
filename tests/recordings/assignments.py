"""Log lines of two lab nodes between which an address moves, as a collector has them: what the queries of
docs/troubleshooting.md#who-had-this-address are tried on.

`python -m tests.recordings assignments` records them anew, as root, in half a minute.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path

from lab.lab import IPV6_CIDR, Lab
from lab.vpc.state import Vpc
from tests import aws_node
from tests.lab.migration.conftest import LOOPBACK
from tests.rig import Rig, wait_until

NAME = "assignments"
LINES = Path(__file__).with_name(f"{NAME}.jsonl")
SETTINGS = {
    "WARM_IP_TARGET": "1",
    "MINIMUM_IP_TARGET": "4",
    "VPC_IPAMD_CRI_SOCKET": aws_node.CRI_SOCKET,
    "VPC_IPAMD_CRI_EVENTS": "false",
}


def record() -> Path:
    """Play it, and write what both daemons logged, in order of time. Returns: the file.

    On node-a two pods come and stay, one ends, the daemon is killed, and the datastore is lost, so that what runs is adopted. The
    instance is terminated. On node-b, whose pods have a second address for egress, a pod gets an address that node-a's had, and ends.
    """
    lines: list[str] = []
    with Lab(name=NAME, nodes=["node-a", "node-b"], containerd=False, vpc=Vpc(ipv6_cidr=IPV6_CIDR)) as lab:
        at = Rig(lab, lab.node("node-a"), env=SETTINGS, is_executed=True)
        with closing(aws_node.Runtime(at.node)) as runtime:
            at.node.write_file("/opt/cni/bin/loopback", LOOPBACK, 0o755)
            at.start()
            moved = _add(at, runtime, "web-1")
            for name in ("web-2", "job-1"):
                _add(at, runtime, name)
            at.cni("ADD", _container("web-1"), pod="web-1")  # as a runtime may repeat it
            runtime.stop_pod(_container("job-1"))
            at.delete(_container("job-1"))
            at.restart()  # killed before the line was written: the next process writes it
            wait_until(lambda: '"address released"' in at.driver.log_text(), what="the line of its end")
            at.kill()
            at.driver.lose_datastore()
            at.start()
            wait_until(lambda: len(at.attachments()) == 2, what="both pods adopted")
            wait_until(lambda: at.driver.log_text().count('"event":"adopted"') == 2, what="their lines")
            at.kill()
            lines += at.driver.log_text().splitlines()
            lab.vpc.terminate_instance(at.node.instance_id)
        at = Rig(lab, lab.node("node-b"), env=SETTINGS | {"ENABLE_V6_EGRESS": "true"}, is_executed=True)
        with closing(aws_node.Runtime(at.node)) as runtime:
            at.node.write_file("/opt/cni/bin/loopback", LOOPBACK, 0o755)
            (eni,) = lab.vpc.enis_of(at.node.instance_id)
            lab.vpc.hands.assign(eni.eni_id, address=moved)
            at.start()
            held = [_add(at, runtime, f"api-{number}") for number in (1, 2, 3)]
            assert moved in held
            gone = f"api-{1 + held.index(moved)}"
            runtime.stop_pod(_container(gone))
            at.delete(_container(gone))
            wait_until(lambda: '"address released"' in at.driver.log_text(), what="the line of its end")
            at.kill()
            lines += at.driver.log_text().splitlines()
    LINES.write_text("".join(f"{line}\n" for line in lines))
    return LINES


def _container(pod: str) -> str:
    """A sandbox ID as CRI has them."""
    return hashlib.sha256(pod.encode()).hexdigest()


def _add(at: Rig, runtime: aws_node.Runtime, pod: str) -> IPv4Address:
    """ADD of a pod. Returns: its address."""
    at.node.make_netns(_container(pod))
    reply = at.cni("ADD", _container(pod), pod=pod)
    runtime.run_pod(_container(pod), pod)
    return reply.address
