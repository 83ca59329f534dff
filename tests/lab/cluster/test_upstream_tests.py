"""The parts of `make incumbent-tests` that need neither a cluster nor the tests: names, images, and what is read from a report."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.config import Config
from botocore.exceptions import ClientError

from ipamd.settings import load
from lab.cluster.upstream_tests import bed, crds, eks, images, results
from lab.cluster.upstream_tests.__main__ import EXIT_NO_CLUSTER, PAGE, main
from lab.cluster.upstream_tests.daemonset import SOONER, as_aws_node
from lab.cluster.upstream_tests.results import CaseResult, State
from lab.cluster.upstream_tests.suites import SUITES, Exclusion, Suite, suite
from lab.node.node import REPOSITORY
from lab.vpc.family import IPV6
from lab.vpc.state import Vpc

API_SERVER = "https://10.0.0.4:6443"
SUITE = Suite(
    "example",
    exclusions=(Exclusion("by design", "ours does it otherwise"),),
    deviations=(Exclusion("on purpose", "ours keeps what it has"),),
)


def _spec(leaf: str, state: str, *, message: str = "", kind: str = "It", where: str = "Pods") -> dict[str, Any]:
    failure = {"Failure": {"Message": message}} if message else {}
    hierarchy = [where] if kind == "It" else None
    return {
        "LeafNodeType": kind,
        "LeafNodeText": leaf,
        "ContainerHierarchyTexts": hierarchy,
        "State": state,
        "RunTime": 2_500_000_000,
        **failure,
    }


def _read(*specs: dict[str, Any]) -> list[CaseResult]:
    document = [{"SpecReports": [*specs]}]
    return results.read_report(SUITE, document, names=results.case_names(document))


def test_states_of_a_report() -> None:
    """What Ginkgo calls panicked or timed out failed; each case but one that passed has a reason."""
    cases = _read(
        _spec("run", "passed"),
        _spec("break", "failed", message="expected\n  1 at 0xc00012"),
        _spec("end", "panicked", message="nil"),
        _spec("last", "timedout"),
        _spec("skip themselves", "skipped", message="no such node"),
        _spec("differ by design", "skipped"),
        _spec("differ on purpose", "failed", message="1 is not 2"),
        _spec("agree on purpose", "passed"),
    )
    assert [(case.state, case.reason) for case in cases] == [
        (State.PASSED, ""),
        (State.FAILED, "expected 1 at 0x..."),
        (State.FAILED, "nil"),
        (State.FAILED, "Ginkgo reports timedout"),
        (State.SKIPPED, "no such node"),
        (State.SKIPPED, "ours does it otherwise"),
        (State.FAILED, "ours keeps what it has"),
        (State.PASSED, ""),
    ]
    assert [case.seconds for case in cases] == [2.5] * 8


def test_cases_of_the_same_words_are_numbered() -> None:
    """Their soak test has one case twelve times."""
    names = [case.name for case in _read(_spec("go on", "passed"), _spec("go on", "passed"), _spec("stop", "passed"))]
    assert names == ["Pods go on", "Pods go on #2", "Pods stop"]


def test_a_suite_that_cannot_begin_fails_its_cases() -> None:
    """The report has none of them then; a case that is left out anyway keeps its own reason."""
    document = [{"SpecReports": [_spec("", "failed", message="no cluster", kind="BeforeSuite")]}]
    cases = results.read_report(SUITE, document, names=["Pods run", "Pods by design"])
    assert [(case.state, case.reason) for case in cases] == [
        (State.FAILED, "no cluster"),
        (State.SKIPPED, "ours does it otherwise"),
    ]


def test_a_run_that_is_ended_fails_no_case() -> None:
    """Who ends a run fails no case by it, neither the one that ran nor those after it, and not by the suite's own cleaning up."""
    cases = _read(
        _spec("halfway", "interrupted", message="Interrupted by User"),
        _spec("later", "skipped"),
        _spec("", "failed", message="a grace period timeout", kind="AfterSuite"),
    )
    assert [case.state for case in cases] == [State.SKIPPED, State.SKIPPED]
    assert all(case.reason for case in cases)


def test_a_suite_that_is_not_run_has_one_reason() -> None:
    """Cases of a dry run "passed" without having run, so their states are not read."""
    document = [{"SpecReports": [_spec("run", "passed")]}]
    cases = results.left_out(SUITE, results.case_names(document), "no ground")
    assert cases == [CaseResult("example", "Pods run", State.SKIPPED, "no ground")]


