"""What our nftables rules do with a new connection, answered from the values that make their text.

That the kernel does the same is tried with packets in `tests/lab/packets`.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel import ruleset
from ipamd.kernel.translation import translation_of
from ipamd.model.family import IPV4, IPV6, read_address
from ipamd.model.packet_path import NewConnection, Translation
from ipamd.model.pod_snat import PodSnat
from ipamd.settings import NetworkConfig

PRIMARY, MARK = IPv4Address("10.0.0.10"), 0x80
VPC, EXCLUDED = IPv4Network("10.0.0.0/16"), IPv4Network("198.51.100.0/24")
POD, IN_VPC, OUTSIDE = (read_address(text) for text in ("10.0.0.5", "10.0.77.7", "203.0.113.9"))
TRANSLATED = Translation(MARK, PRIMARY)
NOTHING = Translation()


def translation(packet: NewConnection, **settings: object) -> Translation:
    """The answer under settings."""
    config = NetworkConfig(**settings)  # type: ignore[arg-type]
    return translation_of(packet, config, vpc_cidrs=(VPC,), primary_address=PRIMARY)


FROM_POD = NewConnection(POD, OUTSIDE, "eni0123", "eth0")


@pytest.mark.parametrize(
    ("packet", "settings", "expected"),
    [
        (FROM_POD, {}, TRANSLATED),
        (replace(FROM_POD, outgoing=""), {}, TRANSLATED),
        (replace(FROM_POD, destination=IN_VPC), {}, NOTHING),
        (FROM_POD, {"external_snat": True}, NOTHING),
        (replace(FROM_POD, destination=EXCLUDED[9]), {"exclude_snat_cidrs": (EXCLUDED,)}, NOTHING),
        (replace(FROM_POD, destination=EXCLUDED[9]), {}, TRANSLATED),
        (replace(FROM_POD, is_for_node=True), {}, NOTHING),
        (replace(FROM_POD, incoming="vlan0123", outgoing="vlan.eth.5"), {}, NOTHING),
        (replace(FROM_POD, outgoing="vlan.eth.5"), {}, Translation(MARK)),
        (replace(FROM_POD, incoming=""), {}, Translation(source=PRIMARY)),
        (replace(FROM_POD, outgoing="lo"), {}, Translation(MARK)),
    ],
)
def test_each_condition_of_the_rules_counts(packet: NewConnection, settings: dict[str, object], expected: Translation) -> None:
    """Outside the VPC the node's address is seen, unless a setting, the link or the destination forbids it."""
    assert translation(packet, **settings) == expected


def test_a_former_prefix_still_names_sandboxes() -> None:
    """Links of sandboxes from before a change of AWS_VPC_K8S_CNI_VETHPREFIX get the mark too."""
    packet = replace(FROM_POD, incoming="old0123")
    answers = [
        translation_of(
            packet, NetworkConfig(), vpc_cidrs=(VPC,), primary_address=PRIMARY, former=ruleset.FormerSettings(prefixes)
        ).mark
        for prefixes in ((), ("old",))
    ]
    assert answers == [0, MARK]


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=["ipv4", "ipv6"])
def test_egress_is_translated_and_not_reached(family: object) -> None:
    """The range's addresses leave as the node's, multicast excepted; a connection to the range is rejected."""
    served = IPV4 if family is IPV4 else IPV6
    config = NetworkConfig(v6_egress=True) if served is IPV6 else NetworkConfig(ipv4=False, ipv6=True, v4_egress=True)
    node = read_address("10.0.0.10" if served is IPV4 else "2001:db8::10")
    pod, multicast = served.local_range.first, served.local_range.untranslated[9]

    def answer(destination: object) -> Translation:
        packet = NewConnection(pod, destination, "eni0123", "eth0")  # type: ignore[arg-type]
        return translation_of(packet, config, vpc_cidrs=(VPC,), primary_address=PRIMARY, extra_source=node)

    assert answer(served.outside) == Translation(source=node)
    assert answer(multicast).source is None
    assert answer(served.local_range.last).is_rejected


@pytest.mark.parametrize(
    ("packet", "settings", "choice", "expected"),
    [
        (FROM_POD, {}, PodSnat.NONE, NOTHING),
        (FROM_POD, {"external_snat": True}, PodSnat.FORCE, TRANSLATED),
        (replace(FROM_POD, destination=EXCLUDED[9]), {"exclude_snat_cidrs": (EXCLUDED,)}, PodSnat.FORCE, TRANSLATED),
        (replace(FROM_POD, destination=IN_VPC), {}, PodSnat.FORCE, NOTHING),
        (replace(FROM_POD, is_for_node=True), {}, PodSnat.FORCE, NOTHING),
        (replace(FROM_POD, source=POD + 1), {}, PodSnat.NONE, TRANSLATED),
        (replace(FROM_POD, source=POD + 1), {"external_snat": True}, PodSnat.FORCE, NOTHING),
    ],
)
def test_a_choice_decides_for_its_address(
    packet: NewConnection, settings: dict[str, object], choice: PodSnat, expected: Translation
) -> None:
    """Mark and address follow the choice together, and other sandboxes are as before."""
    config = NetworkConfig(**settings)  # type: ignore[arg-type]
    answer = translation_of(packet, config, vpc_cidrs=(VPC,), primary_address=PRIMARY, choices={POD: choice})
    assert answer == expected
