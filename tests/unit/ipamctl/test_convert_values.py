"""`ipamctl convert-values`: the values of amazon-vpc-cni-k8s's chart become values of ours, and what has no counterpart is named."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from ipamd.ipamctl.chart_values import COPIED, HANDLERS, TOGETHER, WITHOUT_COUNTERPART
from ipamd.ipamctl.main import main
from ipamd.ipamctl.verb import EXIT_REFUSED, EXIT_USAGE
from ipamd.settings import load

DEFAULTS = Path(__file__).parent / "upstream_values.yaml"
"""Source: amazon-vpc-cni-k8s v1.23.1, charts/aws-vpc-cni/values.yaml."""

CHART = Path(__file__).parents[3] / "manifests" / "chart"

OURS = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the verb; its exit status and what it wrote."""
    status = main([*words[:-1], "convert-values", words[-1]] if words[:-1] else ["convert-values", words[-1]])
    out, err = capsys.readouterr()
    return status, out, err


def converted(capsys: pytest.CaptureFixture[str], tmp_path: Path, values: object) -> tuple[dict[str, Any], list[str]]:
    """Convert values; ours, which our chart's schema accepts, and the remarks."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    status, out, err = run(capsys, str(file))
    assert (status, err) == (0, "")
    ours = yaml.safe_load(out)
    assert list(OURS.iter_errors(_merged(ours))) == []
    return ours, [line.removeprefix("# ") for line in out.splitlines() if line.startswith("# ")][1:]


def _merged(ours: dict[str, Any]) -> dict[str, Any]:
    """Our defaults with values over them, as helm merges maps."""

    def merge(base: Any, over: Any) -> Any:
        if isinstance(base, dict) and isinstance(over, dict):
            return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}
        return over

    merged: dict[str, Any] = merge(yaml.safe_load((CHART / "values.yaml").read_text()), ours)
    return merged


def test_every_key_of_the_default_values_is_known() -> None:
    """Each key is copied, translated, or named with a reason; none by accident twice."""
    known = [*COPIED, *WITHOUT_COUNTERPART, *HANDLERS, *TOGETHER]
    assert len(known) == len(set(known))
    assert set(yaml.safe_load(DEFAULTS.read_text())) <= set(known)


def test_the_default_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They become values that our chart accepts and settings that start the daemon; what is left out is named once."""
    defaults = yaml.safe_load(DEFAULTS.read_text())
    ours, remarks = converted(capsys, tmp_path, defaults)
    settings = ours["settings"]
    assert load(settings).pool.warm_prefix_target == 1
    assert "networkPolicy" not in ours, "their agent enforces nothing by default"
    assert "affinity" not in ours
    keys = [remark.partition(":")[0].partition("=")[0] for remark in remarks]
    assert len(keys) == len(set(keys))
    left_out = {f"env.{name}" for name in defaults["env"] if name not in settings}
    asks_for_nothing = {"DISABLE_METRICS", "ENABLE_IMDS_ONLY_MODE", "ENABLE_POD_ENI"}
    asks_for_nothing |= {"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG"}
    assert left_out - set(keys) == {f"env.{name}" for name in asks_for_nothing}
    assert set(defaults) & set(WITHOUT_COUNTERPART) <= set(keys)


