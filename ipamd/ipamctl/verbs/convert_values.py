"""`ipamctl convert-values`: make values of our chart from those of amazon-vpc-cni-k8s's chart, without the daemon."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.verb import Answer, Ask, UsageError, Verb, argument
from ipamd.ipamctl.yaml_files import read_documents


def _convert_values(_daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.chart_values import convert_values
    from ipamd.model.errors import SettingsError

    documents = [content for _, content in read_documents(arguments.file, is_typed=True) if content is not None]
    values = documents[0] if documents else {}  # a file without values leaves all defaults
    if len(documents) > 1 or not isinstance(values, dict):
        raise UsageError(f"{arguments.file} is not one map of values")
    try:
        conversion = convert_values(values)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    return {"values": conversion.values, "remarks": conversion.remarks}


def render_values(answer: Answer, _: Layout) -> str:
    """Write the values as YAML, below a comment for each remark."""
    import yaml  # 20 ms, and few other verbs need it

    remarks = [f"# {remark}" for remark in answer["remarks"]]
    if remarks:
        remarks = ["# Without a counterpart, or different:", *remarks, ""]
    return "\n".join([*remarks, yaml.safe_dump(answer["values"], sort_keys=True).rstrip()])


CONVERT_VALUES = Verb(
    help="make our chart's values of those of amazon-vpc-cni-k8s's chart",
    about="Reads the values of the other chart and prints ours, with a comment for each that has no counterpart.",
    examples=("ipamctl convert-values values.yaml",),
    lay_out=render_values,
    make=_convert_values,
    arguments=(argument("file", metavar="FILE", help="its values.yaml; - is standard input"),),
)
