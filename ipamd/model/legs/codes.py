"""All codes of conditions, findings and refusals that only legs have."""

from __future__ import annotations

from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.legs.refusals import BranchRefusalCode

LEG_CODES: tuple[str, ...] = (*LegConditionCode, *LegFindingCode, *BranchRefusalCode)
"""Codes of conditions, of findings of the audit, and of refusals."""
