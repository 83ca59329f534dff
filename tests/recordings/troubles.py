"""What is recorded: quiet nodes, loads, and each trouble of docs/troubleshooting.md, made on a lab node.

A function gets a node that is ready with its first pods, makes its trouble, and scrapes on until the trouble is steady.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lab.fabric.errors import FabricError
from lab.fabric.netns import run_inside
from lab.vpc.family import IPV6
from tests.patience import PATIENCE_S
from tests.recordings.branches import BranchStage
from tests.recordings.stage import PORT, Stage
from tests.rig import RUN_DIR

THROTTLED, DENIED, SUBNET = "RequestLimitExceeded", "UnauthorizedOperation", "InsufficientFreeAddressesInSubnet"
GROWTH = ("AssignPrivateIpAddresses", "CreateNetworkInterface")
SMALL = {"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "3"}
CALM, TROUBLED, STEADY = 4, 20, 8
"""Scrapes before a trouble, with it, and how many of the last ones are its steady state."""


@dataclass(frozen=True)
class Scenario:
    """One recording to be made. `env` to `seed`, and `play_on`: of `stage`. `is_later`: recorded when the rules stood."""

    name: str
    what: str
    play: Callable[[Any], None]
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    steady: int = STEADY
    speed: int = 1
    interval_s: int = 15
    start: bool = True
    seed: int = 1
    is_later: bool = False
    play_on: type[Stage] = Stage


SCENARIOS: list[Scenario] = []


def scenario(**how: object) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Record a function under its name; its docstring says what was done."""

    def add(play: Callable[[Any], None]) -> Callable[[Any], None]:
        SCENARIOS.append(Scenario(play.__name__.replace("_", "-"), play.__doc__ or "", play, **how))  # type: ignore[arg-type]
        return play

    return add


# Quiet nodes and loads.


@scenario()
def idle(at: Stage) -> None:
    """Quiet: five pods, and nothing happens."""
    at.fill(5)
    at.watch(CALM + TROUBLED)


@scenario()
def packed(at: Stage) -> None:
    """Quiet: every address of the node has a pod, and no pod more is wanted."""
    at.fill(27)
    at.watch(CALM + TROUBLED)


@scenario(env={"VPC_IPAMD_MAX_PODS": "10"})
def packed_to_max_pods(at: Stage) -> None:
    """Quiet: VPC_IPAMD_MAX_PODS pods, so that the pool is at its cap."""
    at.fill(10)
    at.watch(CALM + TROUBLED)


@scenario()
def churn(at: Stage) -> None:
    """Load: about every three seconds a pod ends and another starts."""
    at.fill(10)
    at.watch(CALM + TROUBLED, load=at.churn(3.0, low=8))


@scenario(options={"attach_delay_s": 6.0})
def burst(at: Stage) -> None:
    """Load: twenty pods at once on a new node, whose ENIs take six seconds to attach."""
    at.watch(2)
    at.want(20)
    at.watch(CALM + TROUBLED, load=at.retry)


@scenario(steady=4)
def rolls(at: Stage) -> None:
    """Load: a release is rolled out, and two more soon after; each is a new pod of the DaemonSet."""
    at.fill(8)
    load = at.churn(6.0, low=5)
    at.watch(6, load=load)
    for _ in range(3):
        assert at.rig.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0
        at.rig.start()
        at.pod_number += 1
        at.watch(6, load=load)


@scenario(env=SMALL)
def throttled_for_a_minute(at: Stage) -> None:
    """Load: EC2 throttles everything for a minute while the pool grows."""
    at.fill(3)
    at.watch(CALM)
    at.refuse("*", code=THROTTLED)
    at.want(4)
    at.watch(4, load=at.retry)
    at.refuse("*")
    at.watch(TROUBLED, load=at.retry)


@scenario(env={"VPC_IPAMD_MAX_PODS": "10"})
def refused_once(at: Stage) -> None:
    """Load: a full node is asked for one pod more, once."""
    at.fill(10)
    at.watch(CALM)
    at.add()
    at.watch(TROUBLED)


@scenario()
def too_many_addresses(at: Stage) -> None:
    """Load: twenty pods end, and their addresses stay for a while."""
    at.fill(22)
    at.watch(CALM)
    for _ in range(20):
        at.remove()
    at.watch(TROUBLED)


