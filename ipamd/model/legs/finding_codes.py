"""The findings of the audit that only legs have: a code for each kind of finding. See `ipamd/model/finding_codes.py`."""

from __future__ import annotations

from enum import StrEnum


class LegFindingCode(StrEnum):
    """The kind of a finding about a leg; its value is `code` in the answer of `ipamctl audit -o json`."""

    BRANCH_CONTRADICTED = "branch-contradicted"
    BRANCH_CUT_OFF = "branch-cut-off"
    BRANCH_UNCONFIRMED = "branch-unconfirmed"
    BRANCH_DIFFERS = "branch-differs"


LEG_VIOLATIONS = frozenset({LegFindingCode.BRANCH_CONTRADICTED, LegFindingCode.BRANCH_CUT_OFF})

LEG_PENDING = frozenset({LegFindingCode.BRANCH_UNCONFIRMED})
