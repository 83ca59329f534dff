"""The verbs around the daemon: its settings, giving the node back, custom networking's file, completion."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_AWAY, EXIT_REFUSED, EXIT_USAGE, Answer, Ask, Verb, VerbError, table

ORIGIN_NOTE = "the daemon does not answer: settings in this process's environment"


def render_config(answer: Answer) -> str:
    """Write one row per setting, under a line that says whose they are; what is not the default first."""
    rows = sorted(answer["settings"], key=lambda line: line["origin"] == "default")
    return f"{answer['origin_note']}\n\n" + table(
        ("SETTING", "VALUE", "DEFAULT", "ORIGIN", "MEANING"),
        [(line["env"], line["value"] or '""', line["default"] or '""', line["origin"], line["text"]) for line in rows],
    )


def _ask_config(daemon: Ask, _arguments: argparse.Namespace) -> Answer:
    try:
        return daemon("GetConfig")
    except VerbError as error:
        if error.exit_status != EXIT_AWAY:
            raise
    return _own()


def _own() -> Answer:
    from dataclasses import asdict

    from ipamd.model.errors import SettingsError
    from ipamd.model.redaction import without_secrets
    from ipamd.settings import describe, load

    try:
        lines = [asdict(line) for line in describe(load())]
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    for line in lines:
        line["value"] = without_secrets(line["value"])
        del line["is_live"]  # the daemon's answer has the same fields
    return {"settings": lines, "origin_note": ORIGIN_NOTE}


CONFIG = Verb(
    help="settings in force: value, default, where it comes from, meaning",
    ask=_ask_config,
    render=render_config,
    position=7,
)


# `ipamctl export`: give this node back to amazon-vpc-cni-k8s; `--undo` keeps it after all.


def render_export(answer: Answer) -> str:
    """Write one line per step, and what somebody must do."""
    lines = [f"done     {step}" for step in answer["steps"]]
    lines += [f"problem  {problem}" for problem in answer["problems"]]
    if not answer["problems"] and answer["exported_count"]:
        lines.append("next     remove vpc-ipamd from this node, then let the DaemonSet aws-node come")
    return "\n".join(lines)


def _export_exit_status(answer: Answer) -> int:
    """Return 1 if the export is not complete."""
    return EXIT_ATTENTION if answer["problems"] else 0


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--undo", action="store_true", help="keep the node: the daemon restarts and serves it again")


EXPORT = Verb(
    help="give this node back to amazon-vpc-cni-k8s: ADD is refused from then on",
    ask=lambda daemon, arguments: daemon("Export", undo=arguments.undo),
    render=render_export,
    arguments=_export_arguments,
    exit_status=_export_exit_status,
)


# `ipamctl convert-eniconfig`: custom networking's file from the ENIConfig objects of a cluster; the daemon need not run.


def render_convert_eniconfig(answer: Answer) -> str:
    """Write the file."""
    import json

    return json.dumps(answer, indent=2)


def _convert_eniconfig_arguments(parser: argparse.ArgumentParser) -> None:
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


def _ask_convert_eniconfig(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    import json

    from ipamd.ipamctl.eniconfig import convert
    from ipamd.model.errors import SettingsError
    from ipamd.model.subnets import render as file_text

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


CONVERT_ENICONFIG = Verb(
    help="make custom networking's file of ENIConfig objects",
    ask=_ask_convert_eniconfig,
    render=render_convert_eniconfig,
    arguments=_convert_eniconfig_arguments,
    asks_daemon=False,
)


# `ipamctl completion`: the completion script for a shell, on standard output.


SHELLS = ("bash", "zsh", "fish")


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def _ask_completion(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl import completion
    from ipamd.ipamctl.main import make_parser

    return {"lines": completion.SHELLS[arguments.shell](make_parser()).splitlines()}


COMPLETION = Verb(
    help="completion script for a shell: bash, zsh or fish",
    ask=_ask_completion,
    render=lambda answer: "\n".join(answer["lines"]),
    arguments=_completion_arguments,
    asks_daemon=False,
)


VERBS = {"config": CONFIG, "export": EXPORT, "convert-eniconfig": CONVERT_ENICONFIG, "completion": COMPLETION}
