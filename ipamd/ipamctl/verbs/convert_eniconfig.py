"""`ipamctl convert-eniconfig`: make the file of custom networking from the ENIConfig objects of a cluster, without the daemon."""

from __future__ import annotations

import argparse
import json

from ipamd.ipamctl.verb import Answer, Ask, UsageError, Verb, argument
from ipamd.ipamctl.yaml_files import read_documents


def _convert_eniconfig(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.eniconfig import convert
    from ipamd.model.subnets import render as file_text

    zones = {}
    for text in arguments.zone:
        name, _, zone = text.partition("=")
        if not (name and zone):
            raise UsageError(f"--zone {text!r} is not NAME=ZONE")
        zones[name] = zone
    documents: list[tuple[str, object]] = []
    for path in arguments.files:
        documents += read_documents(path)
    network = convert(documents, zones=zones, primary_carries_pods=arguments.primary_carries_pods)
    answer: Answer = json.loads(file_text(network))
    return answer


CONVERT_ENICONFIG = Verb(
    help="make custom networking's file of ENIConfig objects",
    about="Reads ENIConfig objects and prints the file of custom networking. It needs no daemon.",
    examples=("ipamctl convert-eniconfig eniconfigs.yaml",),
    lay_out=lambda answer, _: json.dumps(answer, indent=2),
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
