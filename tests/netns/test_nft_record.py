"""Tables that a process recorded for the next one: taken if they are unchanged, made again in every other case."""

from __future__ import annotations

import json

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_record import CONFINEMENT_RECORD, TRANSLATION_RECORD, TableRecord
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.model.repairs import RepairCode
from ipamd.settings import NetworkConfig

pytestmark = pytest.mark.privileged

BOOT = "a-boot"
TABLES = ("ip vpc-ipamd", "ip vpc-ipamd-confine", "ip6 vpc-ipamd-confine", "arp vpc-ipamd-confine")


class Node:
    """A node whose daemon is started again and again with the same run directory."""

    def __init__(self, world, run_dir):
        self.world = world
        self.run_dir = run_dir
        world.fabric()

    def start(self, *, boot_id=BOOT, config=None):
        """Do what a start does with the tables. Returns the reports about those that confine sandboxes."""
        world, config = self.world, config or self.world.config
        nft = Nftables(world.netns)
        records = [TableRecord(self.run_dir / name, boot_id=boot_id) for name in (TRANSLATION_RECORD, CONFINEMENT_RECORD)]
        hostnet = KernelHostNetwork(
            world.netns,
            config=config,
            nft=nft,
            pod_snat=PodSnatSets(world.netns, nft, is_on=False, record=records[0]),
            record=records[1],
        )
        hostnet.recall_primary_mac(world.identity().primary_mac)
        reports = hostnet.confine_sandboxes()
        hostnet.setup_node(world.identity())
        assert hostnet.is_source_checked()
        return reports

    def handles(self):
        """The tables with the handles of their objects, which no two tables have in common over time."""
        return self._listed("--handle")

    def ruleset(self):
        """The tables without handles."""
        return self._listed("")

    def _listed(self, options):
        return {table: self.world.host.sh(f"nft {options} list table {table} | sed 's/packets.*//'") for table in TABLES}


@pytest.fixture
def node(world, tmp_path):
    """A node after the first start of its daemon."""
    node = Node(world, tmp_path)
    node.start()
    return node


def test_unchanged_tables_are_taken_as_they_are(node):
    """No table is made again by the next two processes, and a change is repaired as ever."""
    before = node.handles()
    for _ in range(2):
        assert node.start() == []
        assert node.handles() == before


@pytest.mark.parametrize(
    "change",
    [
        "nft add rule ip vpc-ipamd-confine from_veths counter",
        "nft insert rule ip6 vpc-ipamd-confine from_veths accept",
        "nft delete table ip6 vpc-ipamd-confine",
        "nft flush ruleset",
        "nft flush table ip vpc-ipamd",
        "nft list ruleset > /tmp/$$; nft flush ruleset; nft -f /tmp/$$; rm /tmp/$$",
        "nft 'add chain ip vpc-ipamd-confine other { type filter hook input priority 0; policy drop; }'",
        "nft 'chain ip vpc-ipamd-confine from_veths { policy drop; }'",
        "nft rename chain ip vpc-ipamd-confine from_sandbox other",
        "nft 'add table ip vpc-ipamd-confine { flags dormant; }'",
        "nft 'add set ip vpc-ipamd other { type ipv4_addr; }'",
        "nft add counter ip vpc-ipamd-confine other",
        "nft flush set ip vpc-ipamd exempt",
        "nft 'add element ip vpc-ipamd exempt { 128.0.0.0/1 }'",
        # No rule uses this set, so it can be deleted.
        "nft delete set arp vpc-ipamd-confine foreign; nft 'add set arp vpc-ipamd-confine foreign { type ifname; }'",
    ],
)
def test_changed_tables_are_made_again(node, change):
    """Whatever was done to them while no daemon ran, even if they were made again as they were."""
    whole, before = node.ruleset(), node.handles()
    node.world.host.sh(change)
    node.start()
    assert node.ruleset() == whole
    assert node.handles() != before
    before = node.handles()
    node.start()
    assert node.handles() == before


def test_tables_of_other_settings_are_made_again(node):
    """The commands differ, and the report says that the table follows a setting or an earlier start."""
    reports = node.start(config=NetworkConfig(veth_prefix="pod"))
    assert RepairCode.TABLE_RENEWED in {report.code for report in reports}
    assert '"pod' in node.ruleset()["ip vpc-ipamd-confine"]


@pytest.mark.parametrize("boot_id", ["another-boot", ""])
def test_a_record_of_another_boot_is_ignored(node, boot_id):
    """So is one of a boot that is unknown."""
    before = node.handles()
    node.start(boot_id=boot_id)
    assert all(node.handles()[table] != before[table] for table in TABLES)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "null",
        lambda text: "[" * 100_000,
        lambda text: json.dumps({**json.loads(text), "tables": 7}),
        lambda text: json.dumps({**json.loads(text), "tables": [{"family": "ip"}]}),
        lambda text: json.dumps({**json.loads(text), "digest": "0"}),
        lambda text: json.dumps({**json.loads(text), "release": "0.0.9"}),
        lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != "release"}),
    ],
)
def test_a_damaged_record_or_one_of_another_release_is_ignored(node, damage):
    """The tables are made again, and recorded again."""
    whole = node.ruleset()
    for name in (CONFINEMENT_RECORD, TRANSLATION_RECORD):
        path = node.run_dir / name
        path.write_text(damage(path.read_text()))
    before = node.handles()
    node.start()
    assert node.ruleset() == whole
    assert all(node.handles()[table] != before[table] for table in TABLES)
    before = node.handles()
    node.start()
    assert node.handles() == before


def test_a_record_that_cannot_be_written_costs_nothing(world, tmp_path):
    """The tables are in place, and the next start makes them again."""
    node = Node(world, tmp_path / "missing")
    node.start()
    before = node.handles()
    node.start()
    assert all(node.handles()[table] != before[table] for table in TABLES)
