"""Settings from the environment: every setting, every parser, all problems at once, and the rules of amazon-vpc-cni-k8s where
ours are the same.

`vectors_config.json` holds the observed behaviour of amazon-vpc-cni-k8s (areas env_parse, mtu, entrypoint_validation), each with the
environment that asks the same of us. Vectors about settings that we do not have are not in it.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from functools import cache, reduce
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from botocore.utils import is_valid_uri
from hypothesis import given
from hypothesis import strategies as st

import ipamd
from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6
from ipamd.model.pinned_address import PinnedRange
from ipamd.settings import Settings, describe, differences, load, without_meaning
from ipamd.settings.json_parsers import parse_tags
from ipamd.settings.parsers import integer, parse_bool, parse_cidrs, parse_url, parse_veth_prefix
from tests.errors import failed
from tests.table import each_of

VECTORS = json.loads((Path(__file__).parent / "vectors_config.json").read_text())

JUNK_IS_AN_ERROR = [
    {"AWS_VPC_K8S_CNI_RANDOMIZESNAT": "bogus"},
    {"ENABLE_PREFIX_DELEGATION": "TrUe"},
    {"IP_COOLDOWN_PERIOD": "2O"},
    {"AWS_VPC_K8S_CNI_CONNMARK": "4294967296"},
    {"MAX_ENI": "abc"},
    {"WARM_PREFIX_TARGET": "non-integer-string"},
    {"HTTP_TIMEOUT": "abc"},
]
"""Different on purpose: amazon-vpc-cni-k8s logs these and uses the default; we name them all and do not start."""

PREFIXES_WITHOUT_TARGET = [
    {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "0", "WARM_IP_TARGET": "0"},
    {"ENABLE_PREFIX_DELEGATION": "true"},
]
"""Different on purpose: the entrypoint of amazon-vpc-cni-k8s refuses prefix mode without a target; here WARM_ENI_TARGET counts."""

SAME = [v["ours"] for v in VECTORS if v["ours"]["env"] not in [*JUNK_IS_AN_ERROR, *PREFIXES_WITHOUT_TARGET]]


def _value(settings: Settings, path: str) -> Any:
    return reduce(getattr, path.split("."), settings)


@each_of(SAME)
def test_like_amazon_vpc_cni_k8s(vector: dict[str, Any]) -> None:
    """The same environment means the same, so that a DaemonSet's environment carries over."""
    if vector.get("accepted") is False:
        with pytest.raises(SettingsError):
            load(vector["env"])
        return
    settings = load(vector["env"])
    if "field" in vector:
        assert _value(settings, vector["field"]) == vector["value"]
    if "ip_targets_defined" in vector:
        assert settings.pool_settings(max_pods=0).ip_targets_defined == vector["ip_targets_defined"]


def test_differences_are_in_the_vectors() -> None:
    """Each difference that is named here is one that a vector shows."""
    environments = [vector["ours"]["env"] for vector in VECTORS]
    assert all(environment in environments for environment in [*JUNK_IS_AN_ERROR, *PREFIXES_WITHOUT_TARGET])


@each_of(JUNK_IS_AN_ERROR)
def test_junk_is_an_error(environment: dict[str, str]) -> None:
    """A value that cannot be meant is an error that names the variable and the value."""
    with pytest.raises(SettingsError) as refusal:
        load(environment)
    ((name, value),) = environment.items()
    assert refusal.value.details.startswith(f"{name}={value!r}: ")


@each_of(PREFIXES_WITHOUT_TARGET)
def test_prefix_mode_without_target(environment: dict[str, str]) -> None:
    """Prefix mode without a prefix target is accepted."""
    assert load(environment).pool.prefix_delegation


def test_a_refusal_names_where_each_wrong_setting_is_set(tmp_path: Path) -> None:
    """With the command for the environment, and the path of the settings file."""
    path = tmp_path / "file.settings"
    path.write_text("MINIMUM_IP_TARGET=few\n")
    with pytest.raises(SettingsError) as refusal:
        load({"WARM_IP_TARGET": "many", "MINIMUM_IP_TARGET": "4", "MAX_ENI": "3", "VPC_IPAMD_SETTINGS_FILE": str(path)})
    in_environment, in_file = refusal.value.next_step.split("; ")
    assert "daemonset/vpc-ipamd -c ipamd WARM_IP_TARGET=VALUE`" in in_environment
    assert ("MINIMUM_IP_TARGET" in in_environment, "MAX_ENI" in refusal.value.next_step) == (False, False)
    assert "MINIMUM_IP_TARGET" in in_file
    assert str(path) in in_file


def test_auto_computes_what_warm_ip_target_says() -> None:
    """Both at once is a contradiction; a floor and what auto replaces anyway are none."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)) as refusal:
        load({"VPC_IPAMD_WARM_TARGET_MODE": "auto", "WARM_IP_TARGET": "2"})
    assert "which it computes" in refusal.value.details
    settings = load(
        {"VPC_IPAMD_WARM_TARGET_MODE": "auto", "MINIMUM_IP_TARGET": "5", "WARM_ENI_TARGET": "1", "WARM_PREFIX_TARGET": "1"}
    )
    pool = settings.pool_settings(max_pods=29)
    assert (pool.warm_target_auto, pool.minimum_ip_target, pool.ip_targets_defined) == (True, 5, True)


@pytest.mark.parametrize(
    ("exempt", "forced"), [("web", "batch,web"), ("10.0.0.0/16", "10.0.5.0/24"), ("10.0.5.0/24", "10.0.0.0/16,web")]
)
def test_a_pod_is_not_both_exempt_from_snat_and_forced(exempt: str, forced: str) -> None:
    """One problem for lists that have a namespace or an address in common."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"VPC_IPAMD_SNAT_EXEMPT_PODS": exempt, "VPC_IPAMD_SNAT_FORCED_PODS": forced})
    assert load({"VPC_IPAMD_SNAT_EXEMPT_PODS": exempt, "VPC_IPAMD_SNAT_FORCED_PODS": "other,192.168.0.0/16"}).network.has_pod_snat


