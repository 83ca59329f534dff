"""The verbs around the daemon: its settings, giving the node back, custom networking's file, completion."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ipamd.ipamctl.verb import Answer, Ask, AwayError, RefusedError, UsageError, Verb, argument, table

ORIGIN_NOTE = "the daemon does not answer: settings in this process's environment"


def render_config(answer: Answer) -> str:
    """Write one row per setting, under a line that says whose they are; what is not the default first."""
    rows = sorted(answer["settings"], key=lambda line: line["origin"] == "default")
    columns = {"SETTING": "{env}", "VALUE": "{value}", "DEFAULT": "{default}", "ORIGIN": "{origin}", "MEANING": "{text}"}
    return f"{answer['origin_note']}\n\n" + table(rows, columns, empty='""')


def _config(daemon: Ask, _arguments: argparse.Namespace) -> Answer:
    try:
        return daemon("GetConfig")
    except AwayError:
        from dataclasses import asdict

        from ipamd.model.redaction import without_secrets
        from ipamd.settings import describe, load

        lines = [asdict(line) | {"value": without_secrets(line.value)} for line in describe(load())]
        for line in lines:
            del line["is_live"]  # the daemon's answer has the same fields
        return {"settings": lines, "origin_note": ORIGIN_NOTE}


CONFIG = Verb(
    help="settings in force: value, default, where it comes from, meaning", render=render_config, rpc="GetConfig", make=_config
)


# `ipamctl export`: give this node back to amazon-vpc-cni-k8s; `--undo` keeps it after all.


def render_export(answer: Answer) -> str:
    """Write one line per step, and what somebody must do."""
    lines = [f"done     {step}" for step in answer["steps"]]
    lines += [f"problem  {problem}" for problem in answer["problems"]]
    if not answer["problems"] and answer["exported_count"]:
        lines.append("next     remove vpc-ipamd from this node, then let the DaemonSet aws-node come")
    return "\n".join(lines)


EXPORT = Verb(
    help="give this node back to amazon-vpc-cni-k8s: ADD is refused from then on",
    render=render_export,
    rpc="Export",
    fields=("undo",),
    arguments=(argument("--undo", action="store_true", help="keep the node: the daemon restarts and serves it again"),),
    needs_attention=lambda answer: answer["problems"],
)


# `ipamctl convert-eniconfig`: custom networking's file from the ENIConfig objects of a cluster; the daemon need not run.


def _convert_eniconfig(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.eniconfig import convert
    from ipamd.model.subnets import render as file_text

    zones = {}
    for text in arguments.zone:
        name, _, zone = text.partition("=")
        if not (name and zone):
            raise UsageError(f"--zone {text!r} is not NAME=ZONE")
        zones[name] = zone
    documents = [document for path in arguments.files for document in _documents(path)]
    network = convert(documents, zones=zones, primary_carries_pods=arguments.primary_carries_pods)
    answer: Answer = json.loads(file_text(network))
    return answer


def _documents(path: str) -> list[tuple[str, object]]:
    """Read every document of a file."""
    import yaml  # 20 ms, and no other verb needs it

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        found = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    return [(f"{path}, document {number}", document) for number, document in enumerate(found, 1)]


CONVERT_ENICONFIG = Verb(
    help="make custom networking's file of ENIConfig objects",
    render=lambda answer: json.dumps(answer, indent=2),
    make=_convert_eniconfig,
    arguments=(
        argument(
            "files", nargs="+", metavar="FILE", help="YAML with ENIConfig objects, one or more documents; - is standard input"
        ),
        argument(
            "--zone",
            action="append",
            default=[],
            metavar="NAME=ZONE",
            help="availability zone of an ENIConfig that is not named after it",
        ),
        argument("--primary-carries-pods", action="store_true", help="pods may have addresses of the primary ENI too"),
    ),
)


# `ipamctl completion`: the completion script for a shell, on standard output, generated from the parser by shtab: verbs, options and
# choices. Nothing is asked of the daemon, and no Python is started, while somebody types; argcomplete would start it at every Tab.


def _completion(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    import shtab

    from ipamd.ipamctl.main import make_parser

    return {"lines": shtab.complete(make_parser(), shell=arguments.shell).splitlines()}


COMPLETION = Verb(
    help="completion script for a shell: bash, zsh or fish",
    render=lambda answer: "\n".join(answer["lines"]),
    make=_completion,
    arguments=(argument("shell", choices=("bash", "zsh", "fish"), help="for which shell"),),
)
