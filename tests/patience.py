"""How long tests wait for what must come: a bound on waiting in vain, not a promise.

A wait ends with its event, so a generous bound costs nothing while the code is right, and a machine that is busy with something
else fails no test. What the code promises in seconds is asserted where it is promised, on a fake clock where one can be had.
"""

from __future__ import annotations

PATIENCE_S = 50.0
"""Events here take milliseconds, the start of a daemon a second. Ours: below the minute of `RELIST_WITH_EVENTS_S`, so that a wait
for an event is not ended by the next list."""
