"""Two files that freeze the pool: an operator's, kept over a restart of the daemon, and one that a drain hook writes and removes.

The hook's file is a setting; that it exists freezes, and its text is the reason. It is noticed by inotify, and by the clock. A file
that is there and cannot be read freezes too: only "there is none" thaws. The operator's file has the boot's ID: a boot thaws.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import datetime
from pathlib import Path

from ipamd.core.freeze import Freeze
from ipamd.host.files import LOOK_S, FollowedFile
from ipamd.model.errors import log_text
from ipamd.model.freeze import FreezeCause
from ipamd.ports import Clock
from ipamd.settings.settings_file import opened

OPERATOR_NAME = "freeze.json"

TEXT_BYTES_MAX = 4096
"""What is read of a file; a reason is cut to less. Ours."""

log = logging.getLogger(__name__)


class OperatorFreeze:
    """`ipamctl freeze` and `ipamctl thaw`: each says what went wrong, "" if nothing did. Safe from any thread."""

    def __init__(self, freeze: Freeze, *, run_dir: Path, boot_id: str, clock: Clock) -> None:
        self._freeze = freeze
        self._path = run_dir / OPERATOR_NAME
        self._boot_id = boot_id
        self._clock = clock
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Take over what an operator said to the daemon before this one. A file of another boot is removed; damage is logged."""
        with self._lock:
            try:
                kept = json.loads(_text(self._path))
                if str(kept["boot_id"]) == self._boot_id:
                    since_at = datetime.fromisoformat(str(kept["since_at"]))
                    if since_at.tzinfo is None:
                        raise ValueError("since_at has no time zone")
                    self._freeze.set(FreezeCause.OPERATOR, str(kept["reason"]), since_at=since_at)
                    return
                self._path.unlink(missing_ok=True)
            except FileNotFoundError:
                return
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                log.warning("an operator's freeze counts, its reason is lost path=%s error=%s", self._path, log_text(error))
                self._freeze.set(FreezeCause.OPERATOR, f"{self._path} cannot be read; `ipamctl thaw` ends it")

    def freeze(self, reason: str) -> str:
        """Freeze the pool until `thaw` or the next boot; if the file cannot be written, a restart thaws."""
        with self._lock:
            self._freeze.set(FreezeCause.OPERATOR, reason, since_at=self._clock.now())
            (kept,) = [one for one in self._freeze.in_force() if one.cause is FreezeCause.OPERATOR]
            said = {"boot_id": self._boot_id, "reason": kept.reason, "since_at": kept.since_at.isoformat()}
            try:
                _write(self._path, json.dumps(said) + "\n")
            except OSError as error:
                return f"frozen, but only until the daemon restarts: {self._path} cannot be written: {error.strerror}"
            return ""

    def thaw(self) -> str:
        """End the operator's freeze, no other. A file that cannot be removed keeps it: a restart would bring it back."""
        with self._lock:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                return f"still frozen: {self._path} cannot be removed: {error.strerror}"
            self._freeze.clear(FreezeCause.OPERATOR)
            return ""


class DrainHookFile(FollowedFile):
    """Follows the file that a drain hook sets."""

    def __init__(self, freeze: Freeze, *, path: Path) -> None:
        super().__init__(path.parent, subject="drain hook")
        self._path = path
        self._freeze = freeze

    def look(self) -> None:
        """Freeze if the file is there, with its text as the reason; end this cause if it is not."""
        try:
            reason = _text(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._freeze.clear(FreezeCause.DRAIN_HOOK)
        except OSError as error:
            self._freeze.set(FreezeCause.DRAIN_HOOK, f"{self._path} is there and cannot be read: {log_text(error)}")
        else:
            self._freeze.set(FreezeCause.DRAIN_HOOK, reason or f"{self._path} is there")

    def make_directory(self) -> None:
        """Make the file's directory, so that a change in it is told; without it the clock notices."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            log.warning(
                "no directory for a drain hook's file path=%s error=%s noticed_s=%.0f", self._path.parent, error.strerror, LOOK_S
            )


def _text(path: Path) -> str:
    """Read the beginning of a file. Raises: OSError."""
    with opened(path) as file:
        return file.read(TEXT_BYTES_MAX).decode(errors="replace").strip()


def _write(path: Path, text: str) -> None:
    """Put a file in place with one rename, on disk when this returns. Raises: OSError."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.replace(path)
