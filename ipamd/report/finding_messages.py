"""All sentences of the audit. Each code has two: how the sources differ, and the next step.

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
_OWED = "the daemon asks the agent every 5 s to forget it; an ADD of a pod with that name waits until the agent has"
_LINK = "check the ENI in EC2: was it detached by hand? Delete the pods on it; the pool grows elsewhere"
_UNREACHED = (
    "see the other findings and `ipamctl status` for the obstacle; the daemon's own routes and rules are repaired within 30 s"
)
_REAPED = "freed by its DEL, or reaped once every source says that it is gone"
_ONCE = "not confirmed: one answer of EC2 may be out of date, so the daemon acts only after a second one"
_LAGGING = "none: the daemon's own call changed it minutes ago, and EC2's answer is not up to date yet"
_UNREAD = "the records are kept as they are; EC2 is asked again within the hour"
_PLACE = "it is recorded and used once the sandboxes that depend on that address are gone"
_FROZEN = "it is used again once the cause is over; it is removed from the records if EC2 confirms that it is detached"
_CONFIRMED = "removed from the records once another answer confirms it and no sandbox uses it"
_SET_UP = "set up now, or by the host network reconciler within 30 s; if it stays, see the daemon's log"
_FOREIGN = "left alone: if no second CNI made it, the sandbox did, by NET_ADMIN; `ip -d link show` shows it"
_REPAIRED = "the host network reconciler repairs it at once, or within 30 s"
_VLAN = "removed before another sandbox gets its VLAN ID, and by the next start"

MESSAGES: Mapping[StrEnum, tuple[str, str]] = {
    **LEG_MESSAGES,
    FindingCode.MEMORY_DIFFERS: ("{difference}", _REPORT),
    FindingCode.GIVEN_TWICE: ("{pair} (I1, I20)", _TWICE),
    FindingCode.POLICY_OWED: (
        "no sandbox has this pod's name, but the network policy agent may remember it, since {since}",
        _OWED,
    ),
    FindingCode.NO_NETWORK: ("{count} without network: {cause}: {sandboxes}", _SUCCESSOR),
    FindingCode.NO_NETWORK_ON_FROZEN_ENI: ("{count} without network: {cause}: {sandboxes}", _LINK),
    FindingCode.NO_NETWORK_UNREACHED: ("{count} without network: {cause}: {sandboxes}", _UNREACHED),
    FindingCode.INSIDE_DIFFERS: ("{differences}", INSIDE_IS_LEFT),
    FindingCode.NOT_LISTED: ("sandbox {sandbox} is recorded and the runtime does not list it", _REAPED),
    FindingCode.LOST_ADDRESS: ("lost since {since}: {reason}; sandbox {sandbox} has it and no network (I7)", _SUCCESSOR),
    FindingCode.LOST_UNUSED_ADDRESS: (
        "lost since {since}: {reason}; it is {state}",
        "it is not assigned, and removed from the records when its cooling or quarantine ends",
    ),
    FindingCode.PRIMARY_FOR_SANDBOXES: ("the primary address of an ENI is recorded as one for sandboxes (I6)", "report it"),
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
        "attached, but not used, because its primary address {address} is still recorded for {holder}",
        _PLACE,
    ),
    FindingCode.ENI_UNKNOWN: ("attached, and unknown to the datastore", "adopted at the next comparison with EC2"),
    FindingCode.ENI_UNUSABLE: ("attached, but of no use to pods: {problem}", "left alone; it occupies a device index"),
    FindingCode.ENI_MISSING: ("recorded, but not attached by EC2's answer", _CONFIRMED),
    FindingCode.ENI_MISSING_RECENTLY: ("recorded, but not attached by EC2's answer", _CONFIRMED),
    FindingCode.ENI_LEFT_DETACHED: (
        "detached by others and not recorded any more, but still in EC2",
        "delete it (`aws ec2 delete-network-interface --network-interface-id ID`); otherwise the next start of vpc-ipamd does",
    ),
    FindingCode.ENI_FROZEN: ("frozen, its addresses are not assigned: {reason}; {count} on it", _FROZEN),
    FindingCode.ENI_NOT_SET_UP: ("its routing is not set up on the host, so its addresses are not assigned (I7)", _SET_UP),
    FindingCode.FOREIGN_LINK: ("a link into sandbox {sandbox} that vpc-ipamd did not make", _FOREIGN),
    FindingCode.ROUTING_REPAIRED: ("{difference}", _REPAIRED),
    FindingCode.ROUTING_FOREIGN: ("{difference}", "it is not ours; to mend it: {mend}"),
    FindingCode.ROUTING_DIFFERS: ("{difference}", "see the daemon's log"),
    FindingCode.ROUTING_CUT_OFF: ("{difference}: {count} on it without network: {sandboxes}", _LINK),
    FindingCode.UNUSED_ADDRESS_ROUTED: ("{state}, yet it has a route or rule (I4)", "restart vpc-ipamd"),
    FindingCode.LINK_DYING: ("marked for deletion", "the cooldown deletes it at once"),
    FindingCode.LINK_WITHOUT_ALIAS: ("a host veth without an alias of vpc-ipamd, so its sandbox is not known", "left alone"),
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
"""The two sentences of each code: how the sources differ, and the next step with who does it."""


def finding_text(code: FindingCode | LegFindingCode, fields: Mapping[str, str]) -> str:
    """How the sources differ, in a sentence."""
    return MESSAGES[code][0].format_map(fields)


def finding_next(code: FindingCode | LegFindingCode, fields: Mapping[str, str]) -> str:
    """The next step and who does it, in a sentence."""
    return MESSAGES[code][1].format_map(fields)
