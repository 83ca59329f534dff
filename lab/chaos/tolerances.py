"""How long a difference may last, in seconds, and how many EC2 calls a minute may have. `checker.py` says of what."""

from __future__ import annotations

REPAIR_S = 45.0
"""Above the 30 s between two repairs of the host network (ipamd/host/network.py)."""

WIRED_S = 3.0
"""Ours: two rounds of the observer, and a second for a busy machine."""

ROW_S = 30.0
"""Above two CRI lists, 10 s apart (ipamd/sandbox/runtime.py)."""

ROW_AFTER_LIE_S = 60.0
"""For a sandbox that has had no row since its node's datastore was lost, if EC2's answers lacked objects after that: from the end of
the lie; or for as long as EC2 had lied by then and ROW_S, because the daemon asks after 5, 10, 20 s and so on
(ipamd/eni/resync.py)."""

SILENT_S = 6.0
DONE_S = 10.0
STRAY_S = 20.0
LOOSE_S = 180.0
"""The pool pauses up to 60 s after errors (ipamd/pool/maintainer.py), and deletes an ENI it could not attach at a later
try."""

LEAKED_S = 540.0
"""The look after a start (up to 2 min), a pause after one that EC2 refused (5 min), the second look (30 s), and a busy machine
(ipamd/eni/leaked.py)."""

COOLDOWN_MARGIN_S = 1.0
CALLS_MOST = 120
"""Ours, per node and minute: runs need 35 to 45 (their reports say how many), a large account with small pages more."""

CALLS_OF_THE_PAIR_MOST = 240
"""The same for a node of the pair on which pods move with their addresses and choose pools. Ours: 161 calls were seen in a minute with
four starts, and each had a reason. 70 were for ten ENIs of three pools, because each new ENI takes three calls more while EC2 does not
show it yet. 45 were for named addresses, which take up to three calls each (docs/adr/0083)."""

CALLS_A_START = 8
"""A start asks for the ENIs, the limits and the subnets, and once for each intent that is open: 29 of the 115 calls of a minute with
seven starts, while EC2 did not show new ENIs. Ours: twice that, because what a kill ended is done again."""