def test_an_address_is_pinned_for_one_namespace() -> None:
    """Two namespaces share no range; two ranges of one may overlap."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"VPC_IPAMD_PINNED_ADDRESSES": "db=10.0.0.0/24,web=10.0.0.16/28"})
    network = load({"VPC_IPAMD_PINNED_ADDRESSES": "db=10.0.0.0/24,db=10.0.0.0/28,web"}).network
    assert network.has_pinned_addresses
    assert not load({}).network.has_pinned_addresses


@each_of(
    [
        {"VPC_IPAMD_PINNED_ADDRESSES": "db,web=10.0.0.0/28", "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": "db,cache"},
        {"VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": "db"},
        {"VPC_IPAMD_PINNED_ADDRESS_LIST": "true"},
    ]
)
def test_a_permission_about_addresses_that_nobody_may_ask_for_is_refused(environment: dict[str, str]) -> None:
    """It would have no effect, and the operator believes that it has one (I15)."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)) as refusal:
        load(environment)
    *_, wrong = environment
    assert refusal.value.details.startswith(wrong)
    assert load({"VPC_IPAMD_PINNED_ADDRESSES": "db,cache,web", **{wrong: environment[wrong]}})


def test_all_problems_at_once() -> None:
    """Every problem of every topic is in one error, so that an operator corrects them in one go."""
    environment = {"WARM_IP_TARGET": "x", "POD_MTU": "1", "HTTP_TIMEOUT": "x", "VPC_IPAMD_LOG_LEVEL": "loud", "MAX_ENI": "2"}
    with pytest.raises(SettingsError) as refusal:
        load(environment)
    assert "wrong settings (4)" in refusal.value.message
    assert [problem.split("=")[0] for problem in refusal.value.details.split("; ")] == [
        "WARM_IP_TARGET",
        "POD_MTU",
        "HTTP_TIMEOUT",
        "VPC_IPAMD_LOG_LEVEL",
    ]


@each_of(["1", "t", "T", "TRUE", "true", "True"])
def test_true(text: str) -> None:
    """What Go's strconv.ParseBool takes for true is true."""
    assert parse_bool(text) is True


@each_of(["0", "f", "F", "FALSE", "false", "False"])
def test_false(text: str) -> None:
    """What Go's strconv.ParseBool takes for false is false."""
    assert parse_bool(text) is False


@each_of(["yes", "no", "on", "tRUE", "2", " true", ""])
def test_neither(text: str) -> None:
    """Nothing else is a boolean."""
    with pytest.raises(ValueError, match="true or false"):
        parse_bool(text)


