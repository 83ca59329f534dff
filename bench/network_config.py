"""The CNI network configurations that the benchmarks give to plugins."""

from __future__ import annotations

from typing import Any

IFNAME = "eth0"
CONFIGS: dict[str, dict[str, Any]] = {
    "vpc": {"cniVersion": "1.0.0", "name": "aws-cni", "type": "vpc-cni"},
    "ptp": {
        "cniVersion": "1.0.0",
        "name": "bench-ptp",
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "subnet": "10.250.0.0/16",
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/bench/host-local",
        },
    },
}
"""Kind of plugin -> network configuration. That of `ptp` is the least with which a sandbox gets an address and a default route."""
