"""Facts about the machine that a reader needs to compare its figures with those of another machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import sqlalchemy


def facts(plugin_python: Path) -> dict[str, Any]:
    """Collect cores, memory, kernel, versions, and the load average. Call it before measuring, because the load average is that of
    now."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "daemon_python": sys.version.split()[0],
        "plugin_python": _output([str(plugin_python), "-I", "-S", "-c", "import sys; print(sys.version.split()[0])"]),
        "grpcio": grpc.__version__,
        "sqlalchemy": sqlalchemy.__version__,
        "reference_plugins": _output(["dpkg-query", "-W", "-f", "${Version}", "containernetworking-plugins"]),
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _output(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
