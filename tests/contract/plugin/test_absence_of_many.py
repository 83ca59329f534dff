"""Several STATUS at once, and the daemon that starts meanwhile: what one writes is no damage to another that began before."""

from __future__ import annotations

import stat

from cni_plugin import absence

BOOT = b"boot"


class Files:
    """The seam of a STATUS while others write: each look at the clock is a second later, the files are as of just before it."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.written: list[bytes] = []

    def boottime_ms(self) -> int:
        self.now_ms += 1000
        return self.now_ms

    def read_file(self, path: str, _count: int) -> bytes:
        self.now_ms += 1000  # another process, or the daemon, has just written it
        texts = {
            absence.BOOT_ID_PATH: BOOT,
            f"/run/{absence.MARK_NAME}": b"%s\n%d\n" % (BOOT, self.now_ms),
            f"/run/{absence.BRIDGED_NAME}": b"%s\n50000 %d\n" % (BOOT, self.now_ms),
        }
        return texts[path]

    def lstat(self, _path: str) -> tuple[int, int]:
        return stat.S_IFREG | 0o600, 0

    def euid(self) -> int:
        return 0

    def unique(self) -> str:
        return "1"

    def create(self, _path: str) -> int:
        return 3

    def write(self, _descriptor: int, data: bytes, _timeout_ms: int) -> int:
        self.written.append(data)
        return len(data)

    def sync(self, _descriptor: int) -> None:
        self.written.append(b"synced")

    def close(self, _descriptor: int) -> None:
        self.written.append(b"closed")

    def rename(self, _old: str, _new: str) -> None:
        self.written.append(b"renamed")


def test_what_others_write_meanwhile_is_no_damage() -> None:
    """Both files carry times that are later than this STATUS began; a minute that is used up would make the node NotReady."""
    files = Files()
    assert absence.refusal(files, "/run", is_charged=True) == ""  # type: ignore[arg-type]  # the part of the seam that it uses
    assert files.written[0].startswith(BOOT + b"\n50000 ")
