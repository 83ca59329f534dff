"""A lab node that reboots has nothing of the boot before but its disk, another boot ID, and clocks that begin anew."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.lab import Lab
from lab.node import reboot

pytestmark = pytest.mark.privileged

BEFORE = """
mkdir -p /run/vpc-ipamd /run/netns /var/lib/vpc-ipamd /var/lib/kubelet/pods/1
echo rows >/run/vpc-ipamd/state.db; echo kept >/var/lib/vpc-ipamd/kept
touch /run/netns/pod; mount --bind /proc/self/ns/net /run/netns/pod; mount -t tmpfs tmpfs /var/lib/kubelet/pods/1
ip link add eni1 type veth peer name peer1; ip link set eni1 up; ip route add 10.0.0.77 dev eni1
ip rule add to 10.0.0.77 table main prio 513; ip route add unreachable 10.99.0.0/16; nft add table ip vpc-ipamd
"""
LEFT = """
ls -A /run/netns; ls /run/vpc-ipamd; cut -d ' ' -f 2 /proc/self/mounts | grep -E 'netns/pod|kubelet'
ip -o link | grep -E 'eni1|peer1'; ip rule | grep 513; ip route show table all | grep -E '10.0.0.77|10.99'; nft list tables
"""


def test_a_reboot() -> None:
    """Processes, mounts, /run, links, rules, routes and tables are gone; the disk stays, and the wire works as after DHCP."""
    with Lab(name=f"reboot-{time.monotonic_ns()}", nodes=["node-a", "node-b"], containerd=False) as lab:
        node = lab.node("node-a")
        sleeper = node.spawn(["sleep", "1000"])
        node.run(["/bin/sh", "-ec", BEFORE])
        boot_ids = [node.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout]
        enis = lab.vpc.enis_of(node.instance_id)
        for _ in range(2):
            reboot.reboot(node, enis, containerd="/usr/bin")
            boot_ids.append(node.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout)
        assert sleeper.poll() is not None
        assert len(set(boot_ids)) == 3
        assert node.run(["/bin/sh", "-c", LEFT], check=False).stdout == ""
        assert Path(f"{node.root}/var/lib/vpc-ipamd/kept").read_text() == "kept\n"
        address = lab.primary_address("node-a")
        assert lab.ping(source="node-b", targets=[address]) == {address: True}
        assert (lab.node("node-b").run(["hostname"]).stdout, lab.node("node-b").containerd) == ("node-b\n", None)
        clocks = reboot.boot_clocks(containerd="/bin/cat")
        node.write_file("/run/clocks", clocks.encode(), 0o755)
        uptime_s = float(node.run(["/run/clocks", "/proc/uptime"]).stdout.split()[0])
        assert 0 <= uptime_s < 60
