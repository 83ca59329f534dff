"""Images under the names of amazon-vpc-cni-k8s's test images.

The stand-ins run the same programs, but from Debian's packages. The test helper has the programs that are built from
amazon-vpc-cni-k8s itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lab.node import pause
from lab.node.process import BASE_ENVIRONMENT

REGISTRY = "stand-in.local"
"""Value of the tests' option `--test-image-registry`."""

_PREFIX = f"{REGISTRY}/networking-e2e-test-images"
_HELPER = f"{_PREFIX}/aws-vpc-cni-test-helper:20231212"
_STAND_INS = {
    f"{_PREFIX}/busybox:1.38.0": ["/bin/busybox", "sh"],
    f"{_PREFIX}/nginx:1.31.2": ["/usr/sbin/nginx", "-e", "/dev/stderr", "-c", "/www/nginx.conf"],
    f"{_PREFIX}/netcat-openbsd:v1.0": ["/usr/local/bin/nc"],
    f"{_PREFIX}/curlimages/curl:8.21.0": ["/usr/bin/curl"],
}
"""Reference of an image -> its entrypoint. Source of the names: test/framework/utils/const.go of amazon-vpc-cni-k8s v1.23.1."""

_HELPER_ENVIRONMENT = {"PATH": BASE_ENVIRONMENT["PATH"], "GODEBUG": "urlstrictcolons=0"}
"""Environment of the test helper. On an IPv6 cluster the tests write the URL of the metric server without brackets
(test/framework/resources/agent/traffic_tester.go). Programs built with Go 1.26 or later refuse such a URL without this GODEBUG. The
original image is built with an older Go, but the programs here with the version that the project's go.mod requires."""

_AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
"""File of the authorities that a Go program trusts. The Debian packages of the stand-in do not bring it."""


def archives(rootfs: Path, helpers: Path, *, authority: str = "") -> Iterator[bytes]:
    """Yield an OCI archive for each image.

    Args:
        rootfs: the root file system that tools/stand_in_rootfs.sh makes.
        helpers: the folder of the programs built from test/agent/cmd of amazon-vpc-cni-k8s.
        authority: the certificate of the only authority that the test helper trusts, as PEM.
    """
    root = rootfs.read_bytes()
    for reference, entrypoint in _STAND_INS.items():
        yield pause.archive_of_layers(reference, [root], entrypoint=entrypoint)
    yield pause.archive_of_layers(
        _HELPER, [root, _programs(helpers, authority)], entrypoint=["/bin/busybox", "sh"], environment=_HELPER_ENVIRONMENT
    )


def _programs(folder: Path, authority: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        for path in sorted(folder.iterdir()):
            member = tarfile.TarInfo(path.name)
            member.size, member.mode = path.stat().st_size, 0o755
            with path.open("rb") as program:
                layer.addfile(member, program)
        member = tarfile.TarInfo(_AUTHORITIES)
        member.size, member.mode = len(authority.encode()), 0o644
        layer.addfile(member, io.BytesIO(authority.encode()))
    return buffer.getvalue()
