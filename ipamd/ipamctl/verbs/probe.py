"""`ipamctl probe aws`: check on this node the assumptions of the code about EC2 (docs/assumptions.md)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ipamd.ipamctl.layout import WHOLE, Layout
from ipamd.ipamctl.verb import Answer, Ask, RefusedError, Verb, argument


def render_probe(answer: Answer, _: Layout) -> str:
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
            (directory / "probe-aws.md").write_text(render_probe(report, WHOLE) + "\n")
        except OSError as error:  # the report is not lost, because it is printed in any case
            print(f"ipamctl: the report was not written: {error}", file=sys.stderr)
    return report


PROBE = Verb(
    help="check assumptions about EC2 with one ENI of its own; a dry run unless --run",
    about="Checks on a real node what the code takes for granted about EC2. Without --run it makes dry runs only.",
    examples=("ipamctl probe aws --report /tmp",),
    lay_out=render_probe,
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