@scenario(env={"VPC_IPAMD_SETTINGS_FILE": "/run/settings/file"}, start=False)
def target_changed(at: Stage) -> None:
    """Load: a target is changed in the settings file."""
    at.rig.node.write_file("/run/settings/file", b"WARM_IP_TARGET=2\n")
    at.rig.start()
    at.watch(CALM)
    at.rig.node.write_file("/run/settings/file", b"WARM_IP_TARGET=5\nVPC_IPAMD_RELOAD_JITTER_SECONDS=0\n")
    at.watch(TROUBLED)


@scenario()
def repaired(at: Stage) -> None:
    """Load: a pod's route is deleted once, and nftables flushed once; both are repaired."""
    at.fill(4)
    at.watch(CALM)
    at.shell(f"ip route del {next(iter(at.rig.attachments().values()))}/32")
    at.watch(2)
    at.shell("nft flush ruleset")
    at.watch(TROUBLED)


# Troubles with addresses.


@scenario(env={"VPC_IPAMD_MAX_PODS": "10"})
def more_than_max_pods(at: Stage) -> None:
    """Ten pods are the most (VPC_IPAMD_MAX_PODS), and the kubelet wants fourteen."""
    at.fill(10)
    at.watch(CALM)
    at.want(4)
    at.watch(TROUBLED, load=at.retry)


@scenario()
def more_than_the_node(at: Stage) -> None:
    """All addresses that the instance may have are taken, and the kubelet wants four pods more."""
    at.fill(27)
    at.watch(CALM)
    at.want(4)
    at.watch(TROUBLED, load=at.retry)


@scenario(env=SMALL)
def subnet_full(at: Stage) -> None:
    """The subnet has no free address, and pods are wanted."""
    at.fill(2)
    at.watch(CALM)
    at.rig.lab.faults.apply({"subnets": {"*": {"leave": 0}}})
    at.want(6)
    at.watch(TROUBLED, load=at.retry)


@scenario(env=SMALL, steady=16)
def throttled(at: Stage) -> None:
    """EC2 throttles every call, and pods are wanted."""
    at.fill(2)
    at.watch(CALM)
    at.refuse("*", code=THROTTLED)
    at.want(6)
    at.watch(2 * TROUBLED, load=at.retry)


@scenario(env=SMALL, speed=20, steady=0)
def denied(at: Stage) -> None:
    """IAM denies what the pool grows by, and pods are wanted; accelerated twentyfold."""
    at.fill(2)
    at.watch(CALM)
    at.refuse(*GROWTH, code=DENIED)
    at.want(3)
    at.watch(400, load=at.retry)


@scenario(start=False)
def denied_at_start(at: Stage) -> None:
    """IAM denies the first call of a start."""
    at.refuse("DescribeNetworkInterfaces", code=DENIED)
    at.rig.start(wait=False)
    at.watch(CALM + TROUBLED)


@scenario(env={"WARM_ENI_TARGET": "1"})
def denied_groups(at: Stage) -> None:
    """EC2 denies to change an ENI's security groups, which somebody changed at the primary one."""
    at.fill(12)
    at.watch(CALM)
    at.refuse("ModifyNetworkInterfaceAttribute", code=DENIED)
    hands, instance = at.rig.lab.vpc.hands, at.rig.node.instance_id
    primary = next(eni for eni in at.rig.lab.vpc.enis_of(instance) if eni.attachment and eni.attachment.device_index == 0)
    hands.change_groups(primary.eni_id, ("sg-other",))
    at.watch(TROUBLED, load=at.churn(10.0, low=10))


@scenario(env=SMALL)
def ec2_silent(at: Stage) -> None:
    """EC2 answers no call, and pods are wanted."""
    at.fill(2)
    at.watch(CALM)
    at.refuse("*", hang=True)
    at.want(6)
    at.watch(TROUBLED, load=at.retry)