GOOD = {
    "WARM_ENI_TARGET": ("0", 0),
    "WARM_IP_TARGET": ("7", 7),
    "VPC_IPAMD_WARM_TARGET_MODE": ("Auto", "auto"),
    "MINIMUM_IP_TARGET": ("12", 12),
    "WARM_PREFIX_TARGET": ("2", 2),
    "MAX_ENI": ("3", 3),
    "VPC_IPAMD_MAX_PODS": ("110", 110),
    "VPC_IPAMD_RELEASE_HOLD_SECONDS": ("1200", 1200),
    "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": ("0", 0),
    "ENABLE_PREFIX_DELEGATION": ("t", True),
    "IP_COOLDOWN_PERIOD": ("86400", 86400),
    "ENABLE_IPv4": ("T", True),
    "ENABLE_IPv6": ("f", False),
    "ENABLE_V4_EGRESS": ("false", False),
    "ENABLE_V6_EGRESS": ("1", True),
    "AWS_VPC_ENI_MTU": ("576", 576),
    "POD_MTU": ("9001", 9001),
    "AWS_VPC_K8S_CNI_VETHPREFIX": ("pod1", "pod1"),
    "VPC_IPAMD_CHAINED_PLUGINS": ('[{"type": "tuning", "mtu": 1400}]', '[{"type":"tuning","mtu":1400}]'),
    "VPC_IPAMD_POD_VETH_NAMES": ("true", True),
    "AWS_VPC_K8S_CNI_EXTERNALSNAT": ("1", True),
    "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": (
        "10.1.0.0/16, 10.2.3.4/24,",
        (IPv4Network("10.1.0.0/16"), IPv4Network("10.2.3.0/24")),
    ),
    "VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES": ("web, batch-2,web", ("web", "batch-2")),
    "VPC_IPAMD_SNAT_EXEMPT_PODS": ("10.1.2.3/16, web", ("web", IPv4Network("10.1.0.0/16"))),
    "VPC_IPAMD_SNAT_FORCED_PODS": ("batch,", ("batch",)),
    "VPC_IPAMD_PINNED_ADDRESSES": (
        "db=10.1.2.0/28, web,db=10.1.3.0/28,web",
        (PinnedRange("db", IPv4Network("10.1.2.0/28")), PinnedRange("web"), PinnedRange("db", IPv4Network("10.1.3.0/28"))),
    ),
    "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": ("db", ("db",)),
    "VPC_IPAMD_PINNED_ADDRESS_KEEP_SECONDS": ("0", 0),
    "VPC_IPAMD_PINNED_ADDRESS_LIST": ("true", True),
    "VPC_IPAMD_POD_POOLS": ("web=cards, batch-2=jobs,", ("web=cards", "batch-2=jobs")),
    "ENABLE_MULTI_NIC": ("true", True),
    "VPC_IPAMD_MULTI_NIC_NAMESPACES": ("fast, hpc", ("fast", "hpc")),
    "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES": ("web=cards,web=jobs,web=cards", ("web=cards", "web=jobs")),
    "AWS_EXTERNAL_SERVICE_CIDRS": ("198.51.100.0/24", (IPv4Network("198.51.100.0/24"),)),
    "AWS_VPC_K8S_CNI_RANDOMIZESNAT": ("HashRandom", "hashrandom"),
    "AWS_VPC_CNI_NODE_PORT_SUPPORT": ("F", False),
    "AWS_VPC_K8S_CNI_CONNMARK": ("0x1040", 0x1040),
    "VPC_IPAMD_FOREIGN_LINK_POLICY": ("Drop", "drop"),
    "VPC_IPAMD_EXTRA_SOURCE_CIDRS": ("10.99.0.0/16", (IPv4Network("10.99.0.0/16"),)),
    "NETWORK_POLICY_ENFORCING_MODE": ("None", "none"),
    "ENABLE_POD_ENI": ("True", True),
    "POD_SECURITY_GROUP_ENFORCING_MODE": ("Standard", "standard"),
    "DISABLE_TCP_EARLY_DEMUX": ("1", True),
    "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": ("Kubelet", "kubelet"),
    "VPC_IPAMD_KUBELET_PODS_SOCKET": ("/run/kubelet/pods.sock", "/run/kubelet/pods.sock"),
    "VPC_IPAMD_UNMARKED_PODS": ("REFUSE", "refuse"),
    "VPC_IPAMD_POLICY_AGENT_SOCKET": ("/run/npa.sock", "/run/npa.sock"),
    "VPC_IPAMD_POLICY_AGENT": ("Absent", "absent"),
    "DISABLE_NETWORK_RESOURCE_PROVISIONING": ("TRUE", True),
    "DISABLE_POD_V6": ("true", True),
    "ENABLE_SUBNET_DISCOVERY": ("false", False),
    "VPC_IPAMD_SUBNETS_VALID_SECONDS": ("1", 1),
    "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": ("true", True),
    "VPC_IPAMD_NETWORK_FILE": ("/tmp/z", Path("/tmp/z")),
    "AWS_EC2_ENDPOINT": ("http://127.0.0.1:1", "http://127.0.0.1:1"),
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": ("http://127.0.0.1:2", "http://127.0.0.1:2"),
    "CLUSTER_NAME": ("blue", "blue"),
    "ADDITIONAL_ENI_TAGS": ('{"b": "2", "a": "1"}', (("a", "1"), ("b", "2"))),
    "DISABLE_LEAKED_ENI_CLEANUP": ("true", True),
    "HTTP_TIMEOUT": ("300", 300),
    "VPC_IPAMD_CRI_SOCKET": ("off", "off"),
    "VPC_IPAMD_RUN_DIR": ("/tmp/x", Path("/tmp/x")),
    "VPC_IPAMD_FREEZE_FILE": ("/run/hooks/leave", "/run/hooks/leave"),
    "VPC_IPAMD_SETTINGS_FILE": (str(Path(__file__).parent / "empty.settings"), str(Path(__file__).parent / "empty.settings")),
    "VPC_IPAMD_RELOAD_JITTER_SECONDS": ("0", 0),
    "VPC_IPAMD_CONFLIST_FILE": ("/tmp/y.conflist", Path("/tmp/y.conflist")),
    "AWS_VPC_K8S_CNI_BACKING_STORE": ("/tmp/ipam.json", Path("/tmp/ipam.json")),
    "VPC_IPAMD_AWS_NODE_EGRESS_DIR": ("/run/theirs", Path("/run/theirs")),
    "VPC_IPAMD_AWS_NODE_SOCKET": ("off", "off"),
    "VPC_IPAMD_AWS_NODE_CONFLIST_FILE": ("/tmp/20-aws.conflist", "/tmp/20-aws.conflist"),
    "VPC_IPAMD_CNI_BACKEND_SOCKET": ("/run/aws-node/ipamd.sock", "/run/aws-node/ipamd.sock"),
    "VPC_IPAMD_CNI_BIN_DIR": ("/usr/lib/cni", Path("/usr/lib/cni")),
    "VPC_IPAMD_REFERENCE_PLUGINS_DIR": ("/tmp/p", Path("/tmp/p")),
    "ENABLE_BANDWIDTH_PLUGIN": ("true", True),
    "VPC_IPAMD_CRI_EVENTS": ("0", False),
    "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": ("true", True),
    "VPC_IPAMD_LOG_LEVEL": ("DEBUG", "debug"),
    "VPC_IPAMD_METRICS_ADDRESS": ("off", "off"),
    "VPC_IPAMD_HEALTH_ADDRESS": ("127.0.0.1:1", "127.0.0.1:1"),
    "VPC_IPAMD_MAX_CONCURRENT_REQUESTS": ("4", 4),
    "VPC_IPAMD_DRAIN_SECONDS": ("10", 10),
    "VPC_IPAMD_HISTORY_DIR": ("off", "off"),
    "VPC_IPAMD_HISTORY_DAYS": ("3", 3),
    "VPC_IPAMD_HISTORY_MAX_BYTES": ("8388608", 8 << 20),
}
"""For each variable a text and what it means."""

