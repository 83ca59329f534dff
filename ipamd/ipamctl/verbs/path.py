"""`ipamctl path`: why a pod does or does not reach a destination, as far as its node decides about it."""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.legs.texts import OWN_ENI
from ipamd.ipamctl.tables import Columns, filled, table
from ipamd.ipamctl.verb import Answer, Verb, argument

_HEADS = {
    "reaches": "{pod} reaches {target}",
    "dropped": "{pod} does not reach {target}",
    "leaves": "{pod} reaches {target} as far as this node decides",
    "unseen": "it cannot be decided on this node whether {pod} reaches {target}",
}

_UNSEEN: Columns = {"CANNOT BE SEEN FROM HERE": "{text}", "WHERE": "{console}", "WHICH": "{subject}"}


def render_path(answer: Answer, layout: Layout) -> str:
    """Write the cause, the next action, the node's decisions, and the parts that cannot be seen from the node."""
    head = _HEADS.get(answer["verdict"], f"{{pod}} {answer['verdict']} {{target}}")
    head = f"{head.format(pod=answer['pod'], target=_target(answer))}: {answer['text']}"
    parts = [f"{head}\nnext: {answer['next']}"]
    parts += [f"also: {finding['text']}\n      {finding['next']}" for finding in answer["findings"][1:]]
    parts.append("\n".join([*map(_lookup_line, answer["lookups"]), *_facts(answer)]))
    text = "\n\n".join(part for part in parts if part)
    lines = [filled(line, layout, indent=10) for line in text.splitlines()]
    if answer["unseen"]:
        lines += ["", table(answer["unseen"], _UNSEEN, layout)]
    return "\n".join(lines)


def _target(answer: Answer) -> str:
    if not answer["port"]:
        return str(answer["destination"])
    return f"{answer['destination']}, TCP port {answer['port']}"


def _lookup_line(lookup: Answer) -> str:
    """Write one decision of the kernel: the question in the form of `ip route get`, and the answer."""
    question = f"to {lookup['destination']}"
    if lookup["source"]:
        question += f" from {lookup['source']}"
    if lookup["incoming"]:
        question += f" iif {lookup['incoming']}"
    if lookup["mark"]:
        question += f" mark {lookup['mark']:#x}"
    return f"{lookup['place']:<9} {question}: {_decision(lookup)}"


def _decision(lookup: Answer) -> str:
    decision = []
    if lookup["rule"] >= 0:
        decision.append(f"rule {lookup['rule']} ({lookup['rule_text']})")
    if lookup["table"]:
        decision.append(f"table {lookup['table']}")
    result = lookup["result"]
    if lookup["link"]:
        result += f" by {lookup['link']}"
    if lookup["via"]:
        result += f" via {lookup['via']}"
    decision.append(result)
    if lookup["error"]:
        decision.append(lookup["error"])
    return ", ".join(decision)


def _facts(answer: Answer) -> list[str]:
    """Write the ENI, the translation and the policy."""
    lines = []
    eni = answer.get("eni")
    if eni:
        place = f"device {eni['device_index']} of card {eni['network_card']}"
        if eni["device_index"] < 0:
            place = OWN_ENI
        groups = ", ".join(eni["security_group_ids"]) or "not known here"
        subnet = eni["subnet_id"] or "not known here"
        lines.append(f"eni       {eni['eni_id']} ({place}, {eni['link']}); subnet {subnet}; security groups {groups}")
    if answer["seen_as"] and answer["translated"]:
        lines.append(f"source    replaced by the node's {answer['seen_as']}")
    elif answer["seen_as"]:
        lines.append(f"source    kept, {answer['seen_as']}")
    if answer["policy_mode"] != "none":
        lines.append(f"policy    mode {answer['policy_mode']}: the network policy agent filters the pod")
    return lines


PATH = Verb(
    help="why a pod does or does not reach a destination: what its node decides, and where to look for the rest",
    about="Asks the kernel whether a pod reaches an address as far as this node decides, and lists what cannot be seen from here.",
    examples=("ipamctl path default/web 10.0.8.20:5432",),
    lay_out=render_path,
    rpc="Path",
    fields=("subject", "destination"),
    arguments=(
        argument(
            "subject",
            metavar="POD",
            help="a pod as namespace/name or by its name, a container ID or its beginning, or an address of a pod or of the node",
        ),
        argument(
            "destination",
            metavar="DESTINATION[:PORT]",
            help="an address, with the port of TCP; IPv6 with a port as [ADDRESS]:PORT",
        ),
    ),
    needs_attention=lambda answer: answer["verdict"] == "dropped",
)
