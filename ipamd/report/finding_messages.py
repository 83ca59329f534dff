"""All sentences of the audit: for each code how the sources differ, and the next step.

The names in braces are the fields of the finding (`AuditFinding.fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.difference_messages import INSIDE_IS_LEFT
from ipamd.model.finding_codes import FindingCode
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.report.legs.finding_messages import LEG_MESSAGES

_SUCCESSOR = "delete the pod: its successor gets another address"
_REPORT = "report it: memory and disk must never differ"
_TWICE = "delete one of the two pods, and remove its DaemonSet aws-node from this node"
_OWED = "the agent is told to forget it, within 5 s or once it answers; an ADD of that name tells it first"
_LINK = "check the ENI in EC2: was it detached by hand? Delete the pods on it; the pool grows elsewhere"
_UNREACHED = "the other findings and `ipamctl status` say what is in the way; what is ours is repaired within 30 s"
_REAPED = "freed by its DEL, or reaped once every source says that it is gone"
_ONCE = "not confirmed: one answer may lag; an address is lost after a second one"
_LAGGING = "our own call changed it minutes ago: EC2's answer lags"
_UNREAD = "nothing is concluded about it; EC2 is asked again within the hour"
_PLACE = "recorded once the sandboxes that still have addresses of its former owner are gone"
_FROZEN = "it is used again once that is over, or forgotten once EC2 confirms it"
_SET_UP = "set up now, or by the host network reconciler within 30 s; if it stays, see the daemon's log"
_FOREIGN = "left alone: if no second CNI made it, the sandbox did, by NET_ADMIN; `ip -d link show` shows it"
_REPAIRED = "the host network reconciler repairs it at once, or within 30 s"
_VLAN = "removed before another sandbox gets its VLAN ID, and by the next start"

MESSAGES: Mapping[StrEnum, tuple[str, str]] = {
    **LEG_MESSAGES,
    FindingCode.MEMORY_DIFFERS: ("{difference}", _REPORT),
    FindingCode.GIVEN_TWICE: ("{pair} (I1, I20)", _TWICE),
    FindingCode.POLICY_OWED: ("the network policy agent may know it since {since}, no sandbox has it", _OWED),
    FindingCode.NO_NETWORK: ("{count} without network: {cause}: {sandboxes}", _SUCCESSOR),
    FindingCode.NO_NETWORK_ON_FROZEN_ENI: ("{count} without network: {cause}: {sandboxes}", _LINK),
    FindingCode.NO_NETWORK_UNREACHED: ("{count} without network: {cause}: {sandboxes}", _UNREACHED),
    FindingCode.INSIDE_DIFFERS: ("{differences}", INSIDE_IS_LEFT),
    FindingCode.NOT_LISTED: ("sandbox {sandbox} is recorded and the runtime does not list it", _REAPED),
    FindingCode.LOST_ADDRESS: ("lost since {since}: {reason}; sandbox {sandbox} has it and no network (I7)", _SUCCESSOR),
    FindingCode.LOST_UNUSED_ADDRESS: (
        "lost since {since}: {reason}; it is {state}",
        "given to nobody, and removed when it would become free",
    ),
    FindingCode.PRIMARY_FOR_SANDBOXES: ("a primary address among those for sandboxes (I6)", "report it"),
    FindingCode.ADDRESS_ELSEWHERE: ("{state} on {eni}; EC2's answer has it on {other_eni}", _ONCE),
    FindingCode.ADDRESS_ELSEWHERE_RECENTLY: ("{state} on {eni}; EC2's answer has it on {other_eni}", _LAGGING),
    FindingCode.ADDRESS_IS_PRIMARY: ("EC2 has it as the primary address of {eni}", _ONCE),
    FindingCode.ADDRESS_HELD_OTHERWISE: ("recorded as {holder}; EC2's answer has it on {eni}", _ONCE),
    FindingCode.ENI_UNREADABLE: ("EC2's answer about it cannot be read: {problem}", _UNREAD),
    FindingCode.ENI_CHANGED: (
        "primary address, MAC, card and device index are recorded as {recorded}; EC2's answer has {shown}",
        _ONCE,
    ),
    FindingCode.ENI_PLACE_TAKEN: (
        "attached, and takes a place only: its primary address {address} is still that of {holder}",
        _PLACE,
    ),
    FindingCode.ENI_UNKNOWN: ("attached, and unknown to the datastore", "adopted at the next comparison with EC2"),
    FindingCode.ENI_UNUSABLE: ("attached, and takes a place only: {problem}", "left alone"),
    FindingCode.ENI_MISSING: ("known, and not attached by EC2's answer", "forgotten when confirmed and unused"),
    FindingCode.ENI_MISSING_RECENTLY: ("known, and not attached by EC2's answer", "forgotten when confirmed and unused"),
    FindingCode.ENI_FROZEN: ("frozen, it gives no address to new sandboxes: {reason}; {count} on it", _FROZEN),
    FindingCode.ENI_NOT_SET_UP: ("its routing is not set up on the host, so it gives no address (I7)", _SET_UP),
    FindingCode.FOREIGN_LINK: ("leads into sandbox {sandbox}, and is not ours", _FOREIGN),
    FindingCode.ROUTING_REPAIRED: ("{difference}", _REPAIRED),
    FindingCode.ROUTING_FOREIGN: ("{difference}", "it is not ours; to mend it: {mend}"),
    FindingCode.ROUTING_DIFFERS: ("{difference}", "see the daemon's log"),
    FindingCode.ROUTING_CUT_OFF: ("{difference}: {count} on it without network: {sandboxes}", _LINK),
    FindingCode.UNUSED_ADDRESS_ROUTED: ("{state}, yet it has a route or rule (I4)", "restart vpc-ipamd"),
    FindingCode.LINK_DYING: ("marked for deletion", "the cooldown deletes it at once"),
    FindingCode.LINK_WITHOUT_ALIAS: ("carries no identity of ours", "left alone"),
    FindingCode.LINK_UNKNOWN: (
        "wired for {sandbox} with {address}, which the datastore does not know",
        "the next start resolves it",
    ),
    FindingCode.LINK_QUARANTINED: (
        "wired for {sandbox} with {address}, which the datastore does not know",
        "quarantined until runtime and kernel agree",
    ),
    FindingCode.VLAN_LINK_UNKNOWN: ("leads to {eni} with {address}, which no sandbox has", _VLAN),
    FindingCode.DUPLICATE_ADDRESS: (
        "{count} host veths carry it: {links} (I1)",
        "delete the sandbox that should not have it",
    ),
    FindingCode.LINK_GONE: (
        "sandbox {sandbox} is recorded and its host veth {link} is gone",
        "freed by its DEL, or reaped within minutes",
    ),
    FindingCode.WIRING_NOT_OURS: ("{difference} (I1)", "delete the sandbox"),
    FindingCode.WIRING_DIFFERS: ("{difference}", "the host network reconciler repairs it"),
}
"""By code: how the sources differ; the next step and who does it."""


def finding_text(code: FindingCode | LegFindingCode, fields: Mapping[str, str]) -> str:
    """How the sources differ, in a sentence."""
    return MESSAGES[code][0].format_map(fields)


def finding_next(code: FindingCode | LegFindingCode, fields: Mapping[str, str]) -> str:
    """The next step and who does it, in a sentence."""
    return MESSAGES[code][1].format_map(fields)
