"""Read the file of custom networking: at the start, for the check of a mounted file that changed, and for `ipamctl plan --network`.

All three use this function, so that a file is judged before it is applied as the start would judge it.
"""

from __future__ import annotations

from pathlib import Path

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.subnets import CustomNetwork, parse
from ipamd.settings.settings_file import SIZE_MAX, content_of


def read_network_file(path: Path) -> CustomNetwork:
    """Read the file at a path. Raises: SettingsError with every problem."""
    try:
        content = content_of(str(path))
    except OSError as error:
        raise failure(SettingsError, FailureCode.NETWORK_FILE_UNREADABLE, path=path, cause=error) from error
    return parse_network_file(content, source=str(path))


def parse_network_file(content: bytes, *, source: str) -> CustomNetwork:
    """Read the file's content (`ipamd/model/subnets.py` describes it). `source`: its path, for people. Raises: SettingsError."""
    if len(content) > SIZE_MAX:  # the rest was not read, and the cut may be within a character
        raise failure(SettingsError, FailureCode.FILE_TOO_LARGE, path=source, limit=SIZE_MAX)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise failure(SettingsError, FailureCode.NETWORK_FILE_UNREADABLE, path=source, cause=error) from error
    return parse(text, source=source)
