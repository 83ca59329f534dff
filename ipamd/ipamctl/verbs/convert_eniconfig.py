"""`ipamctl convert-eniconfig`: custom networking's file from the ENIConfig objects of a cluster; the daemon need not run."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_REFUSED, EXIT_USAGE, Answer, Ask, Verb, VerbError


def render(answer: Answer) -> str:
    """Write the file."""
    import json

    return json.dumps(answer, indent=2)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="YAML with ENIConfig objects, one or more documents; - is standard input"
    )
    parser.add_argument(
        "--zone",
        action="append",
        default=[],
        metavar="NAME=ZONE",
        help="availability zone of an ENIConfig that is not named after it",
    )
    parser.add_argument("--primary-carries-pods", action="store_true", help="pods may have addresses of the primary ENI too")


def _ask(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    import json

    from ipamd.ipamctl.eniconfig import convert
    from ipamd.model.custom_network import render as file_text
    from ipamd.model.errors import SettingsError

    zones = dict(_pair(text) for text in arguments.zone)
    documents = [document for path in arguments.files for document in _documents(path)]
    try:
        network = convert(documents, zones=zones, primary_carries_pods=arguments.primary_carries_pods)
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    answer: Answer = json.loads(file_text(network))
    return answer


def _pair(text: str) -> tuple[str, str]:
    name, equals, zone = text.partition("=")
    if not (name and equals and zone):
        raise VerbError(f"--zone {text!r} is not NAME=ZONE", exit_status=EXIT_USAGE)
    return name, zone


def _documents(path: str) -> list[tuple[str, object]]:
    """Read every document of a file."""
    import sys
    from pathlib import Path

    import yaml  # 20 ms, and no other verb needs it

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        found = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise VerbError(f"{path} cannot be read: {error}", exit_status=EXIT_REFUSED) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise VerbError(f"{path} is no YAML: {' '.join(str(error).split())}", exit_status=EXIT_USAGE) from error
    return [(f"{path}, document {number}", document) for number, document in enumerate(found, 1)]


VERB = Verb(
    help="make custom networking's file of ENIConfig objects",
    ask=_ask,
    render=render,
    arguments=_arguments,
    asks_daemon=False,
)
