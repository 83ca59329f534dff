"""manifests/host/networkd with the real systemd-networkd and udevadm: they understand every line, and leave what is ours alone.

They run without systemd as process 1, D-Bus and udevd, in a network namespace and with private /run, /etc/systemd and /sys.
NetworkManager's file is read by no program here: its package brings D-Bus, polkit and a dozen libraries more.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NETWORKD = Path("/lib/systemd/systemd-networkd")
pytestmark = [
    pytest.mark.privileged,
    pytest.mark.skipif(not NETWORKD.exists(), reason=f"no {NETWORKD}: apt-get install systemd"),
]

FILES = Path(__file__).parents[2] / "manifests" / "host" / "networkd"
SCRIPT = Path(__file__).with_name("networkd.sh")
PRIMARY = "[Match]\nName=eth0\n[Network]\nKeepConfiguration=yes\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
EVERYTHING = "[Match]\nKind=veth\n[Network]\nAddress=10.0.0.99/32\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n"
"""What a distribution's catch-all does: it configures every link that nothing before it matches."""

REJECTED = re.compile(r"^/etc/systemd/.*(Unknown|Failed to parse|nvalid|ignoring|Assignment outside)", re.MULTILINE)
FOREIGN_RULE = "Remembering foreign routing policy rule (configured): priority: 513"
"""What it remembers as foreign it removes when it configures a link."""

RUN_S = 3


@pytest.fixture
def etc(tmp_path):
    """/etc/systemd with our files; links here have no driver of ENIs, so the secondary one is matched by name.

    What `Property=` looks at only udev tells, so here it excepts nothing: the primary ENI has a file that comes first.
    """
    (tmp_path / "network").mkdir()
    (tmp_path / "networkd.conf.d").mkdir()
    for path in FILES.iterdir():
        folder = "networkd.conf.d" if path.suffix == ".conf" else "network"
        shutil.copy(path, tmp_path / folder)
    secondary = tmp_path / "network" / "10-vpc-ipamd-secondary.network"
    secondary.write_text(secondary.read_text().replace("Driver=ena", "Name=eth1"))
    (tmp_path / "network" / "05-primary.network").write_text(PRIMARY)
    (tmp_path / "network" / "90-everything.network").write_text(EVERYTHING)
    return tmp_path


def run(world, etc):
    """A node with a sandbox on each ENI; networkd comes, configures the primary ENI, and goes. Returns: its log."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    specs = [world.spec(world.space(), number=30), world.spec(world.space(), number=40, table=2)]
    for spec in specs:
        world.wiring.wire(spec)
    command = ["unshare", "--mount", "sh", str(SCRIPT), str(etc), str(RUN_S)]
    done = world.host.call(
        lambda: subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    )
    assert "eth0: found matching network '/etc/systemd/network/05-primary.network'" in done.stdout, done.stdout[-3000:]
    return done.stdout, specs


def test_networkd_understands_every_line_and_leaves_what_is_ours(world, etc):
    """No line is rejected; host veths and the secondary ENI are unmanaged; routes, rules and addresses are as they were."""
    log, specs = run(world, etc)
    assert REJECTED.findall(log) == []
    assert FOREIGN_RULE not in log
    for link in ("eth1", *(spec.host_veth for spec in specs)):
        assert f"{link}: State changed: initialized -> unmanaged" in log
    assert [world.wiring.check(spec) for spec in specs] == [[], []]
    assert world.hostnet.differences(identity=world.identity(), enis=[world.eni()]) == []


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir() if path.suffix != ".link"))
def test_without_a_file_networkd_takes_what_it_guards(world, etc, name):
    """Each file does what it is there for: without it networkd takes links or rules for its own; and a wrong line is told."""
    path = next(etc.rglob(name))
    section = "Network" if path.suffix == ".conf" else "Link"
    path.write_text(f"[{section}]\nNoSuchKey=yes\n" + ("" if path.suffix == ".conf" else "[Match]\nName=none\n"))
    log, specs = run(world, etc)
    assert REJECTED.findall(log)
    links = [spec.host_veth for spec in specs] + ["eth1"]
    assert FOREIGN_RULE in log or any(f"{link}: found matching network '/etc/systemd/network/90" in log for link in links)


@pytest.mark.skipif(shutil.which("udevadm") is None, reason="no udevadm: apt-get install udev")
@pytest.mark.parametrize("planted", ["", "NoSuchKey=yes"])
def test_udev_understands_the_link_file(world, etc, planted):
    """It is the one that udev applies to a host veth, which keeps name and MAC; a wrong line is told."""
    path = next(etc.rglob("*.link"))
    path.write_text(f"{path.read_text()}{planted}\n")
    world.host.sh("ip link add enitest type veth peer name x0")
    before = world.host.ip("link show enitest")
    command = ["unshare", "--mount", "sh", str(SCRIPT), str(etc), str(RUN_S), "udevadm", "test-builtin", "net_setup_link"]
    done = world.host.call(
        lambda: subprocess.run([*command, "/sys/class/net/enitest"], capture_output=True, text=True, timeout=120, check=True)
    )
    assert f"ID_NET_LINK_FILE=/etc/systemd/network/{path.name}" in done.stdout + done.stderr
    assert bool(REJECTED.findall(done.stderr)) == bool(planted)
    assert world.host.ip("link show enitest") == before
