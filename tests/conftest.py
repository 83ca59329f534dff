"""What this machine can run: tests that need more are skipped, each with the sentence that says what is missing."""

from __future__ import annotations

import pytest

from lab.lab import missing_requirements

NEEDS_NETWORK = missing_requirements(containerd=False)
NEEDS_CONTAINERD = missing_requirements(containerd=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs root, tools or a container runtime that are not here."""
    for item in items:
        reason = NEEDS_CONTAINERD if item.get_closest_marker("containerd") else NEEDS_NETWORK
        if reason and (item.get_closest_marker("privileged") or item.get_closest_marker("containerd")):
            item.add_marker(pytest.mark.skip(reason=reason))
