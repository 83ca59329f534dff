"""A plugin with a mechanism switched off: a shell script in front of the real one, in the lab node of a rig."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.rig import PLUGIN_PATH, Rig


@contextmanager
def plugin_that_skips(rig: Rig, condition: str) -> Iterator[None]:
    """While inside, the plugin says success and does nothing where the shell `condition` holds; it is itself otherwise."""
    script = f"#!/bin/sh\nif {condition}; then exit 0; fi\nexec {PLUGIN_PATH}.real\n"
    rig.node.run(["mv", PLUGIN_PATH, f"{PLUGIN_PATH}.real"])
    rig.node.write_file(PLUGIN_PATH, script.encode(), 0o755)
    try:
        yield
    finally:
        rig.node.run(["mv", f"{PLUGIN_PATH}.real", PLUGIN_PATH])