URLS = [
    "ec2",
    "ftp://ec2",
    "http://",
    "http://a b",
    "http://ec2:99999",
    "http://ec2:0",
    "http://u:p@ec2",
    "http://ec2/?a=b",
    "http://a..b",
    "http://a_b",
    "http://-a.b",
    "http://" + "a" * 64,
    "http://[:::]",
    "http://a/\u00e9",
    "http://a/b c",
]

ADDRESSES = [
    *("61678", ":0", ":65536", ":x", "host:1", "::1:80", "[::1:80", "[10.0.0.1x]:1", "off ", "10.0.0.1"),
    *("[10.0.0.1]:1", "[localhost]:1", "[]:1", "[[::1]]:1"),
]

PATHS = ["relative", "./x", "/" + "x" * 5000, "/a\nb", "/a "]

FILES = [*PATHS, "/", "//", "/a/.."]

BAD = {
    "AWS_EC2_ENDPOINT": URLS[1:],
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": [*URLS, "https://127.0.0.1:1"],
    "CLUSTER_NAME": ["x" * 257, "a\nb", " blue"],
    "VPC_IPAMD_CRI_SOCKET": ["containerd", "tcp://127.0.0.1:1", "/" + "x" * 200, "Off"],
    "VPC_IPAMD_RUN_DIR": [*PATHS, "/", "/" + "x" * 100],
    "VPC_IPAMD_FREEZE_FILE": FILES,
    "VPC_IPAMD_CONFLIST_FILE": [*FILES, "/etc/cni/net.d/10-x", "/etc/cni/net.d/10-x.conf", "/etc/cni/net.d/.conflist"],
    "VPC_IPAMD_HISTORY_DIR": ["relative", "Off", "/a\nb"],
    "VPC_IPAMD_CNI_BIN_DIR": PATHS,
    "AWS_VPC_K8S_CNI_BACKING_STORE": FILES,
    "VPC_IPAMD_AWS_NODE_EGRESS_DIR": PATHS,
    "VPC_IPAMD_AWS_NODE_SOCKET": [*FILES, "Off", "/" + "x" * 107],
    "VPC_IPAMD_AWS_NODE_CONFLIST_FILE": FILES,
    "VPC_IPAMD_CNI_BACKEND_SOCKET": [*FILES, "off", "/" + "x" * 107],
    "VPC_IPAMD_REFERENCE_PLUGINS_DIR": PATHS,
    "VPC_IPAMD_NETWORK_FILE": FILES,
    "VPC_IPAMD_SETTINGS_FILE": ["relative"],
    "VPC_IPAMD_RELOAD_JITTER_SECONDS": ["-1", "3601", "1m"],
    "VPC_IPAMD_METRICS_ADDRESS": ADDRESSES,
    "VPC_IPAMD_HEALTH_ADDRESS": ADDRESSES,
    "WARM_ENI_TARGET": ["1.5", "one", "1 2", "1001", "9" * 5000, "0x" + "f" * 5000, "\x00"],
    "WARM_IP_TARGET": [" ", "1 ", "65537", "\udc80"],
    "VPC_IPAMD_WARM_TARGET_MODE": ["automatic", "5"],
    "MINIMUM_IP_TARGET": ["65537"],
    "WARM_PREFIX_TARGET": ["4097"],
    "MAX_ENI": ["1001"],
    "VPC_IPAMD_MAX_PODS": ["-1", "65537"],
    "VPC_IPAMD_RELEASE_HOLD_SECONDS": ["0", "86401", "10m"],
    "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": ["-1", "3601", "30s"],
    "ENABLE_PREFIX_DELEGATION": ["yes"],
    "ENABLE_IPv4": ["dual"],
    "ENABLE_IPv6": ["on"],
    "ENABLE_V4_EGRESS": ["ipv4"],
    "ENABLE_V6_EGRESS": ["TrUe"],
    "IP_COOLDOWN_PERIOD": ["-1", "86401", "30s"],
    "AWS_VPC_ENI_MTU": ["575", "9002"],
    "POD_MTU": ["575", "9002"],
    "AWS_VPC_K8S_CNI_VETHPREFIX": [
        "eth",
        "lo",
        "vlan",
        "abcde",
        "a/b",
        "a b",
        "e",
        "en",
        "ens",
        "vl",
        "eth0",
        "ens5",
        "enxa",
        "br1",
    ],
    "VPC_IPAMD_CHAINED_PLUGINS": [
        "tuning",
        '{"type": "tuning"}',
        "[{}]",
        '[{"type": "vpc-cni"}]',
        '[{"type": "../x"}]',
        "[1]",
        "[" * 30000,
        '[{"type": "x", "a": NaN}]',
        '[{"type": "x", "a": 1e999}]',
        '[{"type": "x", "type": "y"}]',
        '[{"type": "x", "capabilities": ["portMappings"]}]',
        '[{"type": "x", "capabilities": {"portMappings": "yes"}}]',
        '[{"type": "x", "cniVersion": 1}]',
        '[{"type": "x", "ipam": "host-local"}]',
    ],
    "VPC_IPAMD_POD_VETH_NAMES": ["pod"],
    "AWS_VPC_K8S_CNI_EXTERNALSNAT": ["yes"],
    "VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES": [
        "*",
        "Web",
        "web_1",
        "-web",
        "a" * 64,
        "10.0.0.0/8",
        ",".join(f"n{n}" for n in range(1001)),
    ],
    "VPC_IPAMD_SNAT_EXEMPT_PODS": ["10.0.0.1", "10.0.0.0/33", "fd00::/8", "Web"],
    "VPC_IPAMD_SNAT_FORCED_PODS": ["10.0.0.1", "web/x"],
    "VPC_IPAMD_PINNED_ADDRESS_LIST": ["db"],
    "VPC_IPAMD_PINNED_ADDRESSES": [
        "=10.0.0.0/28",
        "Db",
        "db=",
        "db=10.0.0.1.2",
        "db=fd00::/64",
        "db=10.0.0.0/28=x",
        "10.0.0.0/28",
    ],
    "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": ["Web", "db=10.0.0.0/28"],
    "VPC_IPAMD_PINNED_ADDRESS_KEEP_SECONDS": ["-1", "86401", "10m"],
    "VPC_IPAMD_POD_POOLS": ["web", "web=", "=cards", "Web=cards", "web=Cards", "web=a,web=b", f"web={'a' * 33}"],
    "ENABLE_MULTI_NIC": ["maybe"],
    "VPC_IPAMD_MULTI_NIC_NAMESPACES": ["Fast", "a=b"],
    "VPC_IPAMD_POOL_ANNOTATION_NAMESPACES": ["web", "*=cards", "web=cards=b", ",".join(f"n{n}=a" for n in range(1001))],
    "AWS_EXTERNAL_SERVICE_CIDRS": ["10.0.0.0/8,0.0.0.0/0"],
    "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": ["10.0.0.1," * 1001],
    "AWS_VPC_K8S_CNI_RANDOMIZESNAT": ["random"],
    "AWS_VPC_CNI_NODE_PORT_SUPPORT": ["yes"],
    "AWS_VPC_K8S_CNI_CONNMARK": [
        "0",
        "0x100000000",
        "0xzz",
        "0x4000",
        "0x8000",
        "0x2000",
        "0x200",
        "0x10000",
        "0x4080",
        "0xffffffff",
    ],
    "VPC_IPAMD_FOREIGN_LINK_POLICY": ["allow", "1"],
    "VPC_IPAMD_EXTRA_SOURCE_CIDRS": ["10.1.0.0/33", "any"],
    "NETWORK_POLICY_ENFORCING_MODE": ["true", "permissive", " strict"],
    "ENABLE_POD_ENI": ["yes", "strict"],
    "POD_SECURITY_GROUP_ENFORCING_MODE": ["none", "true"],
    "DISABLE_TCP_EARLY_DEMUX": ["no"],
    "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": ["api", "annotations,kubelet"],
    "VPC_IPAMD_KUBELET_PODS_SOCKET": ["kubelet.sock", "/" + "x" * 107],
    "VPC_IPAMD_UNMARKED_PODS": ["true", "pool"],
    "VPC_IPAMD_POLICY_AGENT": ["none", "false"],
    "DISABLE_NETWORK_RESOURCE_PROVISIONING": ["yes"],
    "DISABLE_POD_V6": ["TrUe"],
    "VPC_IPAMD_POLICY_AGENT_SOCKET": [*FILES, "off", "/" + "x" * 107],
    "ENABLE_SUBNET_DISCOVERY": ["yes"],
    "VPC_IPAMD_SUBNETS_VALID_SECONDS": ["0", "3601", "5m"],
    "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": ["yes"],
    "ADDITIONAL_ENI_TAGS": [
        '{"vpc-ipamd/pool": "cards"}',
        *["x", "[]", '{"a": 1}', '{"aws:x": "1"}', '{"": "1"}', "[" * 30000],
        *['{"a": "1", "a": "2"}', json.dumps({"x" * 129: ""}), json.dumps({"x": "y" * 257}), '{"a": "\\ud800"}', "x" * 40000],
        json.dumps({str(number): "" for number in range(45)}),
    ],
    "DISABLE_LEAKED_ENI_CLEANUP": ["yes"],
    "HTTP_TIMEOUT": ["301", "1s"],
    "ENABLE_BANDWIDTH_PLUGIN": ["yes"],
    "VPC_IPAMD_CRI_EVENTS": ["maybe"],
    "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": ["yes"],
    "VPC_IPAMD_LOG_LEVEL": ["loud"],
    "VPC_IPAMD_MAX_CONCURRENT_REQUESTS": ["3", "1025"],
    "VPC_IPAMD_DRAIN_SECONDS": ["-1", "61"],
    "VPC_IPAMD_HISTORY_DAYS": ["0", "366"],
    "VPC_IPAMD_HISTORY_MAX_BYTES": ["1000", "32M"],
}
"""For each variable invalid texts."""


