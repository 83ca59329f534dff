"""A chain of plugins is run as libcni runs it: results are handed on, DEL goes backwards, a refusal ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import chain
from bench.chain import Chain
from bench.direct_call import PluginFailed

ID = "pod-1-".ljust(64, "0")
PLUGIN = """#!/bin/sh
read -r config
echo "$CNI_COMMAND {name} $config" >>{log}
echo "$CNI_ARGS" >{log}.args
[ -e {log}.refuses ] && exit 1
echo '{{"cniVersion": "1.0.0", "by": "{name}"}}'
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """Two plugins that write down what they are given."""
    monkeypatch.setattr(chain, "FOLDER", tmp_path)
    plugins = []
    for name in ("first", "second"):
        path = tmp_path / name
        path.write_text(PLUGIN.format(name=name, log=tmp_path / "log"))
        path.chmod(0o755)
        plugins.append({"path": str(path), "config": {"type": name}})
    return {"cniVersion": "1.0.0", "name": "net", "plugins": plugins}


def _seen(folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    lines = (folder / "log").read_text().splitlines()
    return [(verb, name, json.loads(config)) for verb, name, config in (line.split(" ", 2) for line in lines)]


def test_results_are_handed_on_and_del_goes_backwards(two: Chain, tmp_path: Path) -> None:
    """DEL gets the result of the last ADD, which is forgotten then."""
    added, deleted = chain.add(two, ID), chain.delete(two, ID)
    assert [(verb, name) for verb, name, _ in _seen(tmp_path)] == [
        ("ADD", "first"), ("ADD", "second"), ("DEL", "second"), ("DEL", "first"),
    ]  # fmt: skip
    results = [config.get("prevResult", {}).get("by") for _, _, config in _seen(tmp_path)]
    assert results == [None, "first", "second", "second"]
    assert {config["name"] for _, _, config in _seen(tmp_path)} == {"net"}
    assert added["whole"] > added["first"] > 0
    assert deleted["whole"] > deleted["first"] > 0
    assert not list(tmp_path.glob("*.result"))
    assert "K8S_POD_NAME=pod-1;" in (tmp_path / "log.args").read_text()


def test_a_refusal_ends_the_chain(two: Chain, tmp_path: Path) -> None:
    """With the plugin's name; nothing is kept for a DEL."""
    (tmp_path / "log.refuses").touch()
    with pytest.raises(PluginFailed, match=r"ADD .*/first"):
        chain.add(two, ID)
    assert [name for _, name, _ in _seen(tmp_path)] == ["first"]
    assert not list(tmp_path.glob("*.result"))


def test_a_burst_tries_again_what_is_refused(two: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a DEL in between, as a runtime does it; refusals are counted."""
    monkeypatch.setattr(chain, "make_all", lambda _: None)
    monkeypatch.setattr(chain, "remove_all", lambda _: None)
    calls: list[str] = []
    asked = chain._call

    def call(verb: str, *rest: Any) -> str:
        calls.append(verb)
        if len(calls) == 1:
            raise PluginFailed("not yet")
        return asked(verb, *rest)

    monkeypatch.setattr(chain, "_call", call)
    found = chain.chain_burst(chain=two, count=1, tag="burst", deadline_s=10.0)
    assert found["refused"] == 1
    assert calls == ["ADD", "DEL", "DEL", "ADD", "ADD", "DEL", "DEL"]
    calls.clear()
    with pytest.raises(PluginFailed):
        chain.chain_burst(chain=two, count=1, tag="late", deadline_s=-1.0)
