"""What others do to nftables while our tables are replaced is never taken for right."""

from __future__ import annotations

import pytest

from ipamd.kernel.confinement_ruleset import ARP, IPV4
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_changes import OwnTables
from ipamd.model.repairs import CONFINEMENT

pytestmark = [pytest.mark.privileged]

BODIES = {
    IPV4: "  set elsewhere {\n    type iface_index\n  }\n  chain one {\n    counter\n  }",
    ARP: "  chain two {\n    counter\n  }",
}


class Disturbed(Nftables):
    """Somebody else runs a command after each of our transactions, as long as there is one."""

    def __init__(self, host, commands):
        super().__init__(host)
        self.commands = commands

    def run(self, commands, *, form=0):
        """As ours, and then theirs."""
        answer = super().run(commands, form=form)
        if not commands.startswith("list") and self.commands:
            super().run(self.commands.pop())
        return answer


def tables_beside(world, *commands):
    """Our tables, made for the first time beside somebody's commands, and what they must be."""
    wanted = {table: table.replacement(body) for table, body in BODIES.items()}
    tables = OwnTables(
        world.hostnet._host, Disturbed(world.hostnet._host, list(commands)), repaired_object=CONFINEMENT, follows="a setting"
    )
    return tables, wanted


@pytest.mark.parametrize(
    "theirs",
    [
        f"delete table {IPV4}",
        f"delete table {ARP}",
        f"flush chain {IPV4} one",
        f"add rule {ARP} two accept",
        f"add table ip theirs; flush table {IPV4}",
        f'add element {IPV4} elsewhere {{ "lo" }}',
    ],
)
@pytest.mark.parametrize("times", [1, 2, 30], ids=str)
def test_what_others_did_in_between_is_not_learnt(world, theirs, times):
    """A table that is deleted or altered right after it was made is missed by the look, and put back (I2)."""
    tables, wanted = tables_beside(world, *[theirs] * times)
    tables.repair(wanted)
    assert bool(tables.is_unchanged(wanted)) is (times < 3), "after three tries the next repair goes on"
    tables._nft.commands.clear()
    tables.repair(wanted)
    assert tables.is_unchanged(wanted)
    assert tables.differences(wanted) == ([], {})
    listed = world.host.sh("nft list ruleset")
    assert listed.count("counter packets") == len(BODIES)
    assert "accept" not in listed
    assert '"lo"' not in listed


def test_a_table_that_was_right_and_goes_while_another_is_replaced(world):
    """The one that is not due is listed before: what becomes of it afterwards is not taken for right."""
    tables, wanted = tables_beside(world)
    tables.repair(wanted)
    world.host.sh(f"nft flush chain {IPV4} one")
    tables._nft.commands.append(f"delete table {ARP}")
    tables.repair(wanted)
    assert tables.is_unchanged(wanted)
    assert f"table {ARP}" in world.host.sh("nft list tables")


def test_a_links_name_is_not_taken_for_an_index(world):
    """A pod with NET_ADMIN gives a link of its own the number of another one for a name: sets hold what was meant (I16)."""
    host = world.host
    host.sh("ip link add 77 type veth peer name 78; ip link add real index 177 type veth peer name other")
    host.sh("ip link set 77 name 177")
    tables, _ = tables_beside(world)
    tables.repair({IPV4: IPV4.replacement(BODIES[IPV4]) + IPV4.links("elsewhere", [177])})
    (found,) = [line.strip() for line in host.sh(f"nft list set {IPV4} elsewhere").splitlines() if "elements" in line]
    assert found == 'elements = { "real" }'