def _fields() -> dict[str, str]:
    """Variable -> path of its field, from the classes themselves."""
    return {
        item.metadata["env"]: f"{topic.name}.{item.name}"
        for topic in dataclasses.fields(Settings)
        for item in dataclasses.fields(getattr(Settings(), topic.name))
    }


def test_every_setting_is_tested() -> None:
    """A setting that is added brings a good and a bad example here."""
    assert set(GOOD) == set(_fields())
    assert set(BAD) == set(_fields())


NEEDED = {
    "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": {"VPC_IPAMD_PINNED_ADDRESSES": "db"},
    "VPC_IPAMD_PINNED_ADDRESS_LIST": {"VPC_IPAMD_PINNED_ADDRESSES": "db"},
}
"""Variable -> settings without which its example in GOOD is refused."""


@each_of(GOOD)
def test_good_value(name: str) -> None:
    """A value is read into its own field, and no other field changes."""
    text, meaning = GOOD[name]
    needed = NEEDED.get(name, {})
    settings, before = load({name: text, **needed}), load(needed)
    for variable, path in _fields().items():
        assert _value(settings, path) == (meaning if variable == name else _value(before, path))


@each_of([(name, text) for name, texts in BAD.items() for text in texts])
def test_bad_value(name: str, text: str) -> None:
    """A value out of range or of the wrong kind is refused with the variable's name and the value."""
    with pytest.raises(SettingsError) as refusal:
        load({name: text})
    shown = text.replace("u:p@", "[redacted]@")
    assert refusal.value.details.startswith(f"{name}={shown[:200]!r}")
    assert len(refusal.value.details) < 1500
    assert refusal.value.cni_code == 119


