"""A daemon without free descriptors learns nothing about namespaces, and says so: no sandbox is taken for gone (I2, I11)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipamd.kernel.netns import opened_netns
from ipamd.model.errors import NetnsError, WiringError
from ipamd.model.failures import FailureCode
from tests.errors import failed

CHILD = """
import json, os, resource, sys
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import WiringSpec
from ipamd.model.ids import parse_key
from ipaddress import IPv4Address

host = HostNetns()
wiring = KernelWiring(host, veth_prefix="eni")
path = "/proc/self/ns/net"
spec = WiringSpec(parse_key("sandbox", "eth0"), IPv4Address("10.0.0.9"), 254, "enitest", path, 9001)
deeds = {
    "identify": lambda: wiring.identify_netns(path),
    "wire": lambda: wiring.wire(spec),
    "check": lambda: wiring.check(spec),
    "survey": wiring.survey,
}
wiring.identify_netns(path)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
said = {}
for name, deed in deeds.items():
    try:
        deed()
        said[name] = ["nothing", 0]
    except Exception as error:
        said[name] = [type(error).__name__, getattr(error, "cni_code", -1)]
for fd in held:
    os.close(fd)
said["afterwards"] = [str(wiring.identify_netns(path) == host.identity), 0]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, list[object]]:
    """What a process of its own got for each call while its last descriptor was in use: the error's class and CNI code."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["identify", "wire", "check", "survey"])
def test_no_descriptor_is_no_evidence(said: dict[str, list[object]], name: str) -> None:
    """EMFILE is a failure that is worth a retry (105), never "the namespace is gone" (104) and never an unexpected error (100)."""
    assert said[name] == ["WiringError", 105]


def test_the_namespace_is_there_when_descriptors_are(said: dict[str, list[object]]) -> None:
    """The same path is the same namespace as before."""
    assert said["afterwards"] == ["True", 0]


@pytest.mark.parametrize("errno_name", ["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EIO", "ELOOP"])
def test_only_enoent_and_enotdir_prove_absence(monkeypatch: pytest.MonkeyPatch, errno_name: str, tmp_path: Path) -> None:
    """Whatever else the kernel answers to opening a path is silence."""

    def refusing(path: str, *_args: object, **_kwargs: object) -> int:
        raise OSError(getattr(errno, errno_name), os.strerror(getattr(errno, errno_name)))

    (tmp_path / "file").touch()
    for gone in (str(tmp_path / "gone"), str(tmp_path / "file" / "below"), str(tmp_path / "file")):
        with pytest.raises(NetnsError), opened_netns(gone):
            raise AssertionError("must not be opened")
    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(WiringError, check=failed(FailureCode.NETNS_NOT_OPENED)), opened_netns(str(tmp_path / "file")):
        raise AssertionError("must not be opened")
