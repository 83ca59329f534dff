"""A power cut and the next boot of a lab node, inside the node's namespaces.

All processes are killed. Mounts, /run, cgroups, links, addresses, routes, rules and nftables are removed; /etc, /opt and /var stay.
The namespaces stay too, because the lab's wires and its servers for metadata and EC2 are connected to them. Two facts about a boot
come from the machine's kernel, and are replaced for this node:

- the boot ID, by a file mounted over it, which a hook of runc also mounts in each container;
- the clocks since the boot, by a time namespace around containerd, which starts all pods and plugins.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from lab.fabric import port
from lab.node import amazon_linux
from lab.node.errors import NodeError
from lab.node.node import Node
from lab.vpc.model import Eni

PROGRAMS = "/run/booted"
"""A directory with scripts that start containerd with the clocks, and runc with the boot ID, of this boot. It exists after
`reboot` only."""

CUT_TIMEOUT_S = 60.0
BOOT_ID = "/run/.lab/boot-id"

CUT = r"""
cd /
[ "$(hostname)" = "$1" ] && [ -d /run/.lab ] || exit 9
for round in $(seq 100); do
    found=
    for one in /proc/[0-9]*; do
        pid=${one#/proc/}
        if [ "$pid" -gt 1 ] && [ "$pid" != $$ ] && kill -9 "$pid" 2>/dev/null; then found=1; fi
    done
    [ "$found" ] || break
    sleep 0.1
done
[ ! "$found" ] || { echo "processes are left"; exit 8; }
for round in $(seq 20); do # those of the machine that the node's own hide are listed too, and cannot be unmounted
    found=$(cut -d ' ' -f 2 /proc/self/mounts | grep -E '^(/run|/var/lib/kubelet|/var/lib/containerd|/proc/sys)/' \
        | grep -v '^/run/.lab' | tac | while read -r path; do ! umount -l "$path" 2>/dev/null || echo "$path"; done)
    [ "$found" ] || break
done
[ ! "$found" ] || { echo "mounts are left: $found"; exit 8; }
find /run -mindepth 1 -maxdepth 1 ! -name .lab -exec rm -rf --one-file-system {} +
mkdir -p /run/lock /run/netns
find /sys/fs/cgroup -mindepth 1 -depth -type d ! -path '/sys/fs/cgroup/init*' -exec rmdir {} + 2>/dev/null
for link in $(ls /sys/class/net); do
    case $link in
        lo) ;;
        eth*) ip addr flush dev "$link"; ip link set "$link" down ;;
        *) ip link del "$link" 2>/dev/null ;;
    esac
done
for family in -4 -6; do
    for kind in unreachable blackhole prohibit; do ip $family route flush table all type $kind 2>/dev/null; done
    ip $family rule flush
    ip $family rule add from all lookup main pref 32766
done
ip rule add from all lookup default pref 32767
nft flush ruleset
cat /proc/sys/kernel/random/uuid >"$2"
mount --bind "$2" /proc/sys/kernel/random/boot_id
sleep 1 # a time namespace counts from whole seconds, and no boot begins before the last one has ended
"""
"""Shell script of the power cut. It kills each process by its ID in the node's own PID namespace. `$1`: the node's name, by which the
script checks that it runs in that node; `$2`: BOOT_ID."""

CONTAINERD = """#!/bin/sh
exec unshare --time --monotonic=-{monotonic_s} --boottime=-{boottime_s} {containerd} "$@"
"""
RUNC = """#!/bin/sh
previous=
for word in "$@"; do
    if [ "$previous" = --bundle ]; then
        sed -i '1s|^{{|{{"hooks":{{"createContainer":[{{"path":"{programs}/boot-id"}}]}},|' "$word/config.json"
    fi
    previous=$word
done
exec {runc} "$@"
"""
HOOK = """#!/bin/sh
bundle=$(sed -n 's/.*"bundle":"\\([^"]*\\)".*/\\1/p')
exec mount --bind {boot_id} "$bundle/rootfs/proc/sys/kernel/random/boot_id"
"""
"""Mounts the boot ID in a container. RUNC adds it to each bundle as a createContainer hook, which runs after the mounts and in the
container's namespaces (opencontainers/runtime-spec config.md)."""


def reboot(node: Node, enis: Iterable[Eni], *, containerd: str) -> None:
    """Cut the node's power, and boot it as far as the kernel and DHCP do. The caller starts containerd and all other programs.

    Args:
        enis: the ENIs that are attached to the node.
        containerd: the directory of the containerd that the caller will start.
    Raises: NodeError if processes or mounts of the last boot are left, or if runc is not installed on the machine.
    """
    runc = shutil.which("runc")
    if runc is None:
        raise NodeError("no runc on this machine: apt-get install runc")
    if node.containerd is not None:
        node.containerd.kill()
    done = node.run(["/bin/sh", "-c", CUT, "cut", node.name, BOOT_ID], timeout_s=CUT_TIMEOUT_S, check=False)
    if done.returncode:
        raise NodeError(f"node {node.name} did not reboot: {done.stdout}{done.stderr}")
    clocks = boot_clocks(containerd=f"{containerd}/containerd")
    amazon_linux.boot(node.netns)
    for eni in enis:
        amazon_linux.follow(node.netns, [port.interface_name(eni)])
        if port.is_primary(eni):
            node.netns.ip(port.dhcp_lines(eni))
    for name, text in (
        ("containerd", clocks),
        ("runc", RUNC.format(programs=PROGRAMS, runc=runc)),
        ("boot-id", HOOK.format(boot_id=BOOT_ID)),
    ):
        node.write_file(f"{PROGRAMS}/{name}", text.encode(), 0o755)


def boot_clocks(*, containerd: str) -> str:
    """Return a script that starts a program with clocks that count from now. `containerd`: the path of the program."""
    monotonic_s, boottime_s = (int(time.clock_gettime(clock)) for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME))
    return CONTAINERD.format(monotonic_s=monotonic_s, boottime_s=boottime_s, containerd=containerd)