@scenario(env=SMALL)
def ec2_slow(at: Stage) -> None:
    """Load: EC2 takes eight seconds for each call, and pods come and go in sixes; the pool has soon what they need."""
    at.fill(6)
    at.watch(CALM)
    at.refuse("*", latency_s=8)
    for _ in range(TROUBLED // 2):
        for _ in range(len(at.running)):
            at.remove()
        at.want(6)
        at.watch(2, load=at.retry)


# Troubles with the daemon.


@scenario(start=False)
def wrong_setting(at: Stage) -> None:
    """A wrong setting: the daemon ends at once, whenever it is started."""
    at.rig.start()
    at.watch(CALM)
    at.rig.kill()
    for _ in range(TROUBLED):
        at.rig.start(wait=False, env={"WARM_IP_TARGET": "many"})
        assert at.rig.daemon is not None
        assert at.rig.daemon.wait(PATIENCE_S) == 2
        at.watch(1)


@scenario(steady=14)
def crash_loop(at: Stage) -> None:
    """The daemon is killed every 50 s, as by a lack of memory, and started again."""
    at.fill(6)
    at.watch(CALM)
    for turn in range(2 * TROUBLED):
        if turn % 3 == 0:
            at.rig.restart()
        at.watch(1)


@scenario()
def stopped(at: Stage) -> None:
    """The daemon's process is stopped: it holds its sockets, and answers nobody."""
    at.fill(4)
    at.watch(CALM)
    assert at.rig.daemon is not None
    at.rig.daemon.send_signal(signal.SIGSTOP)
    at.watch(TROUBLED // 2)
    at.rig.daemon.send_signal(signal.SIGCONT)


@scenario(env={"VPC_IPAMD_SETTINGS_FILE": "/run/settings/file"}, start=False)
def settings_wrong(at: Stage) -> None:
    """The settings file is wrong."""
    at.rig.node.write_file("/run/settings/file", b"WARM_IP_TARGET=2\n")
    at.rig.start()
    at.watch(CALM)
    at.rig.node.write_file("/run/settings/file", b"WARM_IP_TARGET=many\n")
    at.watch(TROUBLED)


@scenario(start=False)
def disk_full(at: Stage) -> None:
    """The run directory's disk is full, and pods come and go."""
    at.shell("mkdir -m 700 -p /run/vpc-ipamd && mount -t tmpfs -o size=3m,mode=700 none /run/vpc-ipamd")
    at.rig.start()
    at.fill(4)
    at.watch(CALM)
    at.shell("dd if=/dev/zero of=/run/vpc-ipamd/filler bs=4k count=1000 2>/dev/null || true")
    at.want(12)
    at.watch(TROUBLED, load=at.retry)


@scenario()
def runtime_gone(at: Stage) -> None:
    """The container runtime is gone."""
    at.fill(4)
    at.watch(CALM)
    at.runtime.close()
    at.watch(TROUBLED)


@scenario()
def frozen(at: Stage) -> None:
    """An operator froze the pool, and forgot it."""
    at.fill(4)
    at.watch(CALM)
    assert at.rig.driver.ipamctl("freeze").returncode == 0
    at.watch(TROUBLED)


@scenario()
def flooded(at: Stage) -> None:
    """Two hundred connections are held open to the metrics port, and renewed."""
    at.fill(4)
    at.watch(CALM)
    with ExitStack() as held:

        def connect() -> None:
            for _ in range(40):
                with suppress(OSError, FabricError):
                    one = partial(socket.create_connection, ("127.0.0.1", PORT), timeout=1.0)
                    held.enter_context(run_inside(at.rig.node.netns_path(), one))

        at.watch(TROUBLED, load=connect)


@scenario(env={"VPC_IPAMD_CRI_SOCKET": "off"})
def quarantined(at: Stage) -> None:
    """The datastore was lost, and no runtime can say whose the wired addresses are."""
    at.fill(4)
    at.watch(CALM)
    at.rig.kill()
    at.rig.driver.lose_datastore()
    at.rig.start()
    at.watch(TROUBLED)


# Troubles with others on the node, and at EC2.


@scenario(steady=0, speed=10)
def fight(at: Stage) -> None:
    """Something deletes a pod's route about every second; accelerated tenfold."""
    at.fill(4)
    at.watch(CALM)
    address = next(iter(at.rig.attachments().values()))

    def fight_it() -> None:
        at.rig.node.run(["ip", "route", "del", f"{address}/32"], check=False)

    at.watch(500, load=fight_it)


@scenario()
def conflist_refused(at: Stage) -> None:
    """The CNI configuration directory cannot be written, and the conflist is gone."""
    at.fill(4)
    at.watch(CALM)
    at.shell("mount -t tmpfs -o ro none /etc/cni/net.d")
    at.watch(TROUBLED)


@scenario()
def plugin_gone(at: Stage) -> None:
    """A plugin that sandboxes need is deleted."""
    at.fill(4)
    at.watch(CALM)
    at.shell("rm /opt/cni/bin/loopback")
    at.watch(TROUBLED)


@scenario()
def eni_detached(at: Stage) -> None:
    """Somebody detached a secondary ENI with three pods."""
    at.fill(12)
    at.watch(CALM)
    used = set(at.rig.attachments().values())
    enis = at.rig.lab.vpc.enis_of(at.rig.node.instance_id)
    gone = next(eni for eni in enis if eni.attachment and eni.attachment.device_index and set(eni.secondary_addresses) & used)
    at.rig.lab.vpc.hands.detach(gone.eni_id)
    at.watch(TROUBLED)


@scenario(env=SMALL)
def metadata_differs(at: Stage) -> None:
    """Somebody assigned an address, which instance metadata shows and EC2 does not."""
    at.fill(2)
    at.watch(CALM)
    at.refuse("DescribeNetworkInterfaces", lag_s=86400)
    (primary,) = at.rig.lab.vpc.enis_of(at.rig.node.instance_id)
    at.rig.lab.vpc.hands.assign(primary.eni_id)
    at.watch(TROUBLED)


@scenario()
def given_twice(at: Stage) -> None:
    """Amazon-vpc-cni-k8s was started beside us, and gave addresses that pods have."""
    at.fill(4)
    at.watch(CALM)
    taken = list(at.rig.attachments().values())[:2]
    allocations = [
        {"networkName": "aws-cni", "containerID": f"{number:064x}", "ifName": "eth0", "ipv4": str(address), "metadata": {}}
        for number, address in enumerate(taken)
    ]
    document = {"version": "vpc-cni-ipam/1", "allocations": allocations}
    at.rig.node.write_file("/var/run/aws-node/ipam.json".replace("/var/run", "/run"), json.dumps(document).encode())
    for _ in range(TROUBLED):
        at.watch(1)
        if not at.rig.driver.is_running:  # it ends, to take over what the other gave
            at.rig.start(wait=False)


# Recorded after the rules were written, with other loads, other numbers and other seeds: no limit was chosen by these.

later = partial(scenario, is_later=True, seed=2)
PREFIXES = {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}


@later(options={"family": IPV6}, interval_s=30)
def idle_ipv6(at: Stage) -> None:
    """Quiet: a node of IPv6 with eight pods."""
    at.fill(8)
    at.watch(14)


@later(env=PREFIXES | {"VPC_IPAMD_MAX_PODS": "40"}, interval_s=30)
def packed_prefixes(at: Stage) -> None:
    """Quiet: forty pods in /28s, which is VPC_IPAMD_MAX_PODS."""
    at.fill(40)
    at.watch(14)


@later(env={"WARM_IP_TARGET": "10"}, steady=16)
def jobs(at: Stage) -> None:
    """Load: eight pods come at once every two minutes, and go a minute later."""
    at.fill(5)
    for _ in range(3):
        at.want(8)
        at.watch(4, load=at.retry)
        for _ in range(min(8, len(at.running))):
            at.remove()
        at.watch(4, load=at.retry)


@later(env={"WARM_IP_TARGET": "8"}, steady=16)
def busy(at: Stage) -> None:
    """A pod ends and another starts every second, which is more than the warm target is for: one ADD in twenty waits for EC2."""
    at.fill(6)
    at.watch(20, load=at.churn(1.0, low=4))


@later(env=PREFIXES)
def killed_once(at: Stage) -> None:
    """Load: the daemon is killed once, under churn, and starts again."""
    at.fill(6)
    load = at.churn(4.0, low=4)
    at.watch(8, load=load)
    at.rig.restart()
    at.watch(14, load=load)


@later(steady=16)
def runtime_restarts(at: Stage) -> None:
    """The runtime is restarted every two minutes, and away for half a minute each time."""
    at.fill(5)
    at.watch(2)
    for _ in range(3):
        at.runtime.close()
        at.watch(2)
        at.runtime.start()
        at.watch(6)


@later(options={"attach_delay_s": 20.0})
def slow_growth(at: Stage) -> None:
    """Load: five new nodes' worth of ENIs: attaching takes twenty seconds, and pods come in threes."""
    for _ in range(7):
        at.want(3)
        at.watch(1, load=at.retry)
    at.watch(14, load=at.retry)


@later(env={"WARM_IP_TARGET": "1"})
def throttled_by_others(at: Stage) -> None:
    """EC2 takes a call in fifty seconds and throttles the others, and pods come and go."""
    at.fill(3)
    at.watch(CALM)
    at.refuse("*", throttle={"rate_per_s": 0.02, "burst": 1})
    at.want(14)
    at.watch(36, load=at.retry)


@later(env={"WARM_ENI_TARGET": "0"}, speed=10, steady=0)
def denied_assign(at: Stage) -> None:
    """IAM denies AssignPrivateIpAddresses alone, and a pod is wanted; accelerated tenfold."""
    at.fill(2)
    at.watch(CALM)
    at.refuse("AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface", code=DENIED)
    at.want(10)
    at.watch(360, load=at.retry)


@later(env=SMALL)
def quota(at: Stage) -> None:
    """The account's quota of ENIs is used up, and pods are wanted."""
    at.fill(7)
    at.watch(CALM)
    at.rig.lab.faults.apply({"interface_quota": 1})
    at.want(7)
    at.watch(TROUBLED, load=at.retry)


@later()
def subnet_nearly_full(at: Stage) -> None:
    """Ten addresses are left in the subnet; this node has what it needs."""
    at.rig.lab.faults.apply({"subnets": {"*": {"leave": 10}}})
    at.fill(11)
    at.watch(CALM + TROUBLED)


@later(steady=0, speed=4)
def fight_for_a_rule(at: Stage) -> None:
    """Something deletes a rule of ours about every second; accelerated fourfold."""
    at.fill(12)
    at.watch(CALM)
    at.watch(280, load=lambda: at.rig.node.run(["ip", "rule", "del", "pref", "1024"], check=False))


@later(steady=16)
def slow_crash_loop(at: Stage) -> None:
    """The daemon ends every two minutes, and starts again."""
    at.fill(4)
    at.watch(CALM)
    for _ in range(4):
        at.rig.restart()
        at.watch(8, load=at.retry)


@later(env={"WARM_ENI_TARGET": "0"})
def eni_deleted(at: Stage) -> None:
    """A secondary ENI with pods was detached and deleted by hand."""
    at.fill(14)
    at.watch(CALM)
    used = set(at.rig.attachments().values())
    enis = at.rig.lab.vpc.enis_of(at.rig.node.instance_id)
    gone = next(eni for eni in enis if eni.attachment and eni.attachment.device_index and set(eni.secondary_addresses) & used)
    at.rig.lab.vpc.hands.detach(gone.eni_id)
    at.watch(2)
    at.rig.lab.vpc.hands.delete(gone.eni_id)
    at.watch(TROUBLED, load=at.churn(20.0, low=13))


@later(env={"WARM_IP_TARGET": "9"}, steady=0)
def throttled_at_rest(at: Stage) -> None:
    """EC2 throttles everything while no pod is wanted, and the pool is short of its target; its pauses still double."""
    at.fill(2)
    at.watch(CALM)
    at.refuse("*", code=THROTTLED)
    at.fill(5)
    at.watch(TROUBLED)


# Recorded last, because the limit of throttling was changed by throttled_by_others.


@later(env={"WARM_IP_TARGET": "3"}, seed=3)
def throttled_for_five_minutes(at: Stage) -> None:
    """EC2 throttles everything for five minutes, in which pods are wanted, and serves them then."""
    at.fill(3)
    at.watch(CALM)
    at.refuse("*", code=THROTTLED)
    at.want(6)
    at.watch(20, load=at.retry)
    at.refuse("*")
    at.watch(16, load=at.retry)


@later(env={"WARM_IP_TARGET": "4", "MINIMUM_IP_TARGET": "6"}, interval_s=30, steady=16, seed=3)
def throttled_for_long(at: Stage) -> None:
    """EC2 throttles what a pool grows by, and two pods are wanted."""
    at.fill(6)
    at.watch(CALM)
    at.refuse(*GROWTH, code=THROTTLED)
    at.want(7)
    at.watch(20, load=at.retry)


# Recorded for alerts that had been tried on made-up series until then; the rules stood.


@later(env={"VPC_IPAMD_EXTRA_SOURCE_CIDRS": "192.0.2.0/24"}, seed=4)
def extra_sources(at: Stage) -> None:
    """Pods may send with further addresses, as an operator set it."""
    at.fill(7)
    at.watch(CALM + TROUBLED, load=at.churn(15.0, low=5))


@later(seed=4)
def confinement_taken(at: Stage) -> None:
    """A program puts a table of its own, which only it may change, in the place of the one that confines pods."""
    at.fill(5)
    at.watch(CALM)
    table = "delete table ip vpc-ipamd-confine; add table ip vpc-ipamd-confine { flags owner; }"
    holder = at.rig.node.spawn(["/bin/sh", "-c", f"(echo '{table}'; sleep 900) | nft -i"])
    try:
        at.watch(TROUBLED)
    finally:
        holder.kill()
        holder.wait(PATIENCE_S)


@later(start=False, seed=4)
def spool_stays(at: Stage) -> None:
    """Two pods end while the daemon is stopped for a while, and the run directory's disk is full when it goes on."""
    at.shell("mkdir -m 700 -p /run/vpc-ipamd && mount -t tmpfs -o size=3m,mode=700 none /run/vpc-ipamd")
    at.rig.start()
    at.fill(6)
    at.watch(CALM)
    assert at.rig.daemon is not None
    at.rig.daemon.send_signal(signal.SIGSTOP)
    at.end(2)
    at.watch(4)
    at.shell("dd if=/dev/zero of=/run/vpc-ipamd/filler bs=4k count=1000 2>/dev/null || true")
    at.rig.daemon.send_signal(signal.SIGCONT)
    at.watch(TROUBLED)


@later(env={"VPC_IPAMD_FAILPOINT": "attach.wired:4=pause"}, speed=10, seed=4)
def operation_stuck(at: Stage) -> None:
    """A failpoint holds an ADD for a minute, which is ten of the daemon: accelerated tenfold."""
    at.fill(3)
    at.watch(CALM)
    at.want(1)
    at.watch(30)


@later(options={"family": IPV6}, env={"IP_COOLDOWN_PERIOD": "86400"}, seed=4)
def egress_nearly_used_up(at: Stage) -> None:
    """A node of IPv6 on which a thousand pods came and went, each with an address for egress that still cools."""
    at.fill(8)
    at.come_and_go(975)
    at.watch(CALM)
    at.come_and_go(35)
    at.watch(TROUBLED)


@later(seed=4)
def two_links_with_one_address(at: Stage) -> None:
    """Somebody made a second link with the name, mark and route of a pod's, and the daemon starts anew."""
    at.fill(5)
    at.watch(CALM)
    address = sorted(at.rig.attachments().values(), key=int)[0]
    at.shell(
        f"link=$(ip -o route show {address} | sed 's/.* dev \\([^ ]*\\).*/\\1/');"
        " mark=$(cat /sys/class/net/$link/ifalias | sed 's/pod-/copy-/');"
        ' ip link add eni0123456789a type veth peer name copy; ip link set eni0123456789a up alias "$mark"; ip link set copy up'
    )
    at.rig.restart()
    at.watch(TROUBLED)


# Recorded by somebody who had not written the rules, with troubles of their own.


@later(env={"WARM_ENI_TARGET": "0"}, seed=5)
def packed_without_spare(at: Stage) -> None:
    """Quiet: nine pods with WARM_ENI_TARGET=0: the pool is empty for a moment, and grows by an ENI."""
    at.fill(9)
    at.watch(CALM + TROUBLED)


@later(env={"WARM_IP_TARGET": "5"}, seed=5, steady=16)
def all_replaced(at: Stage) -> None:
    """Load: every two minutes ten pods end and ten start, as by a Deployment that is rolled out."""
    at.fill(10)
    for _ in range(3):
        for _ in range(len(at.running)):
            at.remove()
        at.want(10)
        at.watch(8, load=at.retry)


@later(seed=5)
def other_conflist(at: Stage) -> None:
    """Another CNI's installer wrote a conflist that sorts before ours."""
    at.fill(5)
    at.watch(CALM)
    at.rig.node.write_file("/etc/cni/net.d/00-other.conflist", b'{"name": "other", "plugins": [{"type": "bridge"}]}')
    at.watch(TROUBLED - 6, load=at.churn(20.0, low=4))


@later(seed=5)
def default_route_gone(at: Stage) -> None:
    """Somebody deleted the node's default route."""
    at.fill(6)
    at.watch(CALM)
    at.shell("ip route del default")
    at.watch(TROUBLED)


@later(env=SMALL, seed=5)
def address_unassigned(at: Stage) -> None:
    """Somebody took the address of a pod from its ENI."""
    at.fill(4)
    at.watch(CALM)
    at.rig.lab.vpc.hands.unassign(sorted(at.rig.attachments().values(), key=int)[0])
    at.watch(TROUBLED + 10)


@later(env=SMALL, seed=5)
def ec2_fails(at: Stage) -> None:
    """EC2 answers every call with InternalError, and pods are wanted."""
    at.fill(3)
    at.watch(CALM)
    at.refuse("*", code="InternalError")
    at.want(5)
    at.watch(TROUBLED, load=at.retry)


@later(seed=5)
def metadata_silent(at: Stage) -> None:
    """Instance metadata does not answer any more, and pods come and go."""
    at.fill(5)
    at.watch(2 * CALM)
    at.rig.lab.faults.apply({"unreachable": {"imds": "hang"}})
    at.watch(STEADY + 1, load=at.churn(15.0, low=4))


@later(steady=14, seed=5)
def short_lives(at: Stage) -> None:
    """The daemon ends within seconds of each start, and is started again 100 s later."""
    at.fill(4)
    at.watch(CALM)
    at.rig.kill()
    for _ in range(4):
        at.watch(6)
        at.rig.start()
        at.watch(1)
        at.rig.kill()


@later(env={"WARM_ENI_TARGET": "0"}, seed=6)
def eni_detached_while_away(at: Stage) -> None:
    """While the daemon was away its datastore was lost, and somebody detached a secondary ENI with pods."""
    at.fill(12)
    at.watch(CALM)
    used = set(at.rig.attachments().values())
    enis = at.rig.lab.vpc.enis_of(at.rig.node.instance_id)
    gone = next(eni for eni in enis if eni.attachment and eni.attachment.device_index and set(eni.secondary_addresses) & used)
    at.rig.kill()
    at.shell(f"rm -f {RUN_DIR}/state.db*")
    at.rig.lab.vpc.hands.detach(gone.eni_id)
    at.rig.start()
    at.watch(TROUBLED)


# Slower than the rules of their time; these were changed for them.


@later(speed=10, steady=100, seed=7)
def undone_each_25_minutes(at: Stage) -> None:
    """Something deletes a rule of ours every 25 minutes; accelerated tenfold."""
    at.fill(6)
    at.watch(CALM)
    for _ in range(2):
        at.rig.node.run(["ip", "rule", "del", "pref", "1024"])
        at.watch(100)


@later(speed=10, steady=120, seed=7)
def ends_each_15_minutes(at: Stage) -> None:
    """The daemon ends every 15 minutes, and starts again; accelerated tenfold."""
    at.fill(5)
    at.watch(CALM)
    at.watch(60)
    for _ in range(2):
        at.rig.restart()
        at.watch(60)


# Pods with security groups of their own; recorded when the rules for them stood.

branches = partial(later, play_on=BranchStage, seed=8)
ANNOTATIONS = {"ENABLE_POD_ENI": "true", "WARM_IP_TARGET": "6"}
KUBELET = ANNOTATIONS | {"VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": "kubelet"}


def _with_branches(at: BranchStage, *, share: float = 1 / 3) -> Callable[[], None]:
    """The node's first pods. Returns: a load: about every six seconds one of either kind ends and one starts."""
    at.fill(4)
    at.want_branches(3)
    return at.churn_of_both(6.0, most=5, share=share)


@branches(env=ANNOTATIONS)
def branch_idle(at: BranchStage) -> None:
    """Quiet: five pods with security groups and three without, and nothing happens."""
    at.fill(3)
    at.want_branches(5)
    at.watch(CALM + TROUBLED, load=at.retry)


@branches(env=ANNOTATIONS)
def branch_churn(at: BranchStage) -> None:
    """Load: pods come and go, and more than one in four has security groups; each of these is refused once, until its ENI is named."""
    load = _with_branches(at)
    at.watch(CALM + TROUBLED, load=load)


@branches(env=KUBELET)
def branch_churn_by_kubelet(at: BranchStage) -> None:
    """Load: the same, by kubelet's pods service: each ADD waits for the control plane, which takes four seconds."""
    at.branches.controller.slow_s = 4.0
    load = _with_branches(at)
    at.watch(CALM + TROUBLED, load=load)


@branches(env=ANNOTATIONS)
def branch_controller_slow(at: BranchStage) -> None:
    """Load: the control plane takes half a minute for each branch ENI."""
    load = _with_branches(at)
    at.watch(CALM, load=load)
    at.branches.controller.slow_s = 30.0
    at.watch(TROUBLED + STEADY, load=load)


@branches(env=ANNOTATIONS)
def branch_controller_away(at: BranchStage) -> None:
    """Load: the control plane's controller is away for four minutes, in which pods with security groups are wanted."""
    load = _with_branches(at)
    at.watch(CALM, load=load)
    at.branches.controller.stop()
    at.want_branches(2)
    at.watch(16, load=load)
    at.branches.controller.start()
    at.watch(TROUBLED, load=load)


def _controller_goes(at: BranchStage, scrapes: int) -> None:
    at.fill(4)
    at.want_branches(3)
    at.watch(CALM, load=at.retry)
    at.branches.controller.stop()
    at.want_branches(1)
    at.watch(scrapes, load=at.churn(6.0, low=4))


@branches(env=ANNOTATIONS)
def branch_controller_gone(at: BranchStage) -> None:
    """The control plane's controller is gone, and one pod with security groups is wanted, beside pods without."""
    _controller_goes(at, TROUBLED)


@branches(env=KUBELET, steady=18)
def branch_controller_gone_by_kubelet(at: BranchStage) -> None:
    """The same, by kubelet's pods service: each ADD waits as long as it may."""
    _controller_goes(at, TROUBLED + 2)


@branches(env=ANNOTATIONS)
def branch_never_made(at: BranchStage) -> None:
    """One pod's security group does not exist, so that its branch ENI is never made; a few others with security groups get theirs."""
    load = _with_branches(at, share=0.05)
    at.watch(CALM, load=load)
    at.want_branches(1, groups=("sg-unknown",))
    at.watch(TROUBLED, load=load)


@branches(env=ANNOTATIONS)
def branch_never_made_beside_many(at: BranchStage) -> None:
    """The same, and three others with security groups get theirs in every minute."""
    load = _with_branches(at)
    at.watch(CALM, load=load)
    at.want_branches(1, groups=("sg-unknown",))
    at.watch(TROUBLED + 6, load=load)


@branches(env=ANNOTATIONS)
def branch_named_wrongly(at: BranchStage) -> None:
    """Somebody wrote an annotation into a pod that names no branch ENI; others with security groups get theirs in every minute."""
    load = _with_branches(at)
    at.watch(CALM, load=load)
    at.want_branches(1, groups=("sg-unknown",), named="[]")
    at.watch(TROUBLED, load=load)


@branches(env=ANNOTATIONS)
def trunk_missing(at: BranchStage) -> None:
    """The trunk was deleted, the control plane makes no other, and two pods with security groups are wanted."""
    at.fill(5)
    at.watch(CALM)
    at.lose_trunk()
    at.want_branches(2)
    at.watch(TROUBLED + 6, load=at.retry)


@branches(env=KUBELET)
def pods_service_gone(at: BranchStage) -> None:
    """kubelet's pods service does not answer, and pods are wanted."""
    load = _with_branches(at)
    at.watch(CALM, load=load)
    at.branches.services[at.rig.node.name].stop()
    at.watch(TROUBLED, load=load)


def by_name(names: list[str]) -> list[Scenario]:
    """Those of these names; all without names. Raises: SystemExit for an unknown name."""
    known = {one.name: one for one in SCENARIOS}
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such recording: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    return [known[name] for name in names] or SCENARIOS
