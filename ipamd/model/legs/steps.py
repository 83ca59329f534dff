"""Names, in log and metrics, of the steps of an ADD in which a source of first legs (`ipamd/sandbox/legs/`) decides or waits."""

from __future__ import annotations

BRANCH_STEP = "branch"

SOURCE_STEPS = (BRANCH_STEP,)
"""The steps of all sources of first legs."""
