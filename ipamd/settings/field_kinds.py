"""Declare the fields of settings: `setting` takes effect at the next start, `live` while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ipamd.model.record import field


def setting(env: str, parse: Callable[[str], Any], default: Any, text: str, *, is_live: bool = False) -> Any:
    """Declare a field that the variable `env` sets at the start. `parse` raises ValueError; `text` is a sentence for users."""
    return field(default=default, metadata={"env": env, "parse": parse, "text": text, "is_live": is_live})


live = partial(setting, is_live=True)
"""Declare a field that `ipamd/process/reload.py` changes while the daemon runs."""
