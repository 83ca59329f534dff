"""Which link is an ENI's: a sandbox with NET_ADMIN makes virtual links of any MAC on the node, and no hardware."""

from __future__ import annotations

import pytest

from ipamd.kernel import answers, eni_links
from ipamd.model.ids import MacAddress

MAC = MacAddress("02:00:00:00:00:01")


def link(index: int, kind: str, mac: str = MAC) -> answers.Link:
    """A link as the kernel shows it; hardware has no kind."""
    return answers.Link(
        index=index, name=f"link{index}", kind=kind, mac=mac, mtu=9001, alias="", group=0, is_up=True, peer_index=index
    )


LOOPBACK = link(1, "", "00:00:00:00:00:00")


@pytest.mark.parametrize("kind", ["veth", "dummy", "ifb", "tun"])
def test_a_virtual_link_with_an_enis_mac_is_not_the_eni(kind: str) -> None:
    """Not with the lower index either, and not while the ENI's own link is gone."""
    impostor, eni, other = link(2, kind), link(9, ""), link(8, "", "02:00:00:00:00:09")
    chosen = eni_links.lowest_by_mac([LOOPBACK, impostor, eni], MAC, "eni")
    assert chosen == eni
    assert eni_links.lowest_by_mac([LOOPBACK, impostor, other], MAC, "eni") is None


def test_a_labs_enis_are_virtual() -> None:
    """Its nodes have no hardware; the loopback is none."""
    assert eni_links.lowest_by_mac([LOOPBACK, link(3, "veth"), link(2, "veth")], MAC, "eni") == link(2, "veth")
