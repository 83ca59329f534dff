"""The two kinds of settings: one takes effect at the next start, the other while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any


def setting(env: str, parse: Callable[[str], Any], default: Any, text: str) -> Any:
    """Make a field that variable `env` sets at a start; `parse` raises ValueError, `text` is a sentence for people."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": False})


def live(env: str, parse: Callable[[str], Any], default: Any, text: str) -> Any:
    """Make a field as `setting` does, which `ipamd/reload.py` changes while the daemon runs."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": True})
