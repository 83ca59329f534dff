"""The daemon's process does without modules that only its libraries import: these are empty, OpenSSL is not mapped, and what the
libraries do with them works."""

import subprocess
import sys

import pytest

from ipamd.unused_modules import UnusedError, leave_out_unused_modules

SCRIPT = """
import sys
from pathlib import Path
from ipamd import daemon
from ipamd.unused_modules import UNUSED_MODULES, UnusedError
daemon.leave_out_unused_modules()
import ipamd.process.adapters, ipamd.process.bootstrap, ipamd.process.lifecycle, ipamd.metrics.page, ipamd.rpc.server
import hashlib, http.client, inspect
assert {"prometheus_client", "sqlalchemy", "grpc", "tenacity", "google.protobuf"} <= set(sys.modules)
assert inspect.getmodule(daemon.main) is daemon
print(hashlib.sha256(b"abc").hexdigest(), hashlib.sha1(b"abc", usedforsecurity=False).hexdigest())
maps = Path("/proc/self/maps").read_text()
print([name for name in ("libssl", "libcrypto") if name in maps])
print([name for name in UNUSED_MODULES if sys.modules[name].AnyName is not UnusedError])
parts = {"asyncio.events", "grpc.aio._channel", "importlib.metadata._text", "wsgiref.handlers", "html"}
print(sorted(parts & set(sys.modules)))
"""

FIPS_180_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad a9993e364706816aba3e25717850c26c9cd0d89d"
"""SHA-256 and SHA-1 of "abc". Source: FIPS 180-4's examples."""


def test_no_unused_module_is_imported_and_digests_are_the_same() -> None:
    """Every library that the daemon serves with is imported, as `run` does it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:4] == [FIPS_180_ABC, "[]", "[]", "[]"]


def test_libraries_may_derive_and_catch_what_stands_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do both when they are imported. What they derive cannot be made."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    leave_out_unused_modules()
    server = sys.modules["http.server"]

    class Derived(server.BaseHTTPRequestHandler):  # type: ignore[name-defined,misc]
        pass

    with pytest.raises(ModuleNotFoundError, match="Derived"):
        Derived("request", key="value")
    assert not isinstance(TimeoutError(), sys.modules["asyncio"].TimeoutError)
    assert not isinstance(OSError(), sys.modules["ssl"].SSLError)
    assert issubclass(Derived, UnusedError)
