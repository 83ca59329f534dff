"""All codes that legs have beside those of the rooms."""

from __future__ import annotations

from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.legs.refusals import BranchRefusalCode

LEG_CODES: tuple[str, ...] = (*LegConditionCode, *LegFindingCode, *BranchRefusalCode)
"""Of conditions, findings of the audit, and refusals."""
