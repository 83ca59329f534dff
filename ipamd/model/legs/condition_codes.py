"""The codes of conditions that only legs have, with their sentences. See `ipamd/model/conditions.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

EXTRA_LEGS = "egress"
"""Subject of the condition about extra legs."""

UPLINKS = "branch"
"""Subject of the condition about uplinks."""


class LegConditionCode(StrEnum):
    """The kind of a problem of legs."""

    BRANCHES_CONTRADICTED = "branches-contradicted"
    EXTRA_LEG_MISSING = "egress-missing"


LEG_MESSAGES: Mapping[StrEnum, str] = {
    LegConditionCode.BRANCHES_CONTRADICTED: "{subject}: {sandboxes}",
    LegConditionCode.EXTRA_LEG_MISSING: "{cause}",
}
