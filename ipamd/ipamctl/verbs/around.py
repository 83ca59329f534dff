"""The verbs around the daemon: settings, giving the node back; and what works without it: bundle, page, probe, files, completion."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ipamd.ipamctl.verb import Answer, Ask, AwayError, RefusedError, UsageError, Verb, argument, table

if TYPE_CHECKING:
    from ipamd.ipamctl.archive import Part

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


YAML_CHARACTERS_MAX = 1 << 20
"""Ours: an ENIConfig as kubectl prints it has 1,000."""

YAML_DEPTH_MAX = 100
"""Ours: a list of ENIConfigs has seven. The parser's time grows with the square of the depth."""


def _documents(path: str) -> list[tuple[str, object]]:
    """Read every document of a file."""
    import yaml  # 20 ms, and no other verb needs it

    depth = 0
    try:
        with nullcontext(sys.stdin) if path == "-" else Path(path).open() as file:
            text = file.read(YAML_CHARACTERS_MAX + 1)
        for event in yaml.parse(text):  # before anything is built of it: what is small here may be large there
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            is_odd = isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None)
            if is_odd or depth > YAML_DEPTH_MAX or len(text) > YAML_CHARACTERS_MAX:
                raise yaml.YAMLError("it has an alias (*name), a tag (!name), or more levels or characters than any ENIConfig")
        found = [document or None for document in yaml.load_all(text, Loader=yaml.BaseLoader)]  # numbers and dates stay text
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is no YAML that is taken: {' '.join(str(error).split())}") from error
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


# `ipamctl bundle`: one archive of this node's state for support, without secrets.


STDOUT = "-"


def render_bundle(answer: Answer) -> str:
    """Write where it is and what failed; nothing if it went to standard output."""
    if answer["file"] == STDOUT:
        return ""
    failed = [part for part in answer["parts"] if part["problem"]]
    whole = len(answer["parts"]) - len(failed)
    lines = [
        f"{answer['file']}: {whole} of {len(answer['parts'])} parts, {answer['bytes']} bytes; it holds addresses and names of pods"
    ]
    return "\n".join([*lines, "", table(failed, {"PART": "{name}", "PROBLEM": "{problem}"})] if failed else lines)


def _bundle(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.archive import collect

    if arguments.file == STDOUT and arguments.output != "table":
        raise UsageError(f"-o {arguments.output} and -f - would both write to standard output")
    at_s = time.time()
    file = arguments.file or f"vpc-ipamd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at_s))}.tar.gz"
    made = _parts(daemon, arguments)
    opened: AbstractContextManager[IO[bytes]] = nullcontext(sys.stdout.buffer)
    try:
        if file != STDOUT:
            # Made by us and readable by root alone: what is there already is not overwritten.
            opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        with opened as out:
            found = collect(made, out, at_s=at_s)
            out.flush()
            size = 0 if file == STDOUT else out.tell()
    except OSError as error:
        advice = "name another with -f, or use -f - and redirect"
        raise RefusedError(f"{file} cannot be written: {error.strerror}: {advice}") from error
    return {"file": file, "bytes": size, "parts": [one._asdict() for one in found]}


def _parts(daemon: Ask, arguments: argparse.Namespace) -> list[Part]:
    from ipamd.ipamctl.archive import LOGS, parts
    from ipamd.settings import load_what_is_right

    settings = load_what_is_right().daemon  # wrong settings are a reason to collect
    return parts(
        daemon,
        run_dir=settings.run_dir,
        history_dir=Path(arguments.history_dir or settings.history_dir),
        metrics_address=settings.metrics_address,
        logs=tuple(arguments.log) or LOGS,
    )


BUNDLE = Verb(
    help="one archive of this node's state for support, without secrets; exit 1 if a part is missing",
    render=render_bundle,
    make=_bundle,
    arguments=(
        argument("-f", "--file", default="", metavar="FILE", help="where to; - is standard output, as for kubectl exec"),
        argument("--log", action="append", default=[], metavar="FILE", help="a log of the daemon to take in (repeatable)"),
        argument("--history-dir", default="", metavar="DIR", help="where the history lies (default: the setting's)"),
    ),
    needs_attention=lambda answer: any(part["problem"] for part in answer["parts"]),
)


# `ipamctl page`: the status page for a browser, on a port of the node's loopback until Ctrl-C.


PORT = 61676
PORT_MAX = 65535


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no port: 0 to {PORT_MAX}")
    return int(text)


def _serve(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    from ipamd.ipamctl.page import LOOPBACK, Answers, PagePort, state, token_of

    token_file = Path(arguments.token_file) if arguments.token_file else None
    try:
        if token_file is not None:
            token_of(token_file)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--token-file {token_file}: {problem}") from error
    try:
        served = PagePort(arguments.port, answers=Answers(token_file=token_file, state=lambda: state(daemon)))
    except OSError as error:
        problem = f"cannot serve the page on {LOOPBACK}:{arguments.port}: {error.strerror}; name another with --port"
        raise RefusedError(problem) from error
    served.start()
    try:
        yield {"url": f"http://localhost:{served.port}/", "is_token_needed": token_file is not None}
        signal.pause()
    finally:
        served.close()


def render_page(answer: Answer) -> str:
    """Write where it is."""
    return f"the status page is at {answer['url']}{', with a token' if answer['is_token_needed'] else ''}; Ctrl-C ends it"


PAGE = Verb(
    help="a status page for a browser, on a port of the node's loopback until Ctrl-C",
    render=render_page,
    make=_serve,
    arguments=(
        argument("--port", type=_port, default=PORT, metavar="PORT", help=f"on 127.0.0.1 (default {PORT}; 0: any)"),
        argument("--token-file", default="", metavar="FILE", help="ask for the token in this file"),
    ),
)


# `ipamctl probe aws`: check on this node what the code takes for granted about EC2 (docs/assumptions.md).


def render_probe(answer: Answer) -> str:
    """Write the report as Markdown."""
    from ipamd.probe.report import markdown

    return markdown(answer)


def _probe(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.probing import probe
    from ipamd.settings import load

    try:
        report = probe(load(), is_real=arguments.run)
    except OSError as error:
        raise RefusedError(str(error)) from error
    if arguments.report:
        try:
            directory = Path(arguments.report)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "probe-aws.json").write_text(json.dumps(report, indent=2) + "\n")
            (directory / "probe-aws.md").write_text(render_probe(report) + "\n")
        except OSError as error:  # it is printed in any case, so nothing is lost
            print(f"ipamctl: the report was not written: {error}", file=sys.stderr)
    return report


PROBE = Verb(
    help="check assumptions about EC2 with one ENI of its own; a dry run unless --run",
    render=render_probe,
    make=_probe,
    arguments=(
        argument("subject", choices=("aws",), help="what to probe: EC2 as this node sees it"),
        argument("--run", action="store_true", help="create, check and delete one ENI; without it only dry runs are made"),
        argument("--report", default="", metavar="DIR", help="also write probe-aws.md and probe-aws.json there"),
    ),
    needs_attention=lambda answer: (
        answer["ended"] or answer["left_over"] or any(check["verdict"] == "does not hold" for check in answer["checks"])
    ),
)