def test_results_are_kept_by_case(tmp_path: Path) -> None:
    """A second run of some cases replaces these alone."""
    path = tmp_path / "results.json"
    first = CaseResult("b", "one", State.FAILED, "late", 1.0)
    other = CaseResult("a", "two", State.PASSED)
    results.write(path, [first, other])
    results.write(path, [CaseResult("b", "one", State.PASSED)])
    assert results.read(path) == [other, CaseResult("b", "one", State.PASSED)]


def test_the_table_counts_and_escapes() -> None:
    """A vertical bar would open a column."""
    text = results.table([CaseResult("a", "x|y", State.PASSED, commit="12ab"), CaseResult("a", "z", State.SKIPPED, "why")])
    lines = text.splitlines()
    assert lines[0] == "2 rows: 1 passed, 1 skipped, 0 failed."
    assert lines[-2:] == ["| a | x\\|y | passed | 12ab |  |", "| a | z | skipped |  | why |"]


def test_a_case_that_runs_twice_is_counted_once() -> None:
    """It passed if both runs did; Calico's own cases are not counted."""
    rows = [("a", "x", State.PASSED), ("a", "x #2", State.FAILED), ("a", "y", State.PASSED), ("calico", "z", State.SKIPPED)]
    cases = [CaseResult(suite_name, name, state) for suite_name, name, state in rows]
    assert results.distinct(cases) == {("a", "x"): State.FAILED, ("a", "y"): State.PASSED}


def test_a_page_keeps_what_is_before_its_marker(tmp_path: Path) -> None:
    """A second record replaces the first."""
    page = tmp_path / "page.md"
    page.write_text(f"words\n\n{results.MARKER}\n", encoding="utf-8")
    for state in (State.FAILED, State.PASSED):
        results.record(page, [CaseResult("a", "x", state)])
    assert (
        page.read_text(encoding="utf-8") == f"words\n\n{results.MARKER}\n\n{results.table([CaseResult('a', 'x', State.PASSED)])}"
    )


def test_the_recorded_table_is_whole() -> None:
    """Its counts are those of its rows, each suite has one, and who did not pass has a reason."""
    _, _, recorded = PAGE.read_text(encoding="utf-8").partition(results.MARKER)
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in recorded.splitlines() if line.startswith("| ")
    ]
    suites, names, states, _, reasons = zip(*rows[1:], strict=True)
    recorded_cases = [CaseResult(*row) for row in zip(suites, names, map(State, states), strict=True)]
    assert recorded.split("\n")[2:5] == results.table(recorded_cases).split("\n")[:3]
    assert {*suites} == {known.name for known in SUITES}
    assert all(reason for state, reason in zip(states, reasons, strict=True) if state != State.PASSED)


def test_suites_and_their_exclusions() -> None:
    """Each pattern compiles for both engines' common part, and each exclusion and each suite that is not run has a reason."""
    for known in SUITES:
        assert suite(known.name) is known
        for exclusion in known.exclusions:
            assert re.compile(exclusion.pattern)
            assert exclusion.reason
    assert {known.name for known in SUITES if not known.reason} >= {"cni", "ipamd"}


def test_the_daemonset_has_the_names_of_theirs() -> None:
    """Names, label and init container are theirs; image, settings and everything else are of manifests/base."""
    documents = yaml.safe_load_all(bed.MANIFEST.read_text(encoding="utf-8"))
    (manifest,) = (document for document in documents if document["kind"] == "DaemonSet")
    before = json.dumps(manifest)
    made = as_aws_node(manifest, image="x:y", environment={"AWS_REGION": "us-west-2"})
    assert json.dumps(manifest) == before
    template = made["spec"]["template"]
    assert made["metadata"]["name"] == "aws-node"
    assert template["metadata"]["labels"] == made["spec"]["selector"]["matchLabels"] == {"k8s-app": "aws-node"}
    (init,), (daemon,) = template["spec"]["initContainers"], template["spec"]["containers"]
    assert (init["name"], daemon["name"], init["image"], daemon["image"]) == ("aws-vpc-cni-init", "aws-node", "x:y", "x:y")
    values = {variable["name"]: variable["value"] for variable in daemon["env"]}
    assert values["AWS_REGION"] == "us-west-2"
    assert values["VPC_IPAMD_RUN_DIR"] == "/run/vpc-ipamd"
    ours = manifest["spec"]["template"]["spec"]["containers"][0]
    assert {key: daemon[key] for key in ("securityContext", "volumeMounts", "readinessProbe")} == {
        key: ours[key] for key in ("securityContext", "volumeMounts", "readinessProbe")
    }


