"""`ipamctl probe aws`: check on this node what the code takes for granted about EC2 (docs/assumptions.md)."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_REFUSED, EXIT_USAGE, Answer, Ask, Verb, VerbError


def render(answer: Answer) -> str:
    """Write the report as Markdown."""
    from ipamd.probe.report import markdown

    return markdown(answer)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", choices=("aws",), help="what to probe: EC2 as this node sees it")
    parser.add_argument("--run", action="store_true", help="create, check and delete one ENI; without it only dry runs are made")
    parser.add_argument("--report", default="", metavar="DIR", help="also write probe-aws.md and probe-aws.json there")


def _ask(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.probing import Busy, probe
    from ipamd.model.errors import CloudError, SettingsError, log_text
    from ipamd.settings import load

    try:
        report = probe(load(), is_real=arguments.run)
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    except CloudError as error:
        raise VerbError(log_text(error), exit_status=EXIT_REFUSED) from error
    except (Busy, OSError) as error:
        raise VerbError(str(error), exit_status=EXIT_REFUSED) from error
    if arguments.report:
        _write(report, arguments.report)
    return report


def _write(report: Answer, directory: str) -> None:
    """Write both files. The report is printed in any case, so a directory that cannot be written loses nothing."""
    import json
    import sys
    from pathlib import Path

    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "probe-aws.json").write_text(json.dumps(report, indent=2) + "\n")
        (Path(directory) / "probe-aws.md").write_text(render(report) + "\n")
    except OSError as error:
        print(f"ipamctl: the report was not written: {error}", file=sys.stderr)


def _exit_status(answer: Answer) -> int:
    differs = any(check["verdict"] == "does not hold" for check in answer["checks"])
    return EXIT_ATTENTION if differs or answer["ended"] or answer["left_over"] else 0


VERBS = {
    "probe": Verb(
        help="check assumptions about EC2 with one ENI of its own; a dry run unless --run",
        ask=_ask,
        render=render,
        arguments=_arguments,
        exit_status=_exit_status,
        position=8,
        asks_daemon=False,
    )
}
