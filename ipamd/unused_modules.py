"""Keep out of memory the modules that the daemon's libraries import but the daemon never uses. This saves 4 MiB, and 3 MiB more
because TLS is not loaded (measured).

Only the process that calls EC2 needs TLS. Nothing in the daemon needs an event loop, an HTTP server of the standard library, or the
metadata of installed packages. This module imports nothing of ours.
"""

from __future__ import annotations

import sys
from types import ModuleType

UNUSED_MODULES = (
    "asyncio",  # by grpcio, SQLAlchemy and tenacity; we use threads (docs/adr/0007)
    "google.protobuf.internal.python_message",  # protobuf uses its compiled messages
    "grpc.aio",  # by grpcio
    "http.server",  # by prometheus_client, for a server of its own (see ipamd/http/port.py)
    "importlib.metadata",  # by SQLAlchemy, for dialects of other packages
    "ssl",  # by http.client and prometheus_client
    "urllib.error",  # by prometheus_client, for a push gateway
    "urllib.request",  # as urllib.error
    "wsgiref.simple_server",  # as http.server
)
"""Modules that libraries import when they are imported themselves. The comment on a module says which library imports it, and for
what."""


class UnusedError(Exception):
    """Stands for each public name of an unused module. Libraries derive classes from it and name it in `except`. Nothing raises it."""

    def __new__(cls, *_: object, **__: object) -> UnusedError:
        """Raise ModuleNotFoundError: a library that needs the module after all fails where it uses it."""
        raise ModuleNotFoundError(f"{cls.__qualname__} stands for a module in ipamd/unused_modules.py")


def leave_out_unused_modules() -> None:
    """Let imports of UNUSED_MODULES find modules without content. Call it before the libraries are imported.

    Digests are left to the interpreter's own code, because hashlib loads OpenSSL otherwise.
    """
    for name in UNUSED_MODULES:
        module = ModuleType(name)
        module.__getattr__ = _attribute  # type: ignore[method-assign]
        sys.modules[name] = module
    sys.modules["_hashlib"] = None  # type: ignore[assignment]


def _attribute(name: str) -> object:
    """Return what stands for a public name. Raises: AttributeError for other names, which the import system looks for."""
    if name.startswith("_"):
        raise AttributeError(name)
    return UnusedError
