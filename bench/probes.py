"""`python -m bench.probes SECONDS`: ask the daemon's pages on this node's loopback as kubelet and Prometheus do, for so long.

The exit status is 1 if a page was not answered with 200.
"""

from __future__ import annotations

import sys
import time
import urllib.request

PAGES = (
    ("127.0.0.1:61677/readyz", 30.0),
    ("127.0.0.1:61677/healthz", 20.0),
    ("127.0.0.1:61678/metrics", 30.0),
)
"""Page -> period in seconds: the DaemonSet's probes, and an interval that scrapers use (manifests/base, manifests/monitoring)."""

TIMEOUT_S = 2.0


def main(seconds: float) -> int:
    """Ask each page in its period; returns the exit status."""
    ends = time.monotonic() + seconds
    due = {page: time.monotonic() for page, _ in PAGES}
    while (now := time.monotonic()) < ends:
        for page, period_s in PAGES:
            if due[page] <= now:
                due[page] += period_s
                with urllib.request.urlopen(f"http://{page}", timeout=TIMEOUT_S) as answer:
                    if answer.status != 200 or not answer.read():
                        return 1
        time.sleep(max(0.0, min(min(due.values()), ends) - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
