"""`ipamctl convert-eniconfig`: ENIConfig objects become the file that the daemon reads, or an error that names everything wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ipamd.ipamctl.main import main
from ipamd.ipamctl.verb import EXIT_REFUSED, EXIT_USAGE
from tests.network_files import custom_of
from tests.zones import REAL_ZONE_NAMES, ZONE_NAMES

ONE = """
apiVersion: crd.k8s.amazonaws.com/v1alpha1
kind: ENIConfig
metadata:
  name: {name}
spec:
  subnet: {subnet}
  securityGroups:
    - sg-0a
    - sg-0b
"""
TWO = ONE.format(name="us-west-2a", subnet="subnet-0a") + "---\n" + ONE.format(name="us-west-2b", subnet="subnet-0b") + "---\n"


def converted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the verb; its exit status and what it wrote."""
    status = main(["convert-eniconfig", *words])
    out, err = capsys.readouterr()
    return status, out, err


def written(path: Path, text: str) -> str:
    """A file with this text."""
    path.write_text(text)
    return str(path)


def test_documents_of_several_files_become_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Zones by name, subnets and groups as they were; the daemon's own parser reads what is written."""
    files = [written(tmp_path / "a.yaml", TWO), written(tmp_path / "b.yaml", ONE.format(name="default", subnet="subnet-0c"))]
    status, out, err = converted(capsys, *files)
    assert (status, err) == (0, "")
    network = custom_of(out, source="stdout")
    assert {name: zone.subnet_id for name, zone in network.zones.items()} == {
        "us-west-2a": "subnet-0a",
        "us-west-2b": "subnet-0b",
        "default": "subnet-0c",
    }
    assert network.zones["us-west-2a"].security_group_ids == ("sg-0a", "sg-0b")
    assert not network.primary_carries_pods


@pytest.mark.parametrize("zone", REAL_ZONE_NAMES)
def test_an_eniconfig_named_after_its_zone_needs_no_option(capsys: pytest.CaptureFixture[str], tmp_path: Path, zone: str) -> None:
    """In each partition, and for local and Wavelength zones."""
    status, out, _ = converted(capsys, written(tmp_path / "x.yaml", ONE.format(name=zone, subnet="subnet-0a")))
    assert status == 0
    assert list(json.loads(out)["zones"]) == [zone]


@pytest.mark.parametrize("zone", ZONE_NAMES)
def test_every_form_of_a_zone_is_taken_by_the_option(capsys: pytest.CaptureFixture[str], tmp_path: Path, zone: str) -> None:
    """Who names a zone is believed, also one of a form that nobody has seen yet."""
    file = written(tmp_path / "x.yaml", ONE.format(name="group-1", subnet="subnet-0a"))
    status, out, _ = converted(capsys, file, "--zone", f"group-1={zone}")
    assert status == 0
    assert list(json.loads(out)["zones"]) == [zone]


def test_a_list_from_kubectl_on_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl get eniconfigs -o yaml | ipamctl convert-eniconfig -`, with what the API server adds."""
    item = {
        "apiVersion": "crd.k8s.amazonaws.com/v1alpha1",
        "kind": "ENIConfig",
        "metadata": {"name": "group-1", "uid": "x", "resourceVersion": "1"},
        "spec": {"subnet": "subnet-0a"},
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"apiVersion": "v1", "kind": "List", "items": [item]})))
    status, out, _ = converted(capsys, "-", "--zone", "group-1=us-west-2a", "--primary-carries-pods")
    assert status == 0
    assert json.loads(out) == {
        "zones": {"us-west-2a": {"subnet": "subnet-0a", "securityGroups": []}},
        "primaryEniCarriesPods": True,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no ENIConfig"),
        ("a: [", "is no YAML"),
        ("!!python/object/apply:os.system [ls]", "is no YAML"),
        ("just text", "is no object"),
        ("kind: Pod\napiVersion: v1", "is v1 Pod, not"),
        ("kind: List", "a list without items"),
        (ONE.format(name="blue", subnet="subnet-0a"), "--zone blue=ZONE"),
        (ONE.format(name="group-1", subnet="subnet-0a"), "--zone group-1=ZONE"),
        (ONE.format(name="us-west-2", subnet="subnet-0a"), "--zone us-west-2=ZONE"),
        (ONE.format(name="us-west-2a", subnet="here"), "is no subnet ID"),
        (ONE.format(name="us-west-2a", subnet="subnet-0a").replace("sg-0a", "12"), "is no security group ID"),
        (ONE.format(name="us-west-2a", subnet="subnet-0a") + "  subnets: x\n", "spec.subnets is not known"),
        (ONE.format(name="us-west-2a", subnet="subnet-0a").split("spec:")[0], "spec is missing"),
        (ONE.format(name="[]", subnet="subnet-0a"), "metadata.name is missing"),
        (TWO + TWO, "has an ENIConfig already"),
    ],
    ids=lambda value: value.strip()[:30],
)
def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str) -> None:
    """Nothing is written for input that is not understood whole."""
    status, out, err = converted(capsys, written(tmp_path / "x.yaml", text))
    assert (status, out) == (EXIT_USAGE, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("zone", ["us-west-2a", "=us-west-2a", "nobody=us-west-2a"])
def test_a_zone_that_is_for_nothing_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, zone: str) -> None:
    """A misspelt --zone is no silence (I15)."""
    status, out, _ = converted(capsys, written(tmp_path / "x.yaml", TWO), "--zone", zone)
    assert (status, out) == (EXIT_USAGE, "")


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With its path."""
    status, _, err = converted(capsys, str(tmp_path / "none.yaml"))
    assert status == EXIT_REFUSED
    assert "none.yaml cannot be read" in err


BOMBS = {
    "aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "a list of lists": "kind: List\nitems: &a [{kind: List, items: *a}]\n",
    "merge keys": "a: &a {x: 1}\nb: {<<: [*a, *a]}\n",
    "depth": "[" * 100_000,
    "size": ONE.format(name="us-west-2a", subnet="subnet-0a") + "#" * (1 << 20),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_file_that_would_grow_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, what: str) -> None:
    """Before anything is built of it."""
    status, out, err = converted(capsys, written(tmp_path / "bomb.yaml", BOMBS[what]))
    assert (status, out) == (EXIT_USAGE, "")
    assert "bomb.yaml is no YAML file that can be read: it has an alias" in err


def test_a_number_with_a_million_parts_is_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """YAML 1.1 has numbers to the base of sixty, whose reading takes the square of their length."""
    text = ONE.format(name="us-west-2a", subnet=":".join(["1"] * 400_000))
    status, _, err = converted(capsys, written(tmp_path / "number.yaml", text))
    assert status != 0
    assert "subnet" in err
