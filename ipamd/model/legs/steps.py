"""Steps of an ADD in which a source of first legs decides or waits, as the log and the metrics name them."""

from __future__ import annotations

BRANCH_STEP = "branch"

SOURCE_STEPS = (BRANCH_STEP,)
"""The steps of all sources of first legs."""
