"""Images under the names of amazon-vpc-cni-k8s's test images: stand-ins of Debian's packages, and their test helper of their programs.

Each runs the same program, of Debian instead of Alpine or the project itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lab.node import pause
from lab.node.process import BASE_ENVIRONMENT

REGISTRY = "stand-in.local"
"""Their `--test-image-registry`."""

_PREFIX = f"{REGISTRY}/networking-e2e-test-images"
_HELPER = f"{_PREFIX}/aws-vpc-cni-test-helper:20231212"
_STAND_INS = {
    f"{_PREFIX}/busybox:1.38.0": ["/bin/busybox", "sh"],
    f"{_PREFIX}/nginx:1.31.2": ["/usr/sbin/nginx", "-e", "/dev/stderr", "-c", "/www/nginx.conf"],
    f"{_PREFIX}/netcat-openbsd:v1.0": ["/usr/local/bin/nc"],
    f"{_PREFIX}/curlimages/curl:8.21.0": ["/usr/bin/curl"],
}
"""Reference -> what it runs by default. Source of the names: test/framework/utils/const.go of amazon-vpc-cni-k8s v1.23.1."""

_HELPER_ENVIRONMENT = {"PATH": BASE_ENVIRONMENT["PATH"], "GODEBUG": "urlstrictcolons=0"}
"""Their tests name the metric server of a cluster of IPv6 without brackets (test/framework/resources/agent/traffic_tester.go), and Go
from 1.26 on refuses such a URL. Their image is older; the programs here are of the compiler that their go.mod asks for."""


def archives(rootfs: Path, helpers: Path) -> Iterator[bytes]:
    """Yield an OCI archive for each image.

    Args:
        rootfs: of tools/stand_in_rootfs.sh.
        helpers: the folder of the programs of their test/agent/cmd.
    """
    root = rootfs.read_bytes()
    for reference, entrypoint in _STAND_INS.items():
        yield pause.archive_of_layers(reference, [root], entrypoint=entrypoint)
    yield pause.archive_of_layers(
        _HELPER, [root, _programs(helpers)], entrypoint=["/bin/busybox", "sh"], environment=_HELPER_ENVIRONMENT
    )


def _programs(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        for path in sorted(folder.iterdir()):
            member = tarfile.TarInfo(path.name)
            member.size, member.mode = path.stat().st_size, 0o755
            with path.open("rb") as program:
                layer.addfile(member, program)
    return buffer.getvalue()
