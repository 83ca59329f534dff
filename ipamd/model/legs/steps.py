"""Names of the steps in which a source of first legs (`ipamd/sandbox/legs/`) decides about an ADD, or waits.

They appear in the log line of a request and in the metrics.
"""

from __future__ import annotations

BRANCH_STEP = "branch"

SOURCE_STEPS = (BRANCH_STEP,)
"""The steps of all sources of first legs."""
