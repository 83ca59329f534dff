"""The sentences of the audit about legs. See `ipamd/report/finding_messages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.legs.finding_codes import LegFindingCode

_ANNOTATION = "find out who wrote the pod's annotation, and delete the pod; EC2 is asked again"
_ASKED_AGAIN = "EC2 is asked again; `ipamctl status` says why it has not answered"
_BRANCH_ONCE = (
    "not confirmed: one answer of EC2 may be out of date; if a second one contradicts too, there is a condition `branch`"
)

LEG_MESSAGES: Mapping[StrEnum, tuple[str, str]] = {
    LegFindingCode.BRANCH_CONTRADICTED: ("EC2 contradicts {eni} of sandbox {sandbox}: {objection}", _ANNOTATION),
    LegFindingCode.BRANCH_CUT_OFF: ("EC2 contradicts {eni} of sandbox {sandbox}: {objection}: it is cut off", _ANNOTATION),
    LegFindingCode.BRANCH_UNCONFIRMED: ("{eni} of sandbox {sandbox}: {cause}: it has no network", _ASKED_AGAIN),
    LegFindingCode.BRANCH_DIFFERS: ("branch ENI {eni} of sandbox {sandbox}, by EC2's answer: {objection}", _BRANCH_ONCE),
}
