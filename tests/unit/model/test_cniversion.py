"""One list of CNI versions: every other place has it from there, or is compared with it here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cni_plugin import cnijson
from ipamd.model.cni_versions import CONFLIST_VERSION, SUPPORTED_VERSIONS, VERB_SINCE, is_before, require_supported, require_verb
from ipamd.model.cniresult import CANONICAL_VERSION, convert_result
from ipamd.model.errors import IncompatibleVersionError
from ipamd.model.failures import FailureCode
from tests.errors import failed

ROOT = Path(__file__).resolve().parents[3]


def test_the_list_is_in_order() -> None:
    """Oldest first, each once: comparing two versions is comparing their places."""
    numbers = [tuple(map(int, version.split("."))) for version in SUPPORTED_VERSIONS]
    assert numbers == sorted(set(numbers))


def test_the_plugin_answers_version_with_the_same_list() -> None:
    """The plugin imports nothing of the daemon and keeps a copy."""
    assert cnijson.SUPPORTED_VERSIONS == SUPPORTED_VERSIONS
    assert SUPPORTED_VERSIONS[-1] == cnijson.DEFAULT_VERSION


def test_the_manifest_shows_the_same_list() -> None:
    """manifests/conflist.json is what an operator reads."""
    shown = json.loads((ROOT / "manifests/conflist.json").read_text())
    assert (shown["cniVersion"], shown["cniVersions"]) == (CONFLIST_VERSION, list(SUPPORTED_VERSIONS))


def test_what_we_choose_is_in_the_list() -> None:
    """The conflist's version, that of stored results, and those that verbs came with are versions that we speak."""
    assert {CONFLIST_VERSION, CANONICAL_VERSION, *VERB_SINCE.values()} <= set(SUPPORTED_VERSIONS)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_pages_name_both_ends(page: Path) -> None:
    """Where a page says "CNI versions A to B" these are the oldest and the newest."""
    for ends in re.findall(r"CNI\s+versions\s+(\d+\.\d+\.\d+)\s+to\s+(\d+\.\d+\.\d+)", page.read_text()):
        assert ends == (SUPPORTED_VERSIONS[0], SUPPORTED_VERSIONS[-1])


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_a_result_is_said_in_every_version(version: str) -> None:
    """Fields that came later are left out, the IP version of an address is told until 1.0.0 (specification, Result Types)."""
    stored = json.dumps(
        {"cniVersion": CANONICAL_VERSION, "interfaces": [{"name": "eth0", "mtu": 1500}], "ips": [{"address": "10.0.0.5/32"}]}
    )
    said = json.loads(convert_result(stored.encode(), version=version))
    assert said["cniVersion"] == version
    assert ("mtu" in said["interfaces"][0]) == (version not in ("0.3.1", "0.4.0", "1.0.0"))
    assert ("version" in said["ips"][0]) == (version in ("0.3.1", "0.4.0"))


@pytest.mark.parametrize(("verb", "since"), VERB_SINCE.items())
def test_a_verb_is_refused_before_it_came(verb: str, since: str) -> None:
    """Older requests get an error that names the version; ADD and DEL are in all of them."""
    for version in SUPPORTED_VERSIONS:
        require_verb("ADD", version)
        if is_before(version, since):
            with pytest.raises(IncompatibleVersionError, check=failed(FailureCode.VERB_TOO_NEW, verb=verb, since=since)):
                require_verb(verb, version)
        else:
            require_verb(verb, version)


@pytest.mark.parametrize("version", ["", "0.2.0", "2.0.0", "1.1"])
def test_others_are_refused(version: str) -> None:
    """The error lists those that we speak."""
    with pytest.raises(IncompatibleVersionError) as refusal:
        require_supported(version)
    assert ", ".join(SUPPORTED_VERSIONS) in refusal.value.details
