"""Read the mounted settings file: lines of `NAME=VALUE`, empty lines, and comments that begin with `#` (docs/adr/0034).

A value extends to the end of the line. Quotes and backslashes have no special meaning, so JSON needs no escaping.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ipamd.model.words import printable

SIZE_MAX = 1 << 20
"""The largest size of the file in bytes. Ours: the file is mounted from a ConfigMap, which cannot be larger."""

NAME_MAX = 128
"""The largest number of characters of a setting's name. Ours: our names have less than 50, and a line of another format must not be
quoted as a name."""

PROBLEMS_MAX = 20
"""The largest number of wrong lines that are listed. Ours: in a file of another format every line is wrong."""

ONLY_IN_THE_ENVIRONMENT = ("VPC_IPAMD_SETTINGS_FILE", "VPC_IPAMD_RUN_DIR", "VPC_IPAMD_FAILPOINT", "AWS_")
"""Prefixes of variables that the file cannot set: its own path, the directory where the plugin and `ipamctl` look for the daemon, the
failpoint of a test, and the variables that the AWS SDK reads."""

OURS_OF_AWS = ("AWS_VPC_", "AWS_EXTERNAL_SERVICE_CIDRS", "AWS_EC2_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_MANAGE_")
"""Prefixes of variables that begin with AWS_ but are settings of this program, so that the file may set them."""


def read(path: str) -> tuple[dict[str, str], list[str]]:
    """Read the file. Returns: its settings, and one sentence for each problem. Raises nothing."""
    try:
        content = content_of(path)
        if len(content) > SIZE_MAX:  # checked before decoding, because the part that was read may end within a character
            return {}, [f"{printable(path)} is larger than {SIZE_MAX} bytes"]
        text = content.decode()
    except UnicodeDecodeError as error:
        return {}, [f"{printable(path)} is not UTF-8: {error.reason} at byte {error.start}"]
    except OSError as error:
        return {}, [f"{printable(path)} cannot be read: {error.strerror or error}"]
    return parse(text, source=printable(path))


def content_of(path: str | Path) -> bytes:
    """Read a file, but at most one byte more than SIZE_MAX, so that the caller notices a file that is too large. Raises: OSError."""
    with opened(path) as file:
        return file.read(SIZE_MAX + 1)


def opened(path: str | Path, *, flags: int = 0) -> BinaryIO:
    """Open a file to read it. A FIFO, device, socket or directory in its place raises an error and does not block. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def created(path: Path, mode: int) -> BinaryIO:
    """Create a file for writing. Raises: OSError.

    An existing file of that name is removed, and never written to, because it may be a link, or a file of a daemon that was killed.
    `mode`: the permissions, from which the umask is subtracted.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "wb")


def parse(text: str, *, source: str) -> tuple[dict[str, str], list[str]]:
    """Parse the lines of a file. Returns: its settings, and one sentence for each wrong line. Pure. `source`: the path, for people."""
    settings: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals_sign, value = (part.strip() for part in line.partition("="))
        problem = _problem(name, equals_sign, settings)
        if problem:
            problems.append(f"{source}, line {number}: {problem}")
        else:
            settings[name] = value
    more_count = len(problems) - PROBLEMS_MAX
    if more_count > 0:
        problems = [*problems[:PROBLEMS_MAX], f"{source}: {more_count} more lines are wrong"]
    return settings, problems


def _problem(name: str, equals_sign: str, earlier: dict[str, str]) -> str:
    """Return what is wrong with a line; "" if it is right. `earlier`: the settings of the lines before."""
    is_name = 0 < len(name) <= NAME_MAX and name.isascii() and name.isidentifier()
    if not equals_sign or not is_name:
        return "must be NAME=VALUE, empty, or a comment that begins with #"
    if name in earlier:
        return f"{name} stands twice"
    if name.startswith(ONLY_IN_THE_ENVIRONMENT) and not name.startswith(OURS_OF_AWS):
        return f"{name} can only be set in the environment"
    return ""
