"""Read the YAML files that people hand to `ipamctl`, within bounds of size and depth."""

from __future__ import annotations

import sys
from pathlib import Path

from ipamd.ipamctl.verb import RefusedError, UsageError

YAML_CHARACTERS_MAX = 1 << 20
"""The largest number of characters of a file. Ours: an ENIConfig as kubectl prints it has 1,000, a chart's values have 10,000."""

YAML_DEPTH_MAX = 100
"""The largest number of levels of nested lists and maps. Ours: a list of ENIConfigs has seven. The parser's time grows with the square
of the depth."""


def read_documents(path: str, *, is_typed: bool = False) -> list[tuple[str, object]]:
    """Read every document of a YAML file, or of standard input ("-").

    Args:
        is_typed: whether numbers and booleans are read as such; otherwise every scalar is text.
    Returns: for each document its position, and its content, which is None if it is empty.
    Raises: RefusedError if the file cannot be read, UsageError if it is not YAML or too large.
    """
    import yaml  # 20 ms, and few verbs need it

    try:
        text = _read(path)
        _check_bounds(text)
        loader: type[yaml.BaseLoader | yaml.SafeLoader] = yaml.BaseLoader  # numbers and dates stay text
        if is_typed:
            loader = yaml.SafeLoader
        documents = list(yaml.load_all(text, Loader=loader))
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is no YAML file that can be read: {' '.join(str(error).split())}") from error
    return [(f"{path}, document {number}", document or None) for number, document in enumerate(documents, 1)]


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read(YAML_CHARACTERS_MAX + 1)
    with Path(path).open() as file:
        return file.read(YAML_CHARACTERS_MAX + 1)


def _check_bounds(text: str) -> None:
    """Refuse aliases, tags, depth and length before objects are built, because a small text may describe large objects.

    Raises: YAMLError.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        is_alias_or_tag = isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None)
        if is_alias_or_tag or depth > YAML_DEPTH_MAX or len(text) > YAML_CHARACTERS_MAX:
            raise yaml.YAMLError("it has an alias (*name), a tag (!name), or more levels or characters than such a file needs")
