"""docs/metrics.md has every metric of a scrape, with its labels, and every metric of amazon-vpc-cni-k8s."""

from __future__ import annotations

import re

from ipamd.model.defects import Defect
from tools.metrics_page import documented, exposed_name, metrics_page, of_the_inventory
from tools.metrics_words import NOT_HERE, OF_THEIRS, ZERO

THEIRS = [
    "awscni_add_ip_req_count",
    "awscni_assigned_ip_addresses",
    "awscni_assigned_ip_per_cidr",
    "awscni_assigned_ip_per_eni",
    "awscni_aws_api_error_count",
    "awscni_aws_api_latency_ms",
    "awscni_aws_utils_error_count",
    "awscni_build_info",
    "awscni_connmark_backend",
    "awscni_connmark_reconcile_total",
    "awscni_del_ip_req_count",
    "awscni_ec2api_error_count",
    "awscni_ec2api_req_count",
    "awscni_eni_allocated",
    "awscni_eni_max",
    "awscni_force_removed_enis",
    "awscni_force_removed_ips",
    "awscni_ip_max",
    "awscni_ipamd_action_inprogress",
    "awscni_ipamd_error_count",
    "awscni_ipamd_node_initialization_duration_seconds",
    "awscni_ipamd_startup_duration_seconds",
    "awscni_no_available_ip_addresses",
    "awscni_pod_eni_error_count",
    "awscni_reconcile_count",
    "awscni_total_ip_addresses",
    "awscni_total_ipv4_prefixes",
    "awscni_unrecovered_checkpoint_entries",
]
"""Source: amazon-vpc-cni-k8s utils/prometheusmetrics/prometheusmetrics.go, and its build information."""


def test_each_of_theirs_is_here_or_has_its_reason() -> None:
    """All of its metrics, in one of the two tables, and no name of theirs that they do not have."""
    assert sorted([*OF_THEIRS, *NOT_HERE]) == sorted(THEIRS)


def test_the_comparison_names_the_metrics_that_there_are() -> None:
    """Each of theirs in a scrape has its words, and no words are left of one that is gone; all others are under our name, or
    every process's."""
    exposed = {exposed_name(metric) for metric in documented()}
    assert {name for name in exposed if not name.startswith(("ipamd_", "process_"))} == set(OF_THEIRS)


def test_what_must_stay_zero_is_explained() -> None:
    """Every value of the label has its row."""
    assert set(re.findall(r"^\| `([a-z-]+)` \|", ZERO, re.M)) == {"kind", *(defect.value for defect in Defect)}


def test_every_metric_has_one_row() -> None:
    """Under the name that a scrape has."""
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|counter \(untyped\)|gauge|histogram|summary) \|", metrics_page(), re.M)
    assert sorted(rows) == sorted(exposed_name(metric) for metric in (*documented(), *of_the_inventory()))