@each_of(GOOD)
def test_empty_is_not_set(name: str) -> None:
    """An empty value counts as not set."""
    assert load({name: ""}) == load({}) == Settings()


def test_derived() -> None:
    """The sandboxes' MTU is the ENIs' unless set; the planner sees the instance type's limit unless VPC_IPAMD_MAX_PODS is set."""
    assert load({"AWS_VPC_ENI_MTU": "1500"}).network.sandbox_mtu == 1500
    assert load({"AWS_VPC_ENI_MTU": "1500", "POD_MTU": "1400"}).network.sandbox_mtu == 1400
    assert load({}).pool_settings(max_pods=29).max_pods == 29
    planned = load({"VPC_IPAMD_MAX_PODS": "5", "WARM_IP_TARGET": "3", "ENABLE_PREFIX_DELEGATION": "1"}).pool_settings(max_pods=29)
    assert (planned.max_pods, planned.warm_ip_target, planned.prefix_delegation) == (5, 3, True)


OF_IPV6 = {"ENABLE_IPv4": "false", "ENABLE_IPv6": "true"}


@pytest.mark.parametrize("name", ["AWS_EXTERNAL_SERVICE_CIDRS", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"])
def test_a_cidr_of_ipv6_is_skipped_and_named(name: str) -> None:
    """As in amazon-vpc-cni-k8s; lists of ours alone are refused."""
    given = {name: "10.0.0.0/8, 2001:db8::/32"}
    assert _value(load(given), _fields()[name]) == (IPv4Network("10.0.0.0/8"),)
    (difference,) = differences(given)
    assert difference.startswith(f"{name}: ")
    assert "2001:db8::/32" in difference
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load(OF_IPV6 | {"VPC_IPAMD_EXTRA_SOURCE_CIDRS": "10.0.0.0/8, 2001:db8::/32"})


def test_what_pods_of_ipv6_have_from_the_vpc_is_no_egress() -> None:
    """ENABLE_V6_EGRESS is for pods of IPv4: on a node of IPv6 it is named, and changes nothing; unset ENABLE_V4_EGRESS is on."""
    settings = load(OF_IPV6 | {"ENABLE_V6_EGRESS": "true"})
    assert settings.meaningless() == ("ENABLE_V6_EGRESS",)
    assert settings.network.extra_family is IPV4
    assert load(OF_IPV6 | {"ENABLE_V6_EGRESS": "true", "ENABLE_V4_EGRESS": "false"}).network.extra_family is None
    assert load({"ENABLE_V6_EGRESS": "true", "ENABLE_V4_EGRESS": "false"}).network.extra_family is IPV6


def test_extra_sources_are_of_pods_of_ipv4() -> None:
    """With pods of IPv6 only egress is of IPv4, and has the node's address outside: there it has no meaning, and opens nothing."""
    given = {"VPC_IPAMD_EXTRA_SOURCE_CIDRS": "192.0.2.0/24"}
    settings = load(OF_IPV6 | given)
    assert settings.meaningless() == ("VPC_IPAMD_EXTRA_SOURCE_CIDRS",)
    assert settings.network.extra_sources == ()
    assert load(given).network.extra_sources == (IPv4Network("192.0.2.0/24"),)


def test_a_pool_of_ipv6() -> None:
    """Pods of IPv6 have one /80: what is set of targets and of translation means nothing, and is named, not refused (I15)."""
    given = OF_IPV6 | {"WARM_IP_TARGET": "5", "ENABLE_PREFIX_DELEGATION": "true", "AWS_VPC_K8S_CNI_EXTERNALSNAT": "true"}
    settings = load(given | {"IP_COOLDOWN_PERIOD": "60", "AWS_VPC_ENI_MTU": "1500"})
    named = ("WARM_IP_TARGET", "ENABLE_PREFIX_DELEGATION", "AWS_VPC_K8S_CNI_EXTERNALSNAT")
    assert settings.meaningless() == named
    assert without_meaning(given).endswith(f"settings without meaning with pods of IPv6: {', '.join(named)}")
    planned = settings.pool_settings(max_pods=29)
    assert (planned.family, planned.max_pods, planned.ip_targets_defined) == (IPV6, 0, False)
    assert load(OF_IPV6).meaningless() == load({"WARM_IP_TARGET": "5"}).meaningless() == ()
    assert without_meaning(OF_IPV6) == without_meaning({"WARM_IP_TARGET": "5"}) == ""


@each_of(
    [
        {"ENABLE_IPv6": "true", "ENABLE_IPv4": "true"},
        {"ENABLE_IPv4": "false"},
        OF_IPV6 | {"DISABLE_POD_V6": "true"},
        {"ENABLE_V6_EGRESS": "true", "DISABLE_POD_V6": "true"},
        OF_IPV6 | {"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true"},
        OF_IPV6 | {"POD_MTU": "1279"},
        {"ENABLE_V6_EGRESS": "true", "AWS_VPC_ENI_MTU": "1279"},
    ]
)
def test_what_pods_of_ipv6_cannot_have(environment: dict[str, str]) -> None:
    """Both families or none, custom networking, and an MTU that IPv6 does not work with."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load(environment)


POLICY = {"NETWORK_POLICY_ENFORCING_MODE": "Strict", "VPC_IPAMD_POD_VETH_NAMES": "true"}


@each_of(
    [
        ({"VPC_IPAMD_POD_VETH_NAMES": "false"}, "set VPC_IPAMD_POD_VETH_NAMES=true, or remove it"),
        ({"VPC_IPAMD_CHAINED_PLUGINS": '[{"type": "tuning"}, {"type": "bandwidth"}]'}, "cannot have both"),
    ]
)
def test_what_the_policy_agent_cannot_work_with(environment: dict[str, str], words: str) -> None:
    """Links without its names, and the bandwidth plugin, are refused with what to do, in both modes; without a mode they are not."""
    assert load(POLICY).policy.mode == "strict"
    for mode in ("standard", "STRICT"):
        with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)) as refusal:
            load(POLICY | environment | {"NETWORK_POLICY_ENFORCING_MODE": mode})
        assert refusal.value.details.startswith(f"NETWORK_POLICY_ENFORCING_MODE={mode.lower()}: ")
        assert words in refusal.value.details
    for off in ("", "none", "None"):
        assert not load(POLICY | environment | {"NETWORK_POLICY_ENFORCING_MODE": off}).policy.is_on


BRANCHES = {"ENABLE_POD_ENI": "true"}


@each_of(
    [
        (
            {"VPC_IPAMD_CNI_BACKEND_SOCKET": "/var/run/aws-node/ipamd.sock"},
            "ENABLE_POD_ENI=true: the plugin of amazon-vpc-cni-k8s does not pass on",
        ),
        (
            {"VPC_IPAMD_UNMARKED_PODS": "refuse", "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": "kubelet"},
            "VPC_IPAMD_UNMARKED_PODS=refuse: it has no effect with VPC_IPAMD_POD",
        ),
        ({"AWS_VPC_K8S_CNI_CONNMARK": "0x1080"}, "AWS_VPC_K8S_CNI_CONNMARK has bit 0x1000, which ENABLE_POD_ENI=true"),
    ]
)
def test_what_pods_with_groups_of_their_own_cannot_be_served_with(environment: dict[str, str], words: str) -> None:
    """Another plugin's socket, which tells nothing of the pod, and marks that nobody reads; without the feature both mean nothing."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)) as refusal:
        load(BRANCHES | environment)
    assert refusal.value.details.startswith(words)
    assert load(environment).network.enforcing_mode is None
    assert load(BRANCHES).network.enforcing_mode is EnforcingMode.STRICT
    assert load(BRANCHES | {"POD_SECURITY_GROUP_ENFORCING_MODE": "standard"}).network.enforcing_mode is EnforcingMode.STANDARD


def test_describe() -> None:
    """Every setting is shown once with its value, default, origin and a sentence (`ipamctl config`)."""
    environment = {"ADDITIONAL_ENI_TAGS": '{"a": "1"}', "AWS_VPC_CNI_NODE_PORT_SUPPORT": "0", "MAX_ENI": "", "UNKNOWN": "1"}
    lines = {line.env: line for line in describe(load(environment), environment)}
    assert set(lines) == set(_fields())
    assert (lines["ADDITIONAL_ENI_TAGS"].value, lines["ADDITIONAL_ENI_TAGS"].origin) == ("a=1", "environment")
    shown = lines["AWS_VPC_CNI_NODE_PORT_SUPPORT"]
    assert (shown.value, shown.default, shown.origin) == ("false", "true", "environment")
    assert lines["MAX_ENI"].origin == "default"
    assert [line.env for line in lines.values() if not line.text.endswith(".")] == []


@cache
def _attributes_read(*, in_config: bool) -> set[str]:
    """Names of attributes that ipamd reads, in its settings or in every other module."""
    root = Path(ipamd.__file__).parent
    files = [path for path in root.rglob("*.py") if (path.parent == root / "settings") == in_config and "pb" not in path.parts]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@each_of(GOOD)
def test_every_setting_is_read(name: str) -> None:
    """A setting that nothing outside ipamd/settings reads would be accepted and have no effect.

    Read through another attribute: `pod_mtu` (`sandbox_mtu`), `freeze_file` (`freeze_path`), `conflist` (`conflist_beside`),
    `warm_target` (the planner's `warm_target_auto`); the two families and their egress (`family`, `extra_family`); groups of pods
    and their mode (`enforcing_mode`); what pods without mark get (`refuses_unmarked`); whether a part of the network file is
    needed (`reads_network_file`).
    """
    field_name = _fields()[name].rpartition(".")[2]
    other = {
        "pod_mtu": "sandbox_mtu",
        "freeze_file": "freeze_path",
        "warm_target": "warm_target_auto",
        "conflist": "conflist_beside",
        "unmarked_pods": "refuses_unmarked",
        "pinned_list": "reads_network_file",
        "agent": "is_unfiltered",
        "provisioning_disabled": "provisioning_disabled",
        **dict.fromkeys(("ipv4", "ipv6"), "family"),
        **dict.fromkeys(("v4_egress", "v6_egress"), "extra_family"),
        "extra_source_cidrs": "extra_sources",
        **dict.fromkeys(("pod_eni", "pod_groups_mode"), "enforcing_mode"),
    }
    through = other.get(field_name, field_name)
    assert through in _attributes_read(in_config=False), f"{name}: nothing in ipamd reads .{through}"
    if through != field_name:
        assert field_name in _attributes_read(in_config=True), f"{name}: {through} does not read it"


def test_parsers_alone() -> None:
    """The parsers name what they refuse; nothing at all is no CIDR and no tag."""
    assert parse_cidrs("") == parse_cidrs(" , ") == ()
    assert parse_tags(" ") == ()
    assert parse_veth_prefix("p") == "p"
    assert integer(0, 99)("0x10") == 16
    with pytest.raises(ValueError, match="abcd"):
        parse_cidrs("10.0.0.0/32,abcd")
    with pytest.raises(ValueError, match=r"k8s\.amazonaws\.com/x"):
        parse_tags('{"k8s.amazonaws.com/x": "1"}')


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("AWS_VPC_K8S_CNI_VETHPREFIX", "éééé"),
        ("WARM_IP_TARGET", "1_000"),
        ("WARM_IP_TARGET", " 5"),
        ("WARM_IP_TARGET", "\u0665"),
        ("POD_MTU", "9002"),
    ],
)
def test_lookalikes_of_good_values_are_refused(env: str, text: str) -> None:
    """What Python would read generously is refused: a 19-byte veth name or a half-read number is found out at start."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({env: text})


@given(st.text(st.sampled_from("ab1-_.:[]%/ \u00e9v"), max_size=12))
def test_a_url_that_is_accepted_is_one_for_botocore(text: str) -> None:
    """Which refuses others at the first EC2 call, with an error that names no setting."""
    for url in (f"http://{text}", f"https://{text}:8443/x", f"http://[{text}]"):
        try:
            parse_url(url)
        except ValueError:
            continue
        assert is_valid_uri(url)


@pytest.mark.parametrize(
    ("one", "other"), [(":7000", "127.0.0.1:7000"), ("localhost:7000", "127.0.0.1:07000"), ("0.0.0.0:7000", ":7000")]
)
def test_two_listeners_do_not_share_a_port(one: str, other: str) -> None:
    """The second would end the start after the first requests were served."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"VPC_IPAMD_METRICS_ADDRESS": one, "VPC_IPAMD_HEALTH_ADDRESS": other})
    load({"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:7000", "VPC_IPAMD_HEALTH_ADDRESS": "[::1]:7000"})


