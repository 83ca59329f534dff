"""A plugin that waits for a daemon, for the tests beside it."""

from __future__ import annotations


def start(plugin, verb, config=b'{"cniVersion":"1.0.0"}'):
    """Start it with a complete standard input."""
    process = plugin.start(verb)
    process.stdin.write(config)
    process.stdin.close()
    process.stdin = None
    return process
