"""`ipamctl audit` on a running node: what other software took from the host's routing is named within one look."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from lab.fabric.port import port_name
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

TRIES = 60
"""The reconciler repairs within a second, so the damage is done again and again while audit looks."""


@pytest.fixture(scope="module")
def two_enis() -> Iterator[Rig]:
    """A node with a secondary ENI and a sandbox on it."""
    with rig() as made:
        assert made.add("a").ok
        wait_until(lambda: made.pool()["eni_count"] == 2, what="a second ENI")
        for number in range(9):
            assert made.add(f"b{number}").ok
        yield made


def findings(made: Rig) -> list[tuple[str, str, str]]:
    """Severity, subject and words of everything but what is pending; no EC2 call."""
    answer = made.client(lambda client: client.ask("Audit", skip_ec2=True))
    assert answer is not None
    return [(each["severity"], each["subject"], each["text"]) for each in answer["findings"] if each["severity"] != "pending"]


def link_of(made: Rig, device: int) -> tuple[str, str]:
    """The ENI with that device index: its ID, and its link's name in the node."""
    answer = made.client(lambda client: client.ask("ListEnis"))
    assert answer is not None
    (eni,) = [each for each in answer["enis"] if each["device_index"] == device]
    links = made.node.run(["ip", "-o", "link"]).stdout.splitlines()
    (name,) = [line.split(": ")[1].partition("@")[0] for line in links if eni["mac"] in line]
    return eni["eni_id"], name


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("ip rule del prio 32765 lookup 2", "rule 32765"),
        ("ip rule del prio 1024", "rule 1024"),
        ("ip route flush table 2", "default route via"),
        ("ip link set {link} down", "was down"),
        ("ip addr flush dev {link}", "address 10.0."),
        ("sysctl -qw net.ipv4.ip_forward=0", "ip_forward was 0"),
        ("nft add rule ip vpc-ipamd snat_out accept", "nftables table vpc-ipamd had been changed"),
        ("nft delete table ip vpc-ipamd", "nftables table vpc-ipamd was missing"),
        ("nft delete table ip vpc-ipamd-confine", "nftables table vpc-ipamd-confine was missing"),
        ("nft flush chain ip6 vpc-ipamd-confine from_veths", "nftables table vpc-ipamd-confine (ip6) had been changed"),
    ],
)
def test_damage_is_named_with_its_place(two_enis: Rig, damage: str, words: str) -> None:
    """Each as a difference that is repaired, on the ENI or on the node."""
    eni_id, link = link_of(two_enis, 1)
    again = f"for _ in $(seq {TRIES}); do {damage.format(link=link)}; sleep 0.05; done 2>/dev/null"
    damaging = two_enis.node.spawn(["sh", "-c", again])
    try:
        while not (found := [each[:2] for each in findings(two_enis) if words in each[2]]) and damaging.poll() is None:
            continue
    finally:
        damaging.send_signal(signal.SIGKILL)  # once it is found, more damage costs three seconds and shows nothing
        damaging.wait()
    on_eni = any(word in damage for word in ("32765", "table 2", "{link}"))
    assert found == [("difference", eni_id if on_eni else "node")]


def test_a_link_without_a_carrier_is_named_until_it_has_one(two_enis: Rig) -> None:
    """By audit and by status: the link is up, and no packet passes. A carrier that comes back ends both."""
    eni_id, link = link_of(two_enis, 1)
    wire = port_name(eni_id)

    def told() -> tuple[list[str], bool]:
        status = two_enis.status()
        assert status is not None
        named = [severity for severity, subject, what in findings(two_enis) if subject == eni_id and "carrier" in what]
        return named, any("carrier" in one["text"] for one in status["conditions"] if one["subject"] == "node routing")

    two_enis.lab.fabric.router.ip([f"link set {wire} down"])
    try:
        wait_until(lambda: told()[0] == ["violation"], what="the audit's finding")
        two_enis.node.run(["ip", "rule", "del", "prio", "1024"])  # has the next pass come now
        wait_until(lambda: told()[1], what="the condition")
    finally:
        two_enis.lab.fabric.router.ip([f"link set {wire} up"])
    wait_until(lambda: told() == ([], False), what="the end of both")
    assert "UP" in two_enis.node.run(["ip", "link", "show", link]).stdout


def test_a_link_that_is_gone_is_a_violation(two_enis: Rig) -> None:
    """Nothing repairs it, and a sandbox on it has no network; last, because nothing brings the link back."""
    eni_id, link = link_of(two_enis, 1)
    two_enis.node.run(["ip", "link", "del", link])
    found = [(severity, what) for severity, subject, what in findings(two_enis) if subject == eni_id and "missing" in what]
    assert [severity for severity, _ in found] == ["violation"]
    assert "on it without network" in found[0][1]