def test_what_is_copied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Placement, labels, the account, the roll, the PodMonitor."""
    theirs = {
        "imagePullSecrets": [{"name": "registry"}],
        "podLabels": {"team": "blue"},
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "serviceAccount": {"create": True, "name": None, "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
        "podMonitor": {"create": True, "interval": "15s", "relabelings": [{"x": "y"}]},
        "image": {"pullPolicy": "Always", "tag": "v1.23.1"},
        "init": {"resources": {"requests": {"cpu": "50m"}}},
    }
    ours, remarks = converted(capsys, tmp_path, theirs)
    assert ours == {
        "imagePullSecrets": [{"name": "registry"}],
        "podLabels": {"team": "blue"},
        "nodeSelector": {"pool": "a"},
        "tolerations": theirs["tolerations"],
        "serviceAccount": {"create": True, "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
        "updateStrategy": {"type": "RollingUpdate", "maxUnavailable": "20%"},
        "podMonitor": {"enabled": True, "interval": "15s"},
        "image": {"pullPolicy": "Always"},
        "initResources": {"requests": {"cpu": "50m"}},
    }
    assert {remark.partition(":")[0] for remark in remarks} == {"podMonitor.relabelings", "image"}


def test_variables_of_both_containers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Numbers and booleans are text; what is the SDK's, has its value elsewhere, or is ours by another key, moves there."""
    theirs = {
        "init": {"env": {"DISABLE_TCP_EARLY_DEMUX": True}},
        "env": {
            "WARM_IP_TARGET": 5,
            "MAX_ENI": -1,
            "CLUSTER_NAME": "blue",
            "AWS_REGION": "eu-west-1",
            "DISABLE_METRICS": True,
            "ENABLE_POD_ENI": "true",
            "POD_SECURITY_GROUP_ENFORCING_MODE": "standard",
            "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": "10.0.0.0/8,junk",
            "ANNOTATE_POD_IP": "true",
            "SOMETHING_ELSE": "x",
        },
        "extraEnv": [
            {"name": "MINIMUM_IP_TARGET", "value": "10"},
            {"name": "HTTPS_PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "https"}}},
        ],
    }
    ours, remarks = converted(capsys, tmp_path, theirs)
    assert ours["clusterName"] == "blue"
    assert ours["podSecurityGroups"] == {"mode": "standard"}
    assert ours["settings"] == {
        "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": "10.0.0.0/8,junk",
        "DISABLE_TCP_EARLY_DEMUX": "true",
        "MAX_ENI": "-1",
        "MINIMUM_IP_TARGET": "10",
        "VPC_IPAMD_METRICS_ADDRESS": "off",
        "WARM_IP_TARGET": "5",
    }
    assert ours["extraEnv"] == [
        {"name": "HTTPS_PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "https"}}},
        {"name": "AWS_REGION", "value": "eu-west-1"},
    ]
    keys = [remark.partition(":")[0].partition("=")[0] for remark in remarks]
    assert keys == ["env.ANNOTATE_POD_IP", "env.SOMETHING_ELSE", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"]


@pytest.mark.parametrize(
    ("enforces", "agent", "mode"), [("true", True, "strict"), (True, None, "strict"), ("false", True, ""), ("true", False, "")]
)
def test_the_policy_mode_counts_only_with_an_agent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, enforces: object, agent: bool | None, mode: str
) -> None:
    """Where their agent enforces nothing, ours is not asked for either (I21)."""
    theirs: dict[str, Any] = {"env": {"NETWORK_POLICY_ENFORCING_MODE": "strict"}, "enableNetworkPolicy": enforces}
    if agent is not None:
        theirs["nodeAgent"] = {"enabled": agent}
    ours, remarks = converted(capsys, tmp_path, theirs)
    assert (ours or {}).get("networkPolicy", "") == mode
    assert any(remark.startswith("env.NETWORK_POLICY_ENFORCING_MODE") for remark in remarks) == (not mode)


def test_custom_networking(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The ENIConfig objects that their chart would make become `network`; without them the way to them is named."""
    on = {"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true"}
    subnets = {"us-west-2a": {"id": "subnet-0a", "securityGroups": ["sg-0a"]}, "us-west-2b": {"id": "subnet-0b"}}
    ours, _ = converted(capsys, tmp_path, {"env": on, "eniConfig": {"create": True, "region": "us-west-2", "subnets": subnets}})
    assert ours["network"]["zones"] == {
        "us-west-2a": {"subnet": "subnet-0a", "securityGroups": ["sg-0a"]},
        "us-west-2b": {"subnet": "subnet-0b", "securityGroups": []},
    }
    _, remarks = converted(capsys, tmp_path, {"env": on, "eniConfig": {"create": False}})
    assert [remark.partition("=")[0] for remark in remarks] == ["env.AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG"]


NESTED = [*HANDLERS, "init", "env", "nodeAgent", "eniConfig", "extraEnv"]
"""Keys whose value has a form of its own in their chart."""


@pytest.mark.parametrize("key", [*COPIED, *WITHOUT_COUNTERPART, *NESTED, "enableNetworkPolicy"])
def test_null_is_helms_way_to_have_no_default(capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str) -> None:
    """It is converted like a missing key."""
    ours, _ = converted(capsys, tmp_path, {key: None, "clusterName": None})
    assert ours == {}


@pytest.mark.parametrize("value", ["x", 3, [], ["x"], True])
@pytest.mark.parametrize("key", NESTED)
def test_a_value_of_another_form_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str, value: object) -> None:
    """In one line that names the key. An empty list is nothing, as in their chart's templates."""
    if value == [] or (key == "extraEnv" and isinstance(value, list)):
        return
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({key: value}))
    status, out, err = run(capsys, str(file))
    assert (status, out, err.count("\n")) == (EXIT_USAGE, "", 1)
    assert key in err


def test_numbers_are_written_as_helm_writes_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """YAML has one kind of number there: 3.0 is quoted as 3."""
    ours, _ = converted(capsys, tmp_path, {"env": {"MINIMUM_IP_TARGET": 3.0, "WARM_IP_TARGET": 1}})
    assert ours["settings"] == {"MINIMUM_IP_TARGET": "3", "WARM_IP_TARGET": "1"}


def test_an_eni_config_that_is_no_zone_is_refused_with_a_step_that_exists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """This verb has no option for the zone of an ENIConfig."""
    theirs = {
        "env": {"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "true"},
        "eniConfig": {"create": True, "subnets": {"a": {"id": "subnet-0a"}}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(theirs))
    status, out, err = run(capsys, str(file))
    assert (status, out) == (EXIT_USAGE, "")
    assert "eniConfig.subnets.a" in err
    assert "--zone" not in err


@pytest.mark.parametrize("content", ["{}", "# nothing", ""])
def test_a_file_without_values_is_that_of_the_defaults(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str) -> None:
    """It needs nothing of ours."""
    file = tmp_path / "values.yaml"
    file.write_text(content)
    status, out, _ = run(capsys, str(file))
    assert (status, out.strip()) == (0, "{}")


@pytest.mark.parametrize(
    "text", ["[x]", "a: 1\n---\nb: 2\n", "{", "env: [x]", "env: {WARM_IP_TARGET: lots}", "a: &x 1\nb: *x\n", "x: !!python/none x"]
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """No map, settings that would keep the daemon from starting, and YAML that may describe large objects."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status, out, err = run(capsys, "-")
    assert (status, out) == (EXIT_USAGE, "")
    assert err


def test_a_missing_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The path is named."""
    status, _, err = run(capsys, str(tmp_path / "none.yaml"))
    assert status == EXIT_REFUSED
    assert "none.yaml" in err
