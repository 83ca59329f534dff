"""The inside of a sandbox is its own: what it changed there is told by audit and CHECK, and never changed back.

A VPN's kill switch is two routes of half of everything through its tunnel, and no default route: one that is put back leaks.
Kernel, datastore and services are real; EC2, metadata and runtime are fakes. The passes are made by the test.
"""

from __future__ import annotations

import tracemalloc
from ipaddress import ip_address

import pytest

from ipamd.core.deadline import Deadline, StepTimer, SystemClock
from ipamd.model.cniresult import recorded_spec
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CheckFailedError
from ipamd.model.family import IPV4
from ipamd.model.finding_codes import FindingCode
from ipamd.model.wiring_difference import difference_texts
from ipamd.report.audit import audit
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6

pytestmark = [pytest.mark.privileged, EACH_FAMILY_HEAVY_IPV6]

TUNNEL = (
    "ip link add tun type veth peer name nut; ip link set tun addrgenmode none; ip link set nut addrgenmode none;"
    " ip link set nut up; ip link set tun up"
)
"""Without addresses that the kernel gives it by itself, a second or two later."""
HALVES = "ip route add 0.0.0.0/1 dev tun; ip route add 128.0.0.0/1 dev tun"

REFUSED = (DifferenceCode.INSIDE_REFUSES, DifferenceCode.DEFAULT_ROUTE_UNUSED)
NO_ADDRESS = (DifferenceCode.INTERFACE_ADDRESS_MISSING, DifferenceCode.INTERFACE_ADDRESS_UNUSED)
"""With IPv6 the first, with IPv4 the second."""

OWN = {
    "kill switch": (f"{TUNNEL}; {HALVES}; ip route del default", DifferenceCode.DEFAULT_ROUTE_UNUSED),
    "default route of its own": (f"{TUNNEL}; ip route replace default dev tun", DifferenceCode.DEFAULT_ROUTE_UNUSED),
    "default route refused": ("ip route add unreachable 192.0.0.0/3", REFUSED),
    "default route prohibited": ("ip route add prohibit 192.0.0.0/3", REFUSED),
    "default route into a blackhole": ("ip route add blackhole 192.0.0.0/3", REFUSED),
    "no default route": ("ip route del default", DifferenceCode.DEFAULT_ROUTE_UNUSED),
    "no routes": ("ip route flush table main", DifferenceCode.GATEWAY_ROUTE_UNUSED),
    "no neighbour": ("ip neigh del 169.254.1.1 dev eth0", DifferenceCode.GATEWAY_NEIGHBOUR),
    "another neighbour": (
        "ip neigh replace 169.254.1.1 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
        DifferenceCode.GATEWAY_NEIGHBOUR,
    ),
    "no address": ("ip addr flush dev eth0", NO_ADDRESS),
    "address elsewhere": ("ip addr flush dev eth0; ip addr add {address}/32 dev lo", NO_ADDRESS),
    "link down": ("ip link set eth0 down", DifferenceCode.INTERFACE_DOWN),
    "no link": ("ip link set eth0 name eth9", DifferenceCode.INTERFACE_MISSING),
}
"""What a sandbox does inside, and the difference that audit and CHECK find."""

VPNS = {
    "OpenVPN": f"{TUNNEL}; {HALVES}; ip route add 203.0.113.9 via 169.254.1.1 dev eth0",
    "WireGuard": (
        f"{TUNNEL}; ip route add default dev tun table 51820; ip rule add not fwmark 51820 table 51820;"
        " ip rule add table main suppress_prefixlength 0"
    ),
    "only its own table": f"{TUNNEL}; ip route add default dev tun table 7; ip rule add prio 7 lookup 7",
}
"""Tunnels that leave our routes where they are."""


class KernelNode(FakeNode):
    """A node on a kernel, without threads."""

    def __init__(self, run_dir, world):
        ec2 = FakeEc2(limits=InstanceLimits("m5.large", 2, 4), family=world.family)
        super().__init__(run_dir, network=world.config, ec2=ec2)
        self.datastore.close()
        world.prefixes = lambda: {row.prefix: row.eni_id for row in self.datastore.addresses() if row.is_rest}
        self.world, self.wiring, self.hostnet, self.clock = world, world.wiring, world.hostnet, SystemClock()
        self.start()
        self.bring_up()

    def attach(self):
        """ADD into a namespace of its own, which is returned; `request` is the ADD's."""
        pod = self.world.space()
        self.wiring.netns = {pod.path: None}
        self.runtime.run("pod")
        self.asked = self.request("pod", netns=pod.path)
        made = self.attacher.attach_sandbox(self.asked, deadline=Deadline.after(self.clock, 60), steps=StepTimer(self.clock))
        return pod, made

    def pass_by(self):
        """Everything that looks at sandboxes by itself: passes by the clock, and a restart in between."""
        for _ in range(2):
            self.host_reconciler.run_due(is_by_clock=True)
        self.crash()
        self.bring_up()
        for _ in range(2):
            self.host_reconciler.run_due(is_by_clock=True)

    def audited(self):
        """The findings of an audit."""
        report = audit(self.app.introspection.sources, ask_ec2=False)
        assert not any("sandbox" in one for one in report.silent), report.silent
        return report.findings

    def check(self):
        """CHECK; the sentence of its refusal, "" if it finds nothing."""
        try:
            self.checker.check_sandbox(self.asked, deadline=Deadline.after(self.clock, 60))
        except CheckFailedError as error:
            return error.details
        return ""


