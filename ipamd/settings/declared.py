"""How a field of the settings is declared: its environment variable, its parser, and a sentence about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any


def setting(env: str, parse: Callable[[str], Any], default: Any, text: str) -> Any:
    """Declare a field that takes effect at the next start; `parse` raises ValueError."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": False})


def live(env: str, parse: Callable[[str], Any], default: Any, text: str) -> Any:
    """Declare a field that takes effect while the daemon runs; `parse` raises ValueError."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": True})
