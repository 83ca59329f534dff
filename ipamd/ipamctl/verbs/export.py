"""`ipamctl export`: give this node back to amazon-vpc-cni-k8s; `--undo` cancels that."""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import filled
from ipamd.ipamctl.verb import Answer, Verb, argument


def render_export(answer: Answer, layout: Layout) -> str:
    """Write one line per step and problem, and what the operator must do next."""
    lines = [f"done     {step}" for step in answer["steps"]]
    lines += [f"problem  {problem}" for problem in answer["problems"]]
    if not answer["problems"] and answer["exported_count"]:
        lines.append("next     remove vpc-ipamd from this node, then let the DaemonSet aws-node come")
    return "\n".join(filled(line, layout, indent=9) for line in lines)


EXPORT = Verb(
    help="give this node back to amazon-vpc-cni-k8s: ADD is refused from then on",
    about="Writes the files that amazon-vpc-cni-k8s needs to take over this node with its pods. ADD is refused from then on.",
    examples=("ipamctl export",),
    lay_out=render_export,
    rpc="Export",
    fields=("undo",),
    arguments=(argument("--undo", action="store_true", help="keep the node: the daemon restarts and serves it again"),),
    needs_attention=lambda answer: answer["problems"],
)
