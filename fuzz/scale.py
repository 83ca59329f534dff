"""How many cases each target runs: `short` within `make test`, `usual` for `make fuzz`, `full` before a release."""

from __future__ import annotations

# name: (short, usual, full)
CASES = {
    "plugin_input": (400, 50_000, 1_000_000),
    "plugin_process": (12, 1_200, 20_000),
    "plugin_peer": (300, 12_000, 200_000),
    "plugin_peer_process": (8, 400, 4_000),
    "hpack": (300, 8_000, 100_000),
    "json": (300, 10_000, 100_000),
    "envelope": (300, 6_000, 100_000),
    "daemon_requests": (60, 5_000, 100_000),
    "daemon_frames": (30, 1_500, 20_000),
    "backend_requests": (60, 5_000, 100_000),
    "backend_frames": (30, 1_500, 20_000),
    "agent_answers": (30, 500, 5_000),
    "cri_answers": (60, 3_000, 30_000),
    "ec2_answers": (30, 1_500, 15_000),
    "metadata_answers": (30, 1_200, 12_000),
    "metrics_port": (20, 400, 4_000),
    "page_port": (300, 10_000, 100_000),
    "pod_facts": (100, 8_000, 80_000),
    "node_files": (400, 20_000, 200_000),
}
SCALES = ("short", "usual", "full")


def counts(scale: str) -> dict[str, int]:
    """Cases by target. Raises: ValueError for an unknown scale."""
    return {name: numbers[SCALES.index(scale)] for name, numbers in CASES.items()}
