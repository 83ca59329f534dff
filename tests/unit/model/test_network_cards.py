"""Which network cards are managed, their pools, and the names and routes of a pod's interfaces (docs/adr/0086).

The numbers and names are those of amazon-vpc-cni-k8s, whose files the modules name.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.attachment import pod_veth_name
from ipamd.model.card_interfaces import (
    NUMBER_MAX,
    inside_routing,
    interface_name,
    interface_names,
    interface_number,
    next_hop,
    pod_key,
)
from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import Eni, InstanceLimits, route_table
from ipamd.model.eni_tags import NO_MANAGE_TAG, is_managed
from ipamd.model.family import IPV4, IPV6
from ipamd.model.ids import EniId, MacAddress, SubnetId, parse_key
from ipamd.model.network_cards import (
    card_of_pool,
    card_pool,
    card_pools,
    limits_of_card,
    managed_cards,
    possible_cards,
    subnet_pool,
)
from ipamd.model.pod_pools import POOL_NAME
from ipamd.model.pool_settings import PoolSettings

INTERFACE_TYPES = {"ena": "interface", "efa": "efa", "efa-only": "efa-only"}


def eni_of_type(number: int, card: int, kind: str) -> Eni:
    """An attached ENI, managed as EC2's description says. `kind`: "ena", "efa", "efa-only", or "tagged" for one of an operator."""
    described = DescribedEni(
        EniId(f"eni-{card}-{number}"),
        MacAddress(f"02:00:00:00:{card:02x}:{number:02x}"),
        SubnetId("subnet-1"),
        IPv4Address(f"10.0.0.{10 + 10 * card + number}"),
        device_index=number + (card > 0),
        network_card=card,
        interface_type=INTERFACE_TYPES.get(kind, "interface"),
        tags={NO_MANAGE_TAG: "true"} if kind == "tagged" else {},
    )
    is_primary = card == 0 and number == 0
    return Eni(
        described.eni_id,
        described.mac,
        described.device_index,
        card,
        described.subnet_id,
        IPv4Network("10.0.0.0/24"),
        IPv4Address(f"10.0.0.{10 + 10 * card + number}"),
        is_primary,
        managed=is_managed(described, is_primary=is_primary, instance_id="i-1", has_cards=True),
    )


@pytest.mark.parametrize(
    ("kinds_by_card", "expected"),
    [
        ({0: ["ena"], 1: ["efa"]}, (0, 1)),
        ({0: ["ena"], 1: ["efa-only", "ena"]}, (0, 1)),
        ({0: ["ena"], 1: ["efa-only"], 2: ["ena"], 3: []}, (0, 2, 3)),
        ({0: ["ena"], 1: ["tagged"]}, (0,)),
        ({0: ["ena"], 1: ["tagged", "ena"]}, (0, 1)),
        ({0: ["ena"], 1: ["efa-only", "tagged"], 2: []}, (0, 2)),
        ({0: [], 1: []}, (0, 1)),
    ],
)
def test_a_card_is_managed_unless_all_its_enis_are_for_something_else(
    kinds_by_card: dict[int, list[str]], expected: tuple[int, ...]
) -> None:
    """EFA-only ENIs and those that an operator has tagged are for something else."""
    enis = []
    for card, kinds in kinds_by_card.items():
        enis += [eni_of_type(number, card, kind) for number, kind in enumerate(kinds)]
    assert managed_cards(kinds_by_card, enis) == expected


def test_a_card_that_has_only_enis_without_a_row_is_left_alone() -> None:
    """An EFA-only ENI has no IPv4 address, so it has no row."""
    assert managed_cards((0, 1, 2), [eni_of_type(0, 0, "ena")], occupied=[(1, 1)]) == (0, 2)


def test_without_the_setting_no_eni_of_a_further_card_is_managed() -> None:
    """As before the setting existed."""
    described = DescribedEni(
        EniId("eni-1"), MacAddress(""), SubnetId("subnet-1"), IPv4Address("10.0.0.9"), device_index=1, network_card=1
    )
    assert not is_managed(described, is_primary=False, instance_id="i-1")


def test_cards_with_one_place_are_left_to_efa() -> None:
    """The number of places is that of each card, and of card 0 where EC2 does not say."""
    limits = InstanceLimits("two.sizes", 4, 50, network_card_count=4, further_card_enis=(2, 1, 4))
    assert possible_cards(limits) == (0, 1, 3)
    assert [limits.eni_count_of(card) for card in range(-1, 5)] == [0, 4, 2, 1, 4, 0]
    assert possible_cards(InstanceLimits("one.card", 4, 50)) == (0,)


