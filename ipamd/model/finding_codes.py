"""The findings of the audit: a code for each kind of finding, and how serious each kind is."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.legs.finding_codes import LEG_PENDING, LEG_VIOLATIONS, LegFindingCode


class Severity(StrEnum):
    """How serious a finding is.

    VIOLATION: an invariant is broken.
    DIFFERENCE: two sources differ. Either the daemon repairs the difference, or the repair is not its task.
    PENDING: something is in progress, and the finding is expected to end by itself.
    """

    VIOLATION = "violation"
    DIFFERENCE = "difference"
    PENDING = "pending"


class FindingCode(StrEnum):
    """The kind of a finding; its value is `code` in the answer of `ipamctl audit -o json`."""

    MEMORY_DIFFERS = "memory-differs"
    GIVEN_TWICE = "given-twice"
    POLICY_OWED = "policy-owed"
    NO_NETWORK = "no-network"
    NO_NETWORK_ON_FROZEN_ENI = "no-network-on-frozen-eni"
    NO_NETWORK_UNREACHED = "no-network-unreached"
    INSIDE_DIFFERS = "inside-differs"
    NOT_LISTED = "not-listed"

    LOST_ADDRESS = "lost-address"
    LOST_UNUSED_ADDRESS = "lost-unused-address"
    ENI_LEFT_DETACHED = "eni-left-detached"
    PRIMARY_FOR_SANDBOXES = "primary-for-sandboxes"
    ADDRESS_ELSEWHERE = "address-elsewhere"
    ADDRESS_ELSEWHERE_RECENTLY = "address-elsewhere-recently"
    ADDRESS_IS_PRIMARY = "address-is-primary"
    ADDRESS_HELD_OTHERWISE = "address-held-otherwise"
    ENI_UNREADABLE = "eni-unreadable"
    ENI_CHANGED = "eni-changed"
    ENI_PLACE_TAKEN = "eni-place-taken"
    ENI_UNKNOWN = "eni-unknown"
    ENI_UNUSABLE = "eni-unusable"
    ENI_MISSING = "eni-missing"
    ENI_MISSING_RECENTLY = "eni-missing-recently"

    ENI_FROZEN = "eni-frozen"
    ENI_NOT_SET_UP = "eni-not-set-up"
    FOREIGN_LINK = "foreign-link"
    ROUTING_REPAIRED = "routing-repaired"
    ROUTING_FOREIGN = "routing-foreign"
    ROUTING_DIFFERS = "routing-differs"
    ROUTING_CUT_OFF = "routing-cut-off"

    UNUSED_ADDRESS_ROUTED = "unused-address-routed"
    LINK_DYING = "link-dying"
    LINK_WITHOUT_ALIAS = "link-without-alias"
    LINK_UNKNOWN = "link-unknown"
    LINK_QUARANTINED = "link-quarantined"
    VLAN_LINK_UNKNOWN = "vlan-link-unknown"
    DUPLICATE_ADDRESS = "duplicate-address"
    LINK_GONE = "link-gone"
    WIRING_NOT_OURS = "wiring-not-ours"
    WIRING_DIFFERS = "wiring-differs"


VIOLATIONS = frozenset(
    {
        FindingCode.MEMORY_DIFFERS,
        FindingCode.GIVEN_TWICE,
        FindingCode.NO_NETWORK,
        FindingCode.NO_NETWORK_ON_FROZEN_ENI,
        FindingCode.NO_NETWORK_UNREACHED,
        FindingCode.LOST_ADDRESS,
        FindingCode.PRIMARY_FOR_SANDBOXES,
        FindingCode.ROUTING_CUT_OFF,
        FindingCode.UNUSED_ADDRESS_ROUTED,
        FindingCode.DUPLICATE_ADDRESS,
        FindingCode.WIRING_NOT_OURS,
    }
)

PENDING = frozenset(
    {
        FindingCode.POLICY_OWED,
        FindingCode.NOT_LISTED,
        FindingCode.LOST_UNUSED_ADDRESS,
        FindingCode.ADDRESS_ELSEWHERE_RECENTLY,
        FindingCode.ENI_PLACE_TAKEN,
        FindingCode.ENI_UNUSABLE,
        FindingCode.ENI_MISSING_RECENTLY,
        FindingCode.ENI_NOT_SET_UP,
        FindingCode.LINK_DYING,
        FindingCode.LINK_GONE,
    }
)


def severity_of(code: FindingCode | LegFindingCode) -> Severity:
    """Return how serious the findings of a code are."""
    if code in VIOLATIONS or code in LEG_VIOLATIONS:
        return Severity.VIOLATION
    if code in PENDING or code in LEG_PENDING:
        return Severity.PENDING
    return Severity.DIFFERENCE
