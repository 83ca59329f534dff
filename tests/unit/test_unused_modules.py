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
parts = {"asyncio.events", "grpc.aio._channel", "importlib.metadata._text", "wsgiref.handlers", "html", "_pickle", "_compression"}
print(sorted(parts & set(sys.modules)), [name for name in sys.modules if name.startswith("_sysconfigdata")])
"""

FIPS_180_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad a9993e364706816aba3e25717850c26c9cd0d89d"
"""SHA-256 and SHA-1 of "abc". Source: FIPS 180-4's examples."""


def test_no_unused_module_is_imported_and_digests_are_the_same() -> None:
    """Every library that the daemon serves with is imported, as `run` does it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:4] == [FIPS_180_ABC, "[]", "[]", "[] []"]


EC2_PROCESS = """
import os, sys
from types import SimpleNamespace
from ipamd.unused_modules import UNUSED_BY_EC2_PROCESS, UnusedError, leave_out
leave_out(UNUSED_BY_EC2_PROCESS)
from ipamd.cloud.client import Ec2Client
os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
config = SimpleNamespace(http_timeout_s=1, imds_endpoint="http://127.0.0.1:9", ec2_endpoint="")
client = Ec2Client(config, region=lambda: "eu-west-1")
print(sorted(client.operations.values()) == sorted(set(client.operations.values()) & set(dir(client.built()))))
print([name for name in UNUSED_BY_EC2_PROCESS if sys.modules[name].AnyName is not UnusedError])
parts = {"html.parser", "zipfile", "jmespath.parser", "_ast", "_lzma", "ipamd.model.failures"}
print(sorted(parts & set(sys.modules)))
"""


def test_the_process_that_calls_ec2_builds_its_client_without_its_unused_modules() -> None:
    """The client has a method for each call."""
    done = subprocess.run([sys.executable, "-c", EC2_PROCESS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:3] == ["True", "[]", "[]"]


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
