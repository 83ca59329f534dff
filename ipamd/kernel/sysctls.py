"""The sysctl that the node needs and that netlink cannot set: forwarding for all links.

Links of ours are set one by one (`devconf`), which needs no writable /proc/sys, so packets of sandboxes are forwarded even where this
one is refused; it is for whatever else is on the node, and for links that are still to come. ip_forward is ours: amazon-vpc-cni-k8s
leaves it to the node image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError

SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""


@dataclass(frozen=True, slots=True)
class WrongSysctl:
    """A sysctl, by its path below /proc/sys, that has another value than it must."""

    key: str
    now: str
    wanted: str

    @property
    def found(self) -> str:
        """What differs."""
        return f"sysctl {self.key} was {self.now}"


WANTED: Final = {"net/ipv4/ip_forward": "1"}


def wrong_sysctls(host: HostNetns) -> Iterator[WrongSysctl]:
    """Yield each sysctl that differs, reading it when its turn comes. Raises: WiringError for one that cannot be read."""
    for key, wanted in WANTED.items():
        with host.entered():
            try:
                now = (SYSCTL_ROOT / key).read_text(encoding="ascii").strip()
            except OSError as exc:
                raise _refused(key, wanted, exc) from exc
        if now != wanted:
            yield WrongSysctl(key, now, wanted)


def repair_sysctls(host: HostNetns) -> list[str]:
    """Set what differs; one sentence each. Raises: WiringError for one that cannot be read or set."""
    sentences = []
    for wrong in wrong_sysctls(host):
        with host.entered():
            try:
                (SYSCTL_ROOT / wrong.key).write_text(wrong.wanted, encoding="ascii")
            except OSError as exc:
                raise _refused(wrong.key, wrong.wanted, exc) from exc
        sentences.append(f"{wrong.found}: set to {wrong.wanted}")
    return sentences


def promote_secondaries(host: HostNetns, link: str) -> None:
    """Keep the other addresses of a subnet when the first one is removed. Raises: WiringError; then none may be removed.

    Source: the kernel's Documentation/networking/ip-sysctl.rst, promote_secondaries; systemd sets it for all links.
    """
    key = f"net/ipv4/conf/{link}/promote_secondaries"
    with host.entered():
        try:
            (SYSCTL_ROOT / key).write_text("1", encoding="ascii")
        except OSError as exc:
            raise _refused(key, "1", exc) from exc


def _refused(key: str, wanted: str, exc: OSError) -> WiringError:
    details = f"{exc.strerror}; run `sysctl -w {key.replace('/', '.')}={wanted}` on the node, or let the init container do it"
    return WiringError(f"sysctl {key} could not be set to {wanted}", details=details)
