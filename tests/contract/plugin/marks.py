"""The two files in the run directory from which STATUS bridges, for the tests beside it: the daemon's mark and the plugin's count."""

from __future__ import annotations

import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
BRIDGED_S = 60
WINDOW_S = 600


def boottime_ms():
    """What the plugin's clock of the boot says."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def served(run_dir, *, ago_s=1.0, boot_id=BOOT_ID):
    """Leave the daemon's mark."""
    (run_dir / "served").write_text(f"{boot_id}\n{boottime_ms() - int(ago_s * 1000)}\n")


def bridged(run_dir, *absences_s, boot_id=BOOT_ID):
    """Leave the plugin's own file: absences as (begin, end), in seconds ago."""
    now_ms = boottime_ms()
    lines = [f"{now_ms - int(begin * 1000)} {now_ms - int(end * 1000)}\n" for begin, end in absences_s]
    (run_dir / "bridged").write_text("".join([f"{boot_id}\n", *lines]))


def counted(run_dir):
    """What the plugin has counted, as (begin, end) in milliseconds of the boot; nothing where it has counted nothing."""
    if not (run_dir / "bridged").exists():
        return []
    boot_id, *lines = (run_dir / "bridged").read_text().splitlines()
    assert boot_id == BOOT_ID
    return [tuple(map(int, line.split())) for line in lines]