@pytest.mark.parametrize(
    "environment",
    [
        {"VPC_IPAMD_CONFLIST_FILE": "/etc/cni/net.d/10-aws.conflist"},
        {"VPC_IPAMD_AWS_NODE_CONFLIST_FILE": "/etc/cni/../cni/net.d/10-vpc-ipamd.conflist"},
    ],
    ids=str,
)
def test_our_conflist_is_not_the_others(environment: dict[str, str]) -> None:
    """It would be renamed as the other's and written again, ten times a second."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load(environment)


@pytest.mark.parametrize(
    ("name", "setting"), [("portmap", "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN"), ("bandwidth", "ENABLE_BANDWIDTH_PLUGIN")]
)
def test_a_plugin_is_not_chained_by_two_settings(name: str, setting: str) -> None:
    """Each would set its rules or its limits for the same pod."""
    environment = {
        setting: "true",
        "VPC_IPAMD_CHAINED_PLUGINS": f'[{{"type":"tuning"}},{{"type":"{name}"}}]',
    }
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load(environment)
    assert load(environment | {setting: "false"}).daemon.chained_plugins


def test_sandboxes_must_not_have_a_larger_mtu_than_enis() -> None:
    """A packet that fits the sandbox's MTU must fit the ENI's."""
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"POD_MTU": "9001", "AWS_VPC_ENI_MTU": "1500"})


def test_a_password_in_a_refused_url_is_not_printed() -> None:
    """What is wrong with the settings goes to the log and to `kubectl describe`."""
    with pytest.raises(SettingsError) as refused:
        load({"AWS_EC2_ENDPOINT": "http://someone:hunter2@ec2"})
    assert "AWS_EC2_ENDPOINT" in str(refused.value)
    assert "hunter2" not in str(refused.value)
