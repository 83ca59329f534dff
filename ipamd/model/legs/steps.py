"""The steps of an ADD that only a source of first legs has (`ipamd/sandbox/legs/`): in them it decides or waits.

The log and the metrics show the steps by these names.
"""

from __future__ import annotations

BRANCH_STEP = "branch"

SOURCE_STEPS = (BRANCH_STEP,)
"""The steps of all sources of first legs."""
