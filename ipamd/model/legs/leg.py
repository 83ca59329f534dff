"""The base class of legs: the names and addresses of a leg, and the comparison with what the kernel shows of it.

A leg is a value that has only the sandbox's specification, so legs are made where they are needed and not stored. `ipamd/kernel/legs/`
wires, repairs and removes legs, with a module for each class of leg.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ipamd.model.attachment import WiringSpec, sandbox_mac
from ipamd.model.card_interfaces import next_hop
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import IPV6, IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY, OWN_TABLE
from ipamd.model.record import dataclass
from ipamd.model.uplink import Uplink
from ipamd.model.wiring_difference import WiringDifference

SHARED_TABLES = (OWN_TABLE, MAIN_TABLE)
"""The two tables that have the routes to sandboxes: packets use our own table, and other software reads the main table."""


@dataclass(frozen=True, slots=True)
class Leg(ABC):
    """One veth pair of a sandbox, with an address of its own.

    The properties that are implemented here are those of an ordinary first leg, whose address is an ENI's. The classes of other legs
    override the properties that differ.
    """

    sandbox: WiringSpec

    is_first: ClassVar[bool] = True
    """Whether the leg has the pod's address. A sandbox has exactly one such leg."""

    is_wired_again: ClassVar[bool] = False
    """Whether a repair may make a missing veth pair again. No repair makes the pair of a first leg again, because the address inside
    the sandbox may have changed since the sandbox was wired."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of leg, in one word, for reports."""

    @property
    def key(self) -> AttachmentKey:
        """The sandbox that has the leg."""
        return self.sandbox.key

    @property
    def address(self) -> IpAddress:
        """The sandbox's address on this leg."""
        return self.sandbox.address

    @property
    def eni_id(self) -> EniId:
        """The ENI that has the address; "" if no ENI has it."""
        return self.sandbox.eni_id

    @property
    def route_table(self) -> int:
        """The route table for packets that the sandbox sends by this leg; the main table (254) needs no rule."""
        return self.sandbox.route_table

    @property
    def prefix(self) -> IpNetwork | None:
        """The delegated prefix whose rule applies to the address; None if the address has a rule of its own, or needs none."""
        return self.sandbox.prefix

    @property
    def rule_priority(self) -> int:
        """The priority of the rule that selects the table for packets from the address, or from its prefix."""
        return FROM_SANDBOX_PRIORITY

    @property
    def host_veth(self) -> str:
        """Name of the host's end."""
        return self.sandbox.host_veth

    @property
    def netns(self) -> str:
        """Path of the sandbox's namespace."""
        return self.sandbox.netns

    @property
    def mtu(self) -> int:
        """MTU of the veth pair in bytes, 0 if unknown."""
        return self.sandbox.mtu

    @property
    def uplink(self) -> Uplink | None:
        """The leg's own link by which its packets leave the node; None if they leave by the link of an ENI."""
        return None

    @property
    def links(self) -> tuple[str, ...]:
        """Names of all links of the leg on the host: the host veth, and the uplink's link if there is one."""
        return (self.host_veth, self.uplink.link) if self.uplink else (self.host_veth,)

    @property
    def ifname(self) -> str:
        """Name of the sandbox's end."""
        return self.key.ifname

    @property
    def gateway(self) -> IpAddress:
        """The next hop inside the sandbox."""
        return next_hop(family_of(self.address), self.ifname)

    @property
    @abstractmethod
    def alias(self) -> str:
        """The host veth's ifalias, from which a lost record is rebuilt."""

    @property
    def others_mac(self) -> MacAddress | None:
        """MAC of the host veth of a leg that amazon-vpc-cni-k8s wired, "" if it is not known; None for a leg that we wired."""
        return self.sandbox.others_mac

    @property
    def is_further_interface(self) -> bool:
        """Whether it leads to a further interface, such as Multus's `net1`, not to the pod's first one."""
        return self.is_first and self.sandbox.is_further

    @property
    def is_mtu_known(self) -> bool:
        """Whether `mtu` is the MTU with which the leg was wired. If the plugin of amazon-vpc-cni-k8s wired the leg, the MTU is
        unknown, because this plugin does not report it.
        """
        return bool(self.mtu) and self.others_mac != ""

    @property
    def is_neighbour_fixed(self) -> bool:
        """Whether both ends need permanent neighbour entries, because neighbour discovery on the link is dropped or useless."""
        return family_of(self.address) is IPV6

    @property
    def route_tables(self) -> tuple[int, ...]:
        """The tables that have a route to the address."""
        return SHARED_TABLES

    @property
    def uplink_tables(self) -> tuple[int, ...]:
        """The route tables for packets to and from the uplink; () without an uplink."""
        return ()

    @property
    def is_in_shared_tables(self) -> bool:
        """Whether the routes to the address are in SHARED_TABLES, and not in the tables of an uplink."""
        return self.route_tables == SHARED_TABLES

    @property
    def entries_for_others(self) -> list[dict[str, str]]:
        """Additional interfaces for the CNI result that the plugin of amazon-vpc-cni-k8s needs for its DEL."""
        return []

    def mac(self, side: str) -> MacAddress:
        """Return the MAC of the "host" or the "sandbox" side; "" if it is not known, and then any MAC is accepted."""
        if self.others_mac is None:
            return sandbox_mac(self.key, side=side)
        return self.others_mac if side == "host" else MacAddress("")

    def veth_in(self, survey: KernelSurvey) -> HostVeth | None:
        """Find the leg's host veth in a survey by name, preferring one that is not dying; if no veth has the name, by alias."""
        extra_address = None if self.is_first else self.address
        return survey.find_veth(self.host_veth, self.key, extra_address=extra_address)

    @abstractmethod
    def differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        """Compare the host's side of the leg with what a survey shows."""

    def uplink_differences(self, link: VlanLink | None) -> list[WiringDifference]:
        """Compare the uplink with the record. `link`: the link with the uplink's name; None if there is none.

        A leg without an uplink has no differences.
        """
        del link
        return []
