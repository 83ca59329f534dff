"""`python -m bench.probes SECONDS`: for this long, request the daemon's pages on the node's loopback as kubelet and Prometheus do.

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
"""Pages, and the seconds between two requests: those of the DaemonSet's probes (manifests/base), and the scrape interval of
manifests/monitoring."""

TIMEOUT_S = 2.0


def main(seconds: float) -> int:
    """Request each page in its period. Returns: the exit status."""
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