def test_the_limits_of_a_card_are_its_own_and_the_trunk_is_on_card_0() -> None:
    """No place of a further card is kept for the trunk ENI."""
    limits = InstanceLimits("two.sizes", 8, 50, network_card_count=2, further_card_enis=(2,), trunk_capacity=54)
    assert (limits_of_card(limits, 1).eni_count, limits_of_card(limits, 1).trunk_capacity) == (2, 0)
    assert limits_of_card(limits, 0) == limits


@pytest.mark.parametrize("card", [1, 2, 15, 31])
def test_the_targets_of_a_further_card_do_not_follow_the_settings(card: int) -> None:
    """One warm address, and one at least."""
    own = PoolSettings(warm_ip_target=20, minimum_ip_target=50, warm_eni_target=3)
    settings = card_pools([0, card])[card_pool(card)].settings(own, max_pods=0)
    assert (settings.warm_ip_target, settings.minimum_ip_target, settings.warm_eni_target) == (1, 1, 0)


def test_a_cards_pool_is_none_of_the_network_files() -> None:
    """Names of pools tell both kinds apart."""
    assert (card_pool(0), card_of_pool(card_pool(7))) == ("", 7)
    assert not POOL_NAME.fullmatch(card_pool(1))
    assert [card_of_pool(name) for name in ("", "cards", "card:", "card:x", "card:-1")] == [0, 0, 0, 0, 0]
    assert (subnet_pool(card_pool(1)), subnet_pool("cards")) == ("", "cards")


@pytest.mark.parametrize(("card", "device", "table"), [(0, 0, 254), (0, 14, 15), (1, 1, 10101), (2, 3, 10203), (15, 1, 11501)])
def test_the_route_table_follows_from_card_and_device(card: int, device: int, table: int) -> None:
    """The numbers of amazon-vpc-cni-k8s."""
    assert route_table(device, card) == table


@pytest.mark.parametrize(("count", "names"), [(1, ["eth0"]), (3, ["eth0", "mNicIf1", "mNicIf2"])])
def test_interfaces_are_numbered_from_the_first(count: int, names: list[str]) -> None:
    """eth0 has number 0."""
    assert list(interface_names(count)) == names
    assert [interface_number(name) for name in names] == list(range(count))


@pytest.mark.parametrize("name", ["net1", "mNicIf0", "mNicIf", "mNicIf01", "mNicIf32", "mnicif1", "mNicIf1x", "mNicIf¹", "eth1"])
def test_other_names_have_no_number(name: str) -> None:
    """They are interfaces that Multus or a person named."""
    assert interface_number(name) is None


@pytest.mark.parametrize(
    ("number", "name", "ipv4", "ipv6", "table", "priority"),
    [
        (0, "eth0", "169.254.1.1", "fe80::1", 254, None),
        (1, "mNicIf1", "169.254.1.2", "fe80::2", 1, 1),
        (2, "mNicIf2", "169.254.1.3", "fe80::3", 2, 1),
        (9, "mNicIf9", "169.254.1.10", "fe80::a", 9, 1),
    ],
)
def test_next_hop_and_table_follow_from_the_number(
    number: int, name: str, ipv4: str, ipv6: str, table: int, priority: int | None
) -> None:
    """The first interface has the routes of main, and no rule."""
    assert (str(next_hop(IPV4, name)), str(next_hop(IPV6, name))) == (ipv4, ipv6)
    assert inside_routing(number) == (table, priority)


def test_an_interface_of_another_name_has_the_common_next_hop() -> None:
    """As before, for Multus's interfaces."""
    assert next_hop(IPV4, "net1") == IPV4.gateway


@pytest.mark.parametrize(("number", "veth"), [(0, "eni0d7763386da"), (2, "eni68e8eca5cc4")])
def test_the_veth_that_a_policy_agent_computes(number: int, veth: str) -> None:
    """The number is part of the name from 1 on."""
    assert pod_veth_name("default", "web-0", prefix="eni", number=number) == veth


def test_further_interfaces_belong_to_the_pods_first_one() -> None:
    """Those of other names belong to nobody else."""
    first = parse_key("c", "eth0")
    keys = [parse_key("c", interface_name(number)) for number in range(NUMBER_MAX + 1)]
    assert {pod_key(key) for key in keys} == {first}
    net1 = parse_key("c", "net1")
    assert pod_key(net1) == net1