def test_both_containers_are_told_the_family() -> None:
    """The init container switches forwarding of IPv6 on, and without it no pod reaches anything off its node."""
    container: dict[str, Any] = {"env": [{"name": "ENABLE_IPv6", "value": "false"}]}
    pod = {"serviceAccountName": "x", "initContainers": [{**container}], "containers": [{**container}]}
    manifest = {"metadata": {}, "spec": {"template": {"metadata": {}, "spec": pod}}}
    made = as_aws_node(manifest, image="x:y", environment={}, family=IPV6)["spec"]["template"]["spec"]
    for one in (*made["initContainers"], *made["containers"]):
        values = {variable["name"]: variable["value"] for variable in one["env"]}
        assert (values["ENABLE_IPv6"], values["ENABLE_IPv4"], values["ENABLE_PREFIX_DELEGATION"]) == ("true", "false", "true")


def test_most_pods_of_a_node() -> None:
    """The slots of its ENIs, and one pod of the host's network."""
    with Vpc() as vpc:
        assert bed.most_pods(vpc.limits["t3.medium"]) == 3 * 5 + 1
        assert bed.most_pods(vpc.limits[bed.INSTANCE_TYPE]) == bed.MAX_PODS


def test_the_daemon_accepts_the_settings_of_each_suite() -> None:
    """An unknown setting ends the daemon at its start too."""
    for known in SUITES:
        load(SOONER | dict(known.settings))


def test_the_daemon_accepts_the_settings() -> None:
    """A value out of its bounds ends the daemon at its start, and with it the whole run."""
    settings = load(SOONER)
    assert (settings.pool.release_hold_s, settings.pool.spare_eni_delay_s, settings.takeover.daemon_socket) == (1, 0, "off")


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("eniconfigs.crd.k8s.amazonaws.com", "Cluster"),
        ("cninodes.vpcresources.k8s.aws", "Cluster"),
        ("securitygrouppolicies.vpcresources.k8s.aws", "Namespaced"),
    ],
)
def test_custom_resources_have_their_plurals(name: str, scope: str) -> None:
    """A wrong plural leaves their client waiting for a list for ever."""
    found = {definition["metadata"]["name"]: definition["spec"] for definition in crds.definitions()}
    assert found[name]["scope"] == scope
    assert name.startswith(f"{found[name]['names']['plural']}.")


def test_stand_ins_carry_their_names_and_the_helper_its_programs(tmp_path: Path) -> None:
    """The helper's image has a second layer: their programs, executable, at the root. Only it has an environment, PATH included."""
    rootfs, helpers = tmp_path / "rootfs.tar", tmp_path / "agent"
    helpers.mkdir()
    (helpers / "networking").write_bytes(b"#!")
    with tarfile.open(rootfs, "w"):
        pass
    named, environments = {}, {}
    for archive in images.archives(rootfs, helpers):
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            index = json.load(opened.extractfile("index.json"))  # type: ignore[arg-type]
            (entry,) = index["manifests"]
            manifest = _blob(opened, entry["digest"])
            name = entry["annotations"]["io.containerd.image.name"]
            named[name] = [_layer(opened, layer["digest"]) for layer in json.loads(manifest)["layers"]]
            config = json.loads(_blob(opened, json.loads(manifest)["config"]["digest"]))["config"]
            environments[name] = {variable.partition("=")[0] for variable in config.get("Env", ())}
    helper_name = "stand-in.local/networking-e2e-test-images/aws-vpc-cni-test-helper:20231212"
    helper = named.pop(helper_name)
    assert {name: names for name, names in environments.items() if names} == {helper_name: {"PATH", "GODEBUG"}}
    assert helper == [[], [("networking", 0o755), ("etc/ssl/certs/ca-certificates.crt", 0o644)]]
    assert len(named) == 4
    assert all(layers == [[]] for layers in named.values())


