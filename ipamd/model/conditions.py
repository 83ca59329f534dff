"""The problem of a condition, as a code and fields. `condition_messages` makes a sentence of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.cause import Cause, Ec2Refusal
from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.record import dataclass


class ConditionCode(StrEnum):
    """The kind of a problem. A condition has a subject and a problem; the parts of a subject may have problems of their own."""

    LOOP_FAILED = "loop-failed"
    OBJECTS_SKIPPED = "objects-skipped"
    FILE_FAILED = "file-failed"
    START_STEP_FAILED = "start-step-failed"
    START_STOPPED = "start-stopped"
    SOCKET_UNREACHABLE = "socket-unreachable"
    PORT_TAKEN = "port-taken"
    DATASTORE_REFUSES = "datastore-refuses"
    SERVED_MARK_UNWRITABLE = "served-mark-unwritable"
    REQUESTS_UNANSWERED = "requests-unanswered"
    NO_REQUEST_THREAD = "no-request-thread"
    SETTINGS_INVALID = "settings-invalid"
    SETTINGS_NEED_RESTART = "settings-need-restart"
    SETTINGS_NEED_NEW_PODS = "settings-need-new-pods"
    NETWORK_FILE_DIFFERS = "network-file-differs"
    NETWORK_FILE_REFUSED = "network-file-refused"

    RUNTIME_OFF = "runtime-off"
    RUNTIME_NOT_BELIEVED = "runtime-not-believed"
    AGENT_SILENT = "agent-silent"
    PODS_UNFILTERED = "pods-unfiltered"
    POD_FACTS_MISSING = "pod-facts-missing"
    POD_MARKS_MISSING = "pod-marks-missing"

    METADATA_UNANSWERED = "metadata-unanswered"
    EC2_UNANSWERED = "ec2-unanswered"
    EC2_REFUSED = "ec2-refused"
    EC2_ANSWER_IMPLAUSIBLE = "ec2-answer-implausible"
    EC2_DIFFERS = "ec2-differs"
    MASS_LOSS = "mass-loss"
    ADDRESSES_LOST = "addresses-lost"
    ENI_FROZEN = "eni-frozen"
    EXTERNAL_CHANGE_ASKED = "external-change-asked"
    EXTERNAL_CHANGE_NOT_CONFIRMED = "external-change-not-confirmed"
    RESYNC_UNANSWERED = "resync-unanswered"
    RESYNC_NOT_BELIEVED = "resync-not-believed"
    RESYNC_DOUBTS = "resync-doubts"
    SUBNETS_DENIED = "subnets-denied"
    GROUPS_KEPT = "groups-kept"
    TRACKING_REFUSED = "tracking-refused"
    RELEASE_REFUSED = "release-refused"
    RELEASE_UNCERTAIN = "release-uncertain"
    TRUNK_MISSING = "trunk-missing"
    TRUNK_WITHOUT_PLACE = "trunk-without-place"
    LIMITS_UNKNOWN = "limits-unknown"
    PREFIXES_UNSUPPORTED = "prefixes-unsupported"
    IPV6_UNSUPPORTED = "ipv6-unsupported"
    NO_FIRST_ADDRESS = "no-first-address"
    NO_ADDRESS = "no-address"
    POOL_FROZEN = "pool-frozen"
    EC2_PROCESS_LOST = "ec2-process-lost"

    NOT_REPAIRED = "not-repaired"
    REPAIR_CONFLICT = "repair-conflict"
    OTHER_SOFTWARE = "other-software"
    FOREIGN_LINKS = "foreign-links"
    DUPLICATE_ADDRESSES = "duplicate-addresses"
    UNRECORDED_SANDBOXES = "unrecorded-sandboxes"
    RANGES_UNRESERVED = "ranges-unreserved"
    RANGES_TAKE_SUBNET = "ranges-take-subnet"
    PINNED_RELEASE_REFUSED = "pinned-release-refused"
    CONNECTIONS_KEPT = "connections-kept"
    OTHER_CONFLIST = "other-conflist"
    OTHER_CONFLIST_UNUSABLE = "other-conflist-unusable"
    CONFLIST_NOT_FOLLOWED = "conflist-not-followed"
    CONFLIST_STALE_COPY = "conflist-stale-copy"
    APPENDED_MISSING = "appended-missing"
    APPENDED_ODD = "appended-odd"
    PLUGIN_LACKING = "plugin-lacking"

    OTHER_DAEMON = "other-daemon"
    GIVEN_TWICE = "given-twice"
    CHAINS_LEFT = "chains-left"
    BACKEND_REFUSED = "backend-refused"
    EXPORTED = "exported"
    LINKS_NOT_IMPORTED = "links-not-imported"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    fields: the values for the names in braces in the code's sentence, as text.
    next_step: what an operator can do, if it differs from the advice for all conditions of the subject; else "".
    cause: the field `cause` as a `Cause`, so that EC2's refusals in it can be shown in several lengths; None if the field is missing
        or is only text.
    """

    code: ConditionCode | LegConditionCode
    fields: Mapping[str, str]
    next_step: str = ""
    cause: Cause | None = None

    @property
    def refusals(self) -> tuple[Ec2Refusal, ...]:
        """The refusals of EC2 that caused the problem."""
        return () if self.cause is None else self.cause.refusals


def problem(code: ConditionCode | LegConditionCode, *, next_step: str = "", **fields: object) -> Problem:
    """Make a problem; the fields become text."""
    cause = fields.get("cause")
    texts = {name: str(value) for name, value in fields.items()}
    return Problem(code, texts, next_step, cause if isinstance(cause, Cause) else None)


def problem_of(code: ConditionCode | LegConditionCode, cause: str, **fields: object) -> Problem | None:
    """Make a problem with a cause in words; None if `cause` is "", which means that there is no problem."""
    if cause:
        return problem(code, next_step="", cause=cause, **fields)
    return None
