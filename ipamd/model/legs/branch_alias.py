"""Encode the identity of a branch ENI in the alias of its VLAN link. A lost datastore is rebuilt from these aliases."""

from __future__ import annotations

from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.family import IpAddress, read_address
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel_numbers import LINK_PREFIX
from ipamd.model.legs.branch_eni import _ENI_ID, Branch

LINK_TAG = "vpc-ipamd-vlan/1"
"""First word of a VLAN link's alias."""


def encode_link_alias(address: IpAddress, eni_id: EniId, branch: Branch) -> str:
    """Encode address, ENI, gateway and mode for the VLAN link's ifalias. The host veth's alias has the sandbox and the address."""
    mode = EnforcingMode.STRICT if branch.is_strict else EnforcingMode.STANDARD
    return f"{LINK_TAG} {address} {eni_id} {branch.gateway} {mode}"


def decode_link_alias(alias: str, *, name: str, mac: str) -> tuple[IpAddress, EniId, Branch] | None:
    """Decode a VLAN link's alias; `name` and `mac` are the link's. None if the alias is not ours or is damaged."""
    parts, vlan = alias.split(" "), name.removeprefix(LINK_PREFIX)
    if len(parts) != 5 or parts[0] != LINK_TAG or not vlan.isascii() or not vlan.isdigit() or not _ENI_ID.fullmatch(parts[2]):
        return None
    try:
        address, gateway, mode = read_address(parts[1]), read_address(parts[3]), EnforcingMode(parts[4])
    except ValueError:
        return None
    is_strict = mode is EnforcingMode.STRICT
    return address, EniId(parts[2]), Branch(int(vlan), MacAddress(mac), gateway, is_strict)
