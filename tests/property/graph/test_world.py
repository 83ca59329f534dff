"""Simulated time: what waits in a run waits in the time of the run, or the run says so."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import pytest

from tests.property.graph.world import World, installed


def test_a_module_that_is_loaded_too_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the real clock, so an ADD of the first seed in a process could wait for ever: a real sleep takes no simulated time."""
    late = ModuleType("ipamd.of_a_test")
    late.time = time  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=late.__name__), installed(World(1)):
        monkeypatch.setitem(sys.modules, late.__name__, late)
