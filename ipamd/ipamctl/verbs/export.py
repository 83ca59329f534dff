"""`ipamctl export`: give this node back to amazon-vpc-cni-k8s; `--undo` keeps it after all."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_ATTENTION, Answer, Verb


def render(answer: Answer) -> str:
    """Write one line per step, and what somebody must do."""
    lines = [f"done     {step}" for step in answer["steps"]]
    lines += [f"problem  {problem}" for problem in answer["problems"]]
    if not answer["problems"] and answer["exported_count"]:
        lines.append("next     remove vpc-ipamd from this node, then let the DaemonSet aws-node come")
    return "\n".join(lines)


def exit_status(answer: Answer) -> int:
    """Return 1 if the export is not complete."""
    return EXIT_ATTENTION if answer["problems"] else 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--undo", action="store_true", help="keep the node: the daemon restarts and serves it again")


VERB = Verb(
    help="give this node back to amazon-vpc-cni-k8s: ADD is refused from then on",
    ask=lambda daemon, arguments: daemon("Export", undo=arguments.undo),
    render=render,
    arguments=_arguments,
    exit_status=exit_status,
)
