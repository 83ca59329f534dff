"""Keep out of memory the modules that libraries import but that the process never uses. This saves 5 MiB in the daemon, and 3 MiB more
because TLS is not loaded, and 2.5 MiB in the process that calls EC2 (measured).

Only the process that calls EC2 needs TLS. Nothing in the daemon needs an event loop, an HTTP server of the standard library, or the
metadata of installed packages. The modules must be left out before anything imports them. This module imports nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

UNUSED_MODULES = (
    "asyncio",  # by grpcio, SQLAlchemy and tenacity; we use threads (docs/adr/0007)
    "calendar",  # by email and protobuf, for conversions of time
    "google.protobuf.internal.python_message",  # protobuf uses its compiled messages
    "grpc.aio",  # by grpcio
    "gzip",  # by prometheus_client, for a server of its own
    "http.server",  # by prometheus_client, for a server of its own (see ipamd/http/port.py)
    "importlib.metadata",  # by SQLAlchemy, for dialects of other packages
    "locale",  # by subprocess, for the output of programs as text, of which we read bytes
    "pickle",  # by SQLAlchemy, for a type of columns
    "prometheus_client.mmap_dict",  # by prometheus_client, for counters of several processes
    "sqlalchemy.dialects.sqlite.aiosqlite",  # by SQLAlchemy, a driver of SQLite for asyncio
    "sqlalchemy.dialects.sqlite.pysqlcipher",  # by SQLAlchemy, a driver of encrypted files
    "sqlalchemy.sql.lambdas",  # by SQLAlchemy, for statements that are made of lambdas
    "ssl",  # by http.client and prometheus_client
    "tenacity.asyncio",  # by tenacity
    "urllib.error",  # by prometheus_client, for a push gateway
    "urllib.request",  # as urllib.error
    "wsgiref.simple_server",  # as http.server
)
"""Modules that libraries of the daemon import when they are imported themselves. The comment on a module says which library imports
it, and for what."""

UNUSED_BY_EC2_PROCESS = (
    "ast",  # by inspect, for signatures of functions in C
    "botocore.docs.bcdoc.restdoc",  # by botocore, for the documentation of a client's methods, which it writes when somebody reads it
    "botocore.docs.method",  # as restdoc
    "botocore.docs.paginator",  # as restdoc
    "botocore.docs.service",  # as restdoc
    "botocore.docs.waiter",  # as restdoc
    "botocore.eventstream",  # by botocore, for answers that are streams
    "botocore.paginate",  # by botocore; a list of EC2's is read page by page in `ipamd/cloud/ec2.py`
    "botocore.retries.adaptive",  # by botocore, for a mode of retries that `ipamd/cloud/client.py` does not choose
    "botocore.waiter",  # by botocore
    "bz2",  # by shutil, for archives
    "gzip",  # by botocore, for the compression of large requests, which EC2 does not accept
    "importlib.metadata",  # by urllib3, for HTTP/2
    "jmespath",  # by botocore, for waiters and pages
    "lzma",  # as bz2
)
"""The same for the process that calls EC2."""


class UnusedError(Exception):
    """Stands for each public name of an unused module. Libraries derive classes from it and name it in `except`. Nothing raises it."""

    def __new__(cls, *_: object, **__: object) -> UnusedError:
        """Raise ModuleNotFoundError: a library that needs the module after all fails where it uses it."""
        raise ModuleNotFoundError(f"{cls.__qualname__} stands for a module in ipamd/unused_modules.py")


def leave_out_unused_modules() -> None:
    """Let the daemon's imports of UNUSED_MODULES find modules without content. Call it before the libraries are imported.

    Digests are left to the interpreter's own code, because hashlib loads OpenSSL otherwise. The variables with which Python was
    built, of which SQLAlchemy reads whether Python has a GIL, are unknown: a Python without a GIL (its ABI flag is "t") has the real
    module.
    """
    leave_out(UNUSED_MODULES)
    sys.modules["_hashlib"] = None  # type: ignore[assignment]
    if "t" not in sys.abiflags:
        leave_out(["sysconfig"])
        sys.modules["sysconfig"].get_config_var = lambda _: None  # type: ignore[attr-defined]  # None: the variable is unknown


def leave_out(names: Iterable[str]) -> None:
    """Let imports of these modules find modules without content."""
    for name in names:
        module = ModuleType(name)
        module.__getattr__ = _attribute  # type: ignore[method-assign]
        sys.modules[name] = module


def _attribute(name: str) -> object:
    """Return what stands for a public name. Raises: AttributeError for other names, which the import system looks for."""
    if name.startswith("_"):
        raise AttributeError(name)
    return UnusedError
