"""Two files that freeze the pool: the operator's file and the drain hook's file. While the pool is frozen, no ENI is created and
nothing is released (`ipamd/model/freeze.py`).

`ipamctl freeze` makes the daemon write the operator's file, so that a freeze lasts over restarts of the daemon. The file contains the
ID of the boot, so the freeze ends with a reboot.

A drain hook writes and removes the other file, whose path is a setting. While it exists, the pool is frozen, and its text is the
reason. inotify and regular checks notice changes. A file that cannot be read freezes too: only its absence thaws.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import datetime
from pathlib import Path

from ipamd.core.freeze import Freeze
from ipamd.host.files import CHECK_INTERVAL_S, FollowedFile
from ipamd.model.errors import SettingsError, log_text
from ipamd.model.freeze import FreezeCause
from ipamd.ports.process import Clock
from ipamd.settings.places import DIRECTORY, FILE, move_aside
from ipamd.settings.settings_file import created, opened

OPERATOR_NAME = "freeze.json"
"""Name of the operator's file in the run directory. It is a JSON object with `boot_id`, `reason` and `since_at` (ISO 8601)."""

TEXT_BYTES_MAX = 4096
"""The largest number of bytes of a file that are read. Ours: enough, because `Freeze` cuts a reason to fewer characters."""

log = logging.getLogger(__name__)


class OperatorFreeze:
    """Freezes and thaws the pool for `ipamctl`. Safe from any thread."""

    def __init__(self, freeze: Freeze, *, run_dir: Path, boot_id: str, clock: Clock) -> None:
        self._freeze = freeze
        self._path = run_dir / OPERATOR_NAME
        self._boot_id = boot_id
        self._clock = clock
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Restore the freeze that an earlier daemon recorded. A file of another boot is removed; a damaged file freezes."""
        with self._lock:
            try:
                recorded = json.loads(_text(self._path))
                if str(recorded["boot_id"]) == self._boot_id:
                    since_at = datetime.fromisoformat(str(recorded["since_at"]))
                    if since_at.tzinfo is None:
                        raise ValueError("since_at has no time zone")
                    self._freeze.set(FreezeCause.OPERATOR, str(recorded["reason"]), since_at=since_at)
                    return
                self._remove()
            except FileNotFoundError:
                return
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                log.warning("unreadable operator freeze, the pool is frozen path=%s error=%s", self._path, log_text(error))
                self._freeze.set(FreezeCause.OPERATOR, f"{self._path} cannot be read; `ipamctl thaw` ends it")

    def freeze(self, reason: str) -> str:
        """Freeze the pool until `thaw` or the next boot. If the file cannot be written, a restart of the daemon thaws.

        Returns: a text about the file that cannot be written; "" on success.
        """
        with self._lock:
            self._freeze.set(FreezeCause.OPERATOR, reason, since_at=self._clock.now())
            (operator_freeze,) = [freeze for freeze in self._freeze.in_force() if freeze.cause is FreezeCause.OPERATOR]
            content = {
                "boot_id": self._boot_id,
                "reason": operator_freeze.reason,
                "since_at": operator_freeze.since_at.isoformat(),
            }
            try:
                _write(self._path, json.dumps(content) + "\n")
            except OSError as error:
                return f"frozen, but only until the daemon restarts: {self._path} cannot be written: {error.strerror}"
            return ""

    def thaw(self) -> str:
        """End the operator's freeze; freezes with other causes stay.

        If the file cannot be removed, the pool stays frozen, because a restart would freeze it again.
        Returns: a text about the file that cannot be removed; "" on success.
        """
        with self._lock:
            try:
                self._remove()
            except (OSError, SettingsError) as error:
                return f"still frozen: {self._path} cannot be removed: {log_text(error)}"
            self._freeze.clear(FreezeCause.OPERATOR)
            return ""

    def _remove(self) -> None:
        """Remove the file. A directory in its place is kept under another name. Raises: OSError, SettingsError."""
        try:
            self._path.unlink(missing_ok=True)
        except IsADirectoryError:
            move_aside(self._path, kind=DIRECTORY, belongs=FILE)


class DrainHookFile(FollowedFile):
    """Follows the file of a drain hook."""

    def __init__(self, freeze: Freeze, *, path: Path) -> None:
        super().__init__(path.parent, subject="drain hook")
        self._path = path
        self._freeze = freeze

    def check(self) -> None:
        """Freeze if the file exists, with its text as the reason. End the freeze with this cause if the file does not exist."""
        try:
            reason = _text(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._freeze.clear(FreezeCause.DRAIN_HOOK)
        except OSError as error:
            self._freeze.set(FreezeCause.DRAIN_HOOK, f"{self._path} is there and cannot be read: {log_text(error)}")
        else:
            self._freeze.set(FreezeCause.DRAIN_HOOK, reason or f"{self._path} is there")

    def make_directory(self) -> None:
        """Make the file's directory, so that inotify reports the file. Without it only the regular checks notice the file."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            log.warning(
                "failed to make the directory of the drain hook's file path=%s error=%s noticed_s=%.0f",
                self._path.parent,
                error.strerror,
                CHECK_INTERVAL_S,
            )


def _text(path: Path) -> str:
    """Read the beginning of a file. Raises: OSError."""
    with opened(path) as file:
        return file.read(TEXT_BYTES_MAX).decode(errors="replace").strip()


def _write(path: Path, text: str) -> None:
    """Put a file in place with one rename, on disk when this returns. Raises: OSError."""
    new = path.with_name(f".{path.name}.new")
    with created(new, 0o600) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