@pytest.fixture(name="node")
def _node(world, tmp_path):
    world.fabric()
    made = KernelNode(tmp_path, world)
    yield made
    made.datastore.close()


@pytest.mark.parametrize("what", OWN)
def test_the_inside_stays_as_the_sandbox_made_it(node, what):
    """I2, I14: passes and a restart change nothing inside, though the host's side is repaired; audit and CHECK say what differs."""
    pod, made = node.attach()
    node.host_reconciler.run_due(is_by_clock=True)
    assert (node.check(), node.audited()) == ("", ())
    command, expected = OWN[what]
    pod.sh(node.world.words(command).format(address=made.address))
    before = pod.snapshot()
    node.world.host.sh(node.world.words(f"ip rule del prio 513; ip route del {made.address}"))
    node.pass_by()
    assert str(made.address) in node.world.host.sh(node.world.words("ip route"))
    assert pod.snapshot() == before
    *network, finding = node.audited()
    assert [one.subject for one in network] in ([], ["network"]), "whom its own change cut off is told besides"
    assert (finding.severity, finding.subject) == ("difference", str(made.address))
    assert finding.code is FindingCode.INSIDE_DIFFERS
    (attachment,) = node.datastore.attachments()
    differences = node.wiring.check_inside(recorded_spec(attachment))
    assert {difference.code for difference in differences} & set(expected if isinstance(expected, tuple) else (expected,))
    assert finding.fields["differences"] == difference_texts(differences)
    assert node.check() != ""


@pytest.mark.parametrize("vpn", VPNS)
def test_a_tunnel_beside_our_routes_is_no_difference(node, vpn):
    """CHECK and audit have nothing to say of a sandbox that leads its packets elsewhere and keeps what ADD made."""
    pod, _ = node.attach()
    pod.sh(node.world.words(VPNS[vpn]))
    before = pod.snapshot()
    node.pass_by()
    assert pod.snapshot() == before
    assert (node.check(), node.audited()) == ("", ())


def test_the_host_end_is_repaired_for_an_inside_that_stays(node):
    """A host end that others damaged fits the inside again once it is repaired: nothing has to be done inside."""
    pod, made = node.attach()
    before = pod.snapshot()
    node.world.host.sh(f"ip link set {made.host_veth} down address 02:00:00:00:00:77 mtu 1400")
    assert node.check() != ""
    node.host_reconciler.run_due(is_by_clock=True)
    assert pod.snapshot() == before
    assert (node.check(), node.audited()) == ("", ())


def test_a_pair_that_is_gone_is_named_and_not_made_in_a_living_sandbox(node):
    """A host end that is deleted takes the inside along: CHECK names both, audit tells who has no network and waits for the DEL, no
    pass fails by it."""
    pod, made = node.attach()
    node.world.host.sh(f"ip link del {made.host_veth}")
    node.pass_by()
    assert not any(one.startswith("eth") for one in pod.link_names())
    assert f"host link {made.host_veth} is missing" in node.check()
    assert "interface eth0 is missing" in node.check()
    assert [(finding.severity, finding.subject) for finding in node.audited()] == [
        ("violation", "network"),
        ("pending", str(made.address)),
    ]


def test_a_crowded_sandbox_costs_passes_audit_and_restart_no_memory(node, tmp_path):
    """I16: 100,000 routes and 20,000 neighbours in one sandbox are not read; they were 20 MB and more at once."""
    pod, _ = node.attach()
    node.pass_by()  # what is remembered once
    batch = tmp_path / "batch"
    first = ip_address("20.0.0.0" if node.world.family is IPV4 else "2001:db8:20::")
    lines = [f"route add {first + number} dev eth0" for number in range(100_000 if node.world.family is IPV4 else 4_000)]
    lines += [f"neigh add {first + n} lladdr 02:00:00:00:00:07 dev eth0 nud permanent" for n in range(20_000)]
    batch.write_text("\n".join(lines) + "\n")
    pod.sh(f"ip -batch {batch}")
    tracemalloc.start()
    try:
        node.pass_by()
        assert (node.check(), node.audited()) == ("", ())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20, peak_bytes
