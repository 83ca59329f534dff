"""The daemon's process does without TLS: OpenSSL is neither imported nor mapped, and what its libraries import works without."""

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
from ipamd import daemon
daemon._do_without_tls()
import ipamd.process.adapters, ipamd.process.bootstrap, ipamd.process.lifecycle, ipamd.metrics.page, ipamd.rpc.server
import asyncio, hashlib, http.client, inspect, urllib.request
assert {"prometheus_client", "sqlalchemy", "grpc"} <= set(sys.modules)
assert inspect.getmodule(daemon.main) is daemon
print(hashlib.sha256(b"abc").hexdigest(), hashlib.sha1(b"abc", usedforsecurity=False).hexdigest())
maps = Path("/proc/self/maps").read_text()
print([name for name in ("libssl", "libcrypto") if name in maps])
"""

FIPS_180_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad a9993e364706816aba3e25717850c26c9cd0d89d"
"""SHA-256 and SHA-1 of "abc". Source: FIPS 180-4's examples."""


def test_no_openssl_is_mapped_and_digests_are_the_same() -> None:
    """Every library that the daemon serves with is imported, as `run` does it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:2] == [FIPS_180_ABC, "[]"]
