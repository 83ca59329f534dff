"""The mounted settings file: `NAME=VALUE` in each line, empty lines, and comments that begin with `#` (docs/adr/0034).

A value goes to the end of the line; quotes and backslashes mean themselves, so JSON is written as it is.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ipamd.model.words import printable

SIZE_MAX = 1 << 20
"""Bytes. Ours: the size of a ConfigMap, which the file is mounted from."""

NAME_MAX = 128

PROBLEMS_MAX = 20
"""Wrong lines that are told one by one. Ours: a file of another kind is wrong in every line."""

ONLY_IN_THE_ENVIRONMENT = ("VPC_IPAMD_SETTINGS_FILE", "VPC_IPAMD_RUN_DIR", "VPC_IPAMD_FAILPOINT", "AWS_")
"""What the file cannot say: where it is itself, where the plugin and `ipamctl` look for the daemon, and what the AWS SDK reads."""

OURS_OF_AWS = ("AWS_VPC_", "AWS_EXTERNAL_SERVICE_CIDRS", "AWS_EC2_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_MANAGE_")
"""What begins with AWS_ and is read by us."""


def read(path: str) -> tuple[dict[str, str], list[str]]:
    """Read the file. Returns: its settings, and one sentence for each problem. Never raises for what is in it."""
    try:
        content = content_of(path)
        if len(content) > SIZE_MAX:  # what is cut may end within a character
            return {}, [f"{printable(path)} is larger than {SIZE_MAX} bytes"]
        text = content.decode()
    except UnicodeDecodeError as error:
        return {}, [f"{printable(path)} is not UTF-8: {error.reason} at byte {error.start}"]
    except OSError as error:
        return {}, [f"{printable(path)} cannot be read: {error.strerror or error}"]
    return parse(text, source=printable(path))


def content_of(path: str) -> bytes:
    """Read one byte more than is allowed at most. Raises: OSError."""
    with opened(path) as file:
        return file.read(SIZE_MAX + 1)


def opened(path: str | Path, *, flags: int = 0) -> BinaryIO:
    """Open a file to read it. A FIFO, device, socket or directory in its place does not block, and is refused. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def created(path: Path, mode: int) -> BinaryIO:
    """Make a file anew to write it: what lies there, of a daemon that was killed or a stranger's link, goes and is not written into.

    `mode`: from which the umask takes. Raises: OSError.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "wb")


def parse(text: str, *, source: str) -> tuple[dict[str, str], list[str]]:
    """Read the lines of a file. Returns: its settings, and one sentence for each wrong line. Concurrency: pure."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, is_set, value = (part.strip() for part in line.partition("="))
        problem = _problem(name, is_set, found)
        if problem:
            problems.append(f"{source}, line {number}: {problem}")
        else:
            found[name] = value
    more = len(problems) - PROBLEMS_MAX
    return found, problems[:PROBLEMS_MAX] + ([f"{source}: {more} more lines are wrong"] if more > 0 else [])


def _problem(name: str, is_set: str, found: dict[str, str]) -> str:
    if not is_set or not name or len(name) > NAME_MAX or not (name.isascii() and name.isidentifier()):
        return "must be NAME=VALUE, empty, or a comment that begins with #"
    if name in found:
        return f"{name} stands twice"
    if name.startswith(ONLY_IN_THE_ENVIRONMENT) and not name.startswith(OURS_OF_AWS):
        return f"{name} can only be set in the environment"
    return ""
