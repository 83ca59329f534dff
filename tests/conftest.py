"""What this machine can run: tests that need more are skipped, each with the sentence that says what is missing.

How fast it runs decides nothing: Hypothesis neither times an example nor gives up because its data came slowly.

Bytecode is written, whatever the machine's environment says: a thousand processes import the same modules, and pytest rewrites
every assertion of every file where it finds none.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from ipamd.logs import JsonFormatter
from lab.lab import missing_requirements

gc.disable()  # until the files are collected: what they define stays, and each worker would look through it again and again

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Files of tests are kept in memory where they can be: a third of the time of tests with a datastore was waiting for a disk.
if os.access("/dev/shm", os.W_OK | os.X_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


NEEDS_NETWORK = missing_requirements(containerd=False)
NEEDS_CONTAINERD = missing_requirements(containerd=True)


IS_HEAVY = os.environ.get("VPC_IPAMD_HEAVY") == "1"

EXAMPLES = 200 if IS_HEAVY else 50
settings.register_profile("any-machine", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

GC_THRESHOLD = 20_000
"""Objects that tests make before the youngest ones are looked through for garbage. Python's 700 cost a twelfth of the CPU time in
`tests/unit/service` and `tests/property/graph`. At the end pytest collects all garbage, so it still finds what was not closed."""

HEAVY_TIMEOUT_S = 2700
"""Three times that of setup.cfg, as Hypothesis tries three times as much: that took more than five minutes beside other work."""


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Undo what a program that runs inside a test did to the log of its process: the next test there may count records."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, JsonFormatter):
            root.removeHandler(handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is heavy to `make test-all`; skip what needs root, tools or a container runtime that are not here; put files with
    slow tests first."""
    if not IS_HEAVY and (left := [item for item in items if item.get_closest_marker("heavy")]):
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("heavy")]
    for item in items:
        if IS_HEAVY and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HEAVY_TIMEOUT_S))
        reason = NEEDS_CONTAINERD if item.get_closest_marker("containerd") else NEEDS_NETWORK
        if reason and (item.get_closest_marker("privileged") or item.get_closest_marker("containerd")):
            item.add_marker(pytest.mark.skip(reason=reason))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # none is left for the end, when the other workers have nothing to do


def pytest_collection_finish() -> None:
    """No collection of garbage looks at the collected tests again, and collections are rare."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)
    gc.enable()
