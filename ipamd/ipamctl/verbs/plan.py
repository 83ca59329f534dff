"""`ipamctl plan`: what the pool would do now and why, as it is, under other settings, or on another instance type."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import Answer, Ask, Verb, table
from ipamd.model.words import counted


def render(answer: Answer) -> str:
    """Write the sentence first, then the actions in order, then what the plan was made from."""
    changed = answer["changed"]
    lines = [f"under {', '.join(changed)}; nothing is changed", ""] if changed else []
    lines += [answer["sentence"], ""]
    lines += [f"{number}. {action['text']}" for number, action in enumerate(answer["actions"], 1)] or ["no action"]
    lines += [
        "",
        f"short     of {counted(answer['deficit_count'], 'address')}; {answer['excess_count']} in excess",
        f"pool      {counted(answer['total_count'], 'address')}: {answer['in_use_count']} in use, {answer['cooling_count']} cooling, "
        f"{answer['free_count']} free; {counted(answer['waiting_count'], 'ADD')} waiting",
        f"limits    {answer['instance_type']}: {answer['eni_count']} of {counted(answer['eni_limit'], 'ENI')} attached, "
        f"{counted(answer['slots_per_eni'], 'slot')} each",
        "targets   " + (", ".join(f"{t['name']}={t['value']}" for t in answer["targets"] if t["defined"]) or "none"),
    ]
    lines += _auto(answer["auto"]) if "auto" in answer else []
    lines += [f"under way {answer['under_way']}"] if answer["under_way"] else []
    if answer["obstacles"]:
        rows = [
            (o["subject"], f"{o['left_s']:.0f}" if o["left_s"] else "-", o["reason"], o["next"] or "-")
            for o in answer["obstacles"]
        ]
        lines += ["", table(("IN THE WAY OF", "LEFT S", "REASON", "NEXT"), rows)]
    return "\n".join(lines)


def _auto(auto: Answer) -> list[str]:
    off = "" if auto["in_force"] else "not in force; would be "
    return [
        f"auto      {off}{auto['sentence']}",
        f"demand    {60 * auto['minute_rate']:.1f} ADDs/min over a minute, {60 * auto['ten_minute_rate']:.1f} over ten; "
        f"an allocation takes {auto['allocation_s']:.1f} s, a new ENI {auto['creation_s']:.1f} s",
    ]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="settings", help="plan under this setting (repeatable)"
    )
    parser.add_argument("--instance-type", metavar="TYPE", default="", help="plan with the limits of this instance type")


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    return daemon("Plan", settings=arguments.settings, instance_type=arguments.instance_type)


VERB = Verb(
    help="what the pool would do now and why, also under other settings; changes nothing",
    ask=_ask,
    render=render,
    arguments=_arguments,
    position=7,
)
