"""Time the kernel's part of wiring a sandbox: our batches of netlink messages compared with pyroute2 call by call, in one run.

    .venv/bin/python -m bench.kernel_wiring

It needs root. The machine's own network namespace is not changed, and mounts are made in a private mount namespace. Times are medians
in milliseconds. A sandbox's namespace is a bind mount, as a container runtime passes it.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NoReturn

from ipamd.kernel import answers, messages, ruleset, uapi
from ipamd.kernel.netns import OWN_NETNS, HostNetns, entered
from ipamd.kernel.nft import Nftables
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.kernel.wiring import KernelWiring
from ipamd.kernel.wiring_messages import sandbox_routes
from ipamd.model.attachment import WiringSpec, sandbox_mac, veth_name
from ipamd.model.family import IPV4
from ipamd.model.ids import parse_key
from ipamd.model.legs import first_leg
from ipamd.model.legs.leg import SHARED_TABLES
from ipamd.model.pod_snat import PodSnat
from ipamd.settings import NetworkConfig

ROUNDS = 200
"""Number of wirings that are measured one by one."""

SWEPT = 30
"""Links that a measured sweep deletes. Ours: as many as one burst of bench/whole.py makes."""

SURVEYED = 110
"""Sandboxes that a measured survey reads: the most pods of a node of up to 30 vCPUs. Source: EKS user guide, maximum Pods per node."""

CLONE_NEWNS = 0x00020000  # linux/sched.h

_libc = ctypes.CDLL(None, use_errno=True)


def measure() -> dict[str, float]:
    """Make all measurements, in a thread with namespaces of its own.

    Returns: name -> median in ms. Raises: PermissionError without root; ImportError without pyroute2 (a test dependency).
    """
    medians: dict[str, float] = {}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                host = Host(Path(folder))
                try:
                    medians.update(host.run())
                finally:
                    host.close()
        except BaseException as exc:  # noqa: BLE001  # raised again in the caller's thread
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return medians


class Host:
    """The measurements on one host. It must be made and used in one thread, which moves into new namespaces for good."""

    def __init__(self, folder: Path) -> None:
        _unshare(CLONE_NEWNS | uapi.CLONE_NEWNET)
        _mount("none", "/", 0x4000 | 0x40000)  # MS_REC | MS_PRIVATE
        self._folder = folder
        self._host = HostNetns()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self._wiring = KernelWiring(self._host, veth_prefix="eni")
        self._pod = self._sandbox("pod")

    def run(self) -> dict[str, float]:
        """Make all measurements, one after another. Returns: name -> median in ms."""
        medians = {}
        for name, table in (("main table", 254), ("ENI table", 2)):
            wired, retired = self.times(ROUNDS, table=table)
            medians[f"wire, {name}"], medians[f"retire, {name}"] = statistics.median(wired), statistics.median(retired)
        medians["wire, SNAT chosen"], medians["retire, SNAT chosen"] = self._snat_by_pod(ROUNDS)
        medians["wire, pyroute2 call by call"], medians["retire, pyroute2 call by call"] = self._pyroute2(ROUNDS // 4)
        medians[f"sweep of {SWEPT}"], medians[f"{SWEPT} wires at once, all done"] = self._sweeps()
        medians[f"survey of {SURVEYED}"] = self._survey()
        return medians

    def close(self) -> None:
        """Unmount the sandboxes' namespaces. The kernel removes everything else at the end of the thread."""
        for path in self._folder.iterdir():
            _libc.umount2(str(path).encode(), 2)  # MNT_DETACH

    def wire_residents(self, count: int) -> None:
        """Wire sandboxes that stay. All use an ENI's table and addresses of prefixes, because no ENIs have so many single addresses.

        Then IPv6 is turned off on their links, as after a pass of the daemon. Otherwise the kernel would walk an IPv6 route of each
        link at each change.
        """
        for number in range(1, count + 1):
            spec = self._spec(number, self._sandbox(f"resident{number}"), table=2)
            self._wiring.wire(replace(spec, prefix=IPv4Network((spec.address, IPV4.prefix_length), strict=False)))
        subprocess.run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"], check=True)

    def times(self, rounds: int, *, table: int = 2) -> tuple[list[float], list[float]]:
        """Wire and retire one sandbox `rounds` times. *Retire* is the part of a DEL that removes routes and marks the link for
        deletion.

        Returns: ms of each wiring, and of each retirement.
        """
        spec = self._spec(0, self._pod, table=table)
        wired, retired = [], []
        for _ in range(rounds):
            wired.append(_timed(lambda: self._wiring.wire(spec)))
            retired.append(_timed(lambda: self._retire(spec)))
            self._wiring.sweep()
        return wired, retired

    def bare_times(self, rounds: int) -> tuple[list[float], list[float]]:
        """Measure the least that every wiring needs, with the same messages: a veth pair that is up, with two routes; and the least of
        a retirement: to delete the routes and mark the link. Returns: as `times`."""
        spec = self._spec(0, self._pod, table=2)
        macs = [sandbox_mac(spec.key, side=side) for side in ("host", "sandbox")]
        wired, retired = [], []
        with Path(self._pod).open() as pod, self._host.netlink() as sock:
            create = messages.create_veth(
                spec.host_veth, mac=macs[0], peer_name="eth0", peer_mac=macs[1], peer_netns=pod.fileno(), mtu=spec.mtu
            )

            def make() -> None:
                _, looked = sock.request([create, messages.get_link(spec.host_veth)])
                index = answers.read_link(looked.replies[0]).index
                up = messages.change_link(index, step="raise", is_up=True)
                sock.carry_out([up, *sandbox_routes(first_leg(spec), index, spec.host_veth)], operation="bare pair")

            def remove() -> None:
                index = answers.read_link(sock.request([messages.get_link(spec.host_veth)])[0].replies[0]).index
                routes = [
                    messages.delete_route(spec.address, length=32, table=table, index=index, step="route")
                    for table in SHARED_TABLES
                ]
                sock.carry_out([*routes, messages.change_link(index, step="mark", group=uapi.DYING_GROUP)], operation="bare pair")

            for _ in range(rounds):
                wired.append(_timed(make))
                retired.append(_timed(remove))
                self._wiring.sweep()
        return wired, retired

    def _snat_by_pod(self, rounds: int) -> tuple[float, float]:
        """Measure wiring and retiring a sandbox that chose its SNAT, and so is added to and removed from an nftables set
        (docs/adr/0082).

        Returns: the medians in ms.
        """
        sets = PodSnatSets(self._host, Nftables(self._host), is_on=True)
        spec = replace(self._spec(0, self._pod, table=2), snat=PodSnat.NONE)
        network = IPv4Network("10.0.0.0/16")
        with sets.lock:
            text = ruleset.replace_table(
                NetworkConfig(), vpc_cidrs=[network], primary_address=network[4], primary_link="lo", choices=sets.wanted()
            )
            sets.tables.repair({ruleset.SNAT: text})
        wiring = KernelWiring(self._host, veth_prefix="eni", pod_snat=sets)
        wired, retired = [], []
        for _ in range(rounds):
            wired.append(_timed(lambda: wiring.wire(spec)))
            retired.append(_timed(lambda: wiring.mark_for_deletion(spec, is_source_checked=True)))
            wiring.sweep()
        return statistics.median(wired), statistics.median(retired)

    def _sweeps(self) -> tuple[float, float]:
        specs = [self._spec(i, self._sandbox(f"swept{i}"), table=2) for i in range(SWEPT)]
        sweeps, bursts = [], []
        with ThreadPoolExecutor(SWEPT) as threads:
            for _ in range(10):
                bursts.append(_timed(lambda: list(threads.map(self._wiring.wire, specs))))
                list(threads.map(self._retire, specs))
                sweeps.append(_timed(self._wiring.sweep))
        return statistics.median(sweeps), statistics.median(bursts)

    def _survey(self) -> float:
        specs = [self._spec(i, self._sandbox(f"surveyed{i}"), table=2) for i in range(SURVEYED)]
        for spec in specs:
            self._wiring.wire(spec)
        median_ms = statistics.median(_timed(self._wiring.survey) for _ in range(20))
        for spec in specs:
            self._retire(spec)
        self._wiring.sweep()
        return median_ms

    def _pyroute2(self, rounds: int) -> tuple[float, float]:
        """Measure the same wiring and retiring on an ENI table, by calls as in pyroute2's documentation. Returns: the medians in
        ms."""
        from pyroute2 import IPRoute

        spec = self._spec(0, self._pod, table=2)
        wired, retired = [], []
        with IPRoute() as host, Path(self._pod).open() as pod:
            host.link_lookup(ifname="lo")

            def wire() -> None:
                peer = {
                    "ifname": "eth0",
                    "net_ns_fd": pod.fileno(),
                    "address": sandbox_mac(spec.key, side="sandbox"),
                    "mtu": 9001,
                }
                mac = sandbox_mac(spec.key, side="host")
                host.link("add", ifname=spec.host_veth, kind="veth", address=mac, mtu=9001, peer=peer)
                index = host.link_lookup(ifname=spec.host_veth)[0]
                host.link("set", index=index, state="up", ifalias=first_leg(spec).alias)
                address = f"{spec.address}/32"
                host.route("add", dst=address, oif=index, scope="link")
                host.rule("add", priority=512, dst=str(spec.address), dst_len=32, table=254)
                host.rule("add", priority=1536, src=str(spec.address), src_len=32, table=2)
                with entered(pod.fileno(), fatal=_fatal), IPRoute() as inside:
                    eth0 = inside.link_lookup(ifname="eth0")[0]
                    inside.link("set", index=eth0, state="up")
                    inside.addr("add", index=eth0, address=str(spec.address), prefixlen=32)
                    inside.route("add", dst="169.254.1.1/32", oif=eth0, scope="link")
                    inside.route("add", dst="default", gateway="169.254.1.1", oif=eth0)
                    inside.neigh("add", dst="169.254.1.1", lladdr=mac, ifindex=eth0, state="permanent")

            def retire() -> None:
                host.route("del", dst=f"{spec.address}/32", scope="link")
                host.rule("del", priority=512, dst=str(spec.address), dst_len=32, table=254)
                host.rule("del", priority=1536, src=str(spec.address), src_len=32, table=2)
                host.link("set", index=host.link_lookup(ifname=spec.host_veth)[0], state="down")

            for _ in range(rounds):
                wired.append(_timed(wire))
                retired.append(_timed(retire))
                self._wiring.unwire(spec)
        return statistics.median(wired), statistics.median(retired)

    def _spec(self, number: int, netns: str, *, table: int) -> WiringSpec:
        key = parse_key(f"{number:064x}", "eth0")
        address = IPv4Address("10.0.0.0") + 5 + number
        return WiringSpec(key, address, table, veth_name(key, prefix="eni"), netns, 9001)

    def _retire(self, spec: WiringSpec) -> None:
        """Retire a sandbox as DEL does when nftables is known to check source addresses, so that the link may stay up."""
        self._wiring.mark_for_deletion(spec, is_source_checked=True)

    def _sandbox(self, name: str) -> str:
        """Make a namespace and bind it to a file, as a container runtime does."""
        path = self._folder / name
        path.touch()
        with self._host.entered():  # the thread unshares inside the block, and is back in the host's namespace after it
            _unshare(uapi.CLONE_NEWNET)
            _mount(OWN_NETNS, str(path), 0x1000)  # MS_BIND
        return str(path)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        raise PermissionError(ctypes.get_errno(), "unshare: root is needed")


def _mount(source: str, target: str, flags: int) -> None:
    if _libc.mount(source.encode(), target.encode(), None, flags, None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def _fatal(reason: str) -> NoReturn:
    raise SystemExit(reason)


if __name__ == "__main__":
    for what, median_ms in measure().items():
        print(f"{what:35s} {median_ms:8.3f} ms")