def test_an_address_in_brackets_is_asked_by_http() -> None:
    """The stand-in's wget takes it for FTP without a scheme; what has one, and every option, is handed on as it is."""
    script = (REPOSITORY / "tools" / "stand_in_wget.sh").read_text(encoding="utf-8")
    assert "exec /usr/bin/wget" in script
    shown = script.replace("exec /usr/bin/wget", "printf '%s\\n'")
    words = ["--spider", "-T", "5", "[fd30::1]:80", "http://[fd30::1]:80", "10.0.0.1:80", "a b"]
    said = subprocess.run(["/bin/sh", "-c", shown, "wget", *words], capture_output=True, text=True, check=True, timeout=10)
    assert said.stdout.splitlines() == ["--spider", "-T", "5", "http://[fd30::1]:80", *words[4:]]


@pytest.fixture
def two_zones() -> Iterator[Vpc]:
    """A VPC with an instance in each of two subnets, a third that has ended, and a subnet without any."""
    with Vpc() as vpc:
        subnets = [vpc.add_subnet(f"10.0.{number}.0/24", az=f"us-west-2{zone}") for number, zone in enumerate("aabb")]
        for number in (0, 2, 3):
            vpc.add_instance(name=f"node-{number}", subnet_id=subnets[number].subnet_id)
        vpc.terminate_instance(vpc.instance("node-3").instance_id)
        yield vpc


def test_eks_describes_the_cluster(two_zones: Vpc) -> None:
    """A real client reads it: the API server, who signed its certificate, and the subnets in which instances run."""
    described = eks.describe(two_zones, name="lab", endpoint=API_SERVER, authority="PEM", services=IPv4Network("10.100.0.0/16"))
    with eks.EksServer(described) as server:
        cluster = _eks_client(server.url).describe_cluster(name="lab")["cluster"]
    assert (cluster["name"], cluster["status"], cluster["endpoint"]) == ("lab", "ACTIVE", API_SERVER)
    assert cluster["certificateAuthority"]["data"] == "UEVN"
    network = cluster["kubernetesNetworkConfig"]
    assert (network["ipFamily"], network["serviceIpv4Cidr"]) == ("ipv4", "10.100.0.0/16")
    network = cluster["resourcesVpcConfig"]
    assert network["vpcId"] == two_zones.vpc_id
    running = {two_zones.instance(name).subnet_id for name in ("node-0", "node-2")}
    assert set(network["subnetIds"]) == running
    assert network["clusterSecurityGroupId"] == two_zones.default_group_id


def test_eks_tells_the_family_of_the_cluster(two_zones: Vpc) -> None:
    """It is that of its services."""
    described = eks.describe(two_zones, name="lab", endpoint="", authority="", services=IPv6Network("fd30::/108"))
    assert described["kubernetesNetworkConfig"] == {"ipFamily": "ipv6", "serviceIpv6Cidr": "fd30::/108"}


def test_eks_knows_no_other_cluster_and_no_other_call(two_zones: Vpc) -> None:
    """What is not described is not found, as at EKS."""
    described = eks.describe(two_zones, name="lab", endpoint=API_SERVER, authority="", services=IPv4Network("10.100.0.0/16"))
    with eks.EksServer(described) as server:
        client = _eks_client(server.url)
        with pytest.raises(ClientError) as caught:
            client.describe_cluster(name="other")
        assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"
        with pytest.raises(ClientError):
            client.delete_cluster(name="lab")


def test_eks_names_the_release_that_is_built() -> None:
    """The pin may be renewed, and what a test is told of the cluster must follow."""
    pins = (REPOSITORY / "tools" / "cluster" / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    assert f"k8s.io/kubernetes v{eks.VERSION}." in pins


def _eks_client(url: str) -> Any:
    credentials = {"aws_access_key_id": "lab", "aws_secret_access_key": "lab"}
    once = Config(retries={"total_max_attempts": 1})
    return boto3.client("eks", endpoint_url=url, region_name="us-west-2", config=once, **credentials)


def test_without_the_tests_nothing_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without the programs is refused at once, by name."""
    assert main([str(tmp_path), "--suites", "cni", "--output", str(tmp_path / "out")]) == EXIT_NO_CLUSTER
    assert "cni" in capsys.readouterr().err


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    member = archive.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
    assert member is not None
    return member.read()


def _layer(archive: tarfile.TarFile, digest: str) -> list[tuple[str, int]]:
    with tarfile.open(fileobj=io.BytesIO(_blob(archive, digest))) as layer:
        return [(member.name, member.mode) for member in layer.getmembers()]
