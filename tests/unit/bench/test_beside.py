"""The comparison with amazon-vpc-cni-k8s and ptp: its arithmetic, its table, its stand-in API server and its command line."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.beside import theirs
from bench.beside.__main__ import Comparison, Scale, main
from bench.beside.api_server import ApiServer, node_object
from bench.beside.rows import Row, interval, median_of, ratio, table
from bench.stage import BenchError


class FakeSide:
    """What `Comparison` looks at; it has room for `room` pods."""

    def __init__(self, name: str, room: int = 0) -> None:
        self.name = name
        self._room = room

    def job(self, name: str, **arguments: Any) -> Any:
        """Attach, or time calls."""
        if name == "chain_cycles":
            return {row: [1.0] for row in ("ADD", "DEL", "ADD first", "DEL first")}
        if arguments["count"] > self._room:
            raise BenchError("no address")
        self._room -= arguments["count"]
        return ["pod"] * arguments["count"]


def test_a_ratio_is_that_of_the_medians() -> None:
    """One disturbed block does not move it."""
    left, right = [[2.0, 2.0]] * 9 + [[90.0, 90.0]], [[4.0, 4.0]] * 10
    value, low, high = ratio(left, right)
    assert value == pytest.approx(0.5)
    assert low <= value <= high


def test_the_interval_is_wider_where_blocks_differ() -> None:
    """Calls of one block share a disturbance."""
    assert interval([[2.0, 2.0]] * 8) == (2.0, 2.0)
    low, high = interval([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    assert low < median_of([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]) < high


def test_an_empty_block_is_refused() -> None:
    """Instead of a median of nothing later."""
    with pytest.raises(ValueError, match="without samples"):
        Row("ADD", "ms").add("a", [])


def test_a_side_without_a_figure_has_none_in_the_table_but_its_reason() -> None:
    """Nothing is invented."""
    row = Row("RSS", "MiB", missing={"b": "it has no daemon"})
    row.add("a", [70.0])
    header, _, line, _, reason = table([row], ["a", "b"]).splitlines()
    assert header == "|  | a | b | a / b |"
    assert line == "| RSS, MiB | 70.00 [70.00, 70.00] | - | - |"
    assert reason == "not measured, or not to the end: RSS, b: it has no daemon"


def test_a_count_of_nothing_has_no_ratio() -> None:
    """Nor does it end the table."""
    row = Row("ADDs refused", "count")
    for samples in ([0.0], [3.0]):
        row.add("a", samples)
        row.add("b", [0.0])
    assert table([row], ["a", "b"]).splitlines()[2] == "| ADDs refused, count | 1.50 [0.00, 3.00] | 0.00 [0.00, 0.00] | - |"


def test_sides_take_turns_and_a_failed_one_is_not_asked_again() -> None:
    """Who begins changes from block to block; the others go on."""
    comparison = Comparison(Scale(), None)
    asked: list[str] = []

    def samples(side: FakeSide) -> list[list[float]]:
        asked.append(side.name)
        if side.name == "b":
            raise BenchError("gone\nwith a log")
        return [[1.0]]

    sides: list[Any] = [FakeSide(name) for name in "abc"]
    for number in range(3):
        comparison.measure(sides, {"ADD": "ms"}, number, samples)  # type: ignore[arg-type]
    assert asked == ["a", "b", "c", "c", "a", "c", "a"]
    assert comparison.rows["ADD"].missing == {"b": "gone"}
    assert comparison.rows["ADD"].blocks == {"a": [[1.0]] * 3, "c": [[1.0]] * 3}


def test_a_side_without_room_has_no_figure_at_that_size() -> None:
    """A figure at fewer pods than its name says would be an invented one."""
    comparison = Comparison(Scale(blocks=1), None)
    large, small = FakeSide("large", room=200), FakeSide("small", room=50)
    pods: dict[str, list[str]] = {"large": [], "small": []}
    for size in (10, 110):
        comparison._calls([large, small], pods, size)  # type: ignore[list-item]
    assert {name: len(ids) for name, ids in pods.items()} == {"large": 110, "small": 10}
    assert set(comparison.rows["ADD, 10 pods"].blocks) == {"large", "small"}
    assert set(comparison.rows["ADD, 110 pods"].blocks) == {"large"}
    assert comparison.rows["ADD, 110 pods"].missing == {"small": "no address"}


@pytest.fixture
def api() -> Iterator[tuple[str, int]]:
    """The stand-in API server on a free port of loopback."""
    server = ApiServer(("127.0.0.1", 0), node_object("node-a", 737))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[0], server.server_address[1]  # type: ignore[misc]
    server.shutdown()
    server.server_close()
    thread.join()


def _get(api: tuple[str, int], path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(*api, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_the_api_server_knows_its_node_and_no_pod(api: tuple[str, int]) -> None:
    """And answers 404 for every other kind."""
    status, node = _get(api, "/api/v1/nodes/node-a")
    assert (status, node["status"]) == (200, node_object("node-a", 737)["status"])
    assert len(_get(api, "/api/v1/nodes")[1]["items"]) == 1  # type: ignore[arg-type]
    assert _get(api, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")[1]["items"] == []
    assert _get(api, "/api/v1/nodes/node-b")[0] == 404
    assert _get(api, "/apis/crd.k8s.amazonaws.com/v1alpha1/eniconfigs")[0] == 404
    assert _get(api, "/version")[0] == 200


def test_a_watch_begins_with_what_is_there(api: tuple[str, int]) -> None:
    """And with the bookmark that says so, for a client that asks for it."""
    connection = http.client.HTTPConnection(*api, timeout=10)
    connection.request("GET", "/api/v1/nodes?watch=true&sendInitialEvents=true&timeoutSeconds=0")
    events = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[0]["object"]["metadata"]["name"] == "node-a"


def test_a_folder_without_the_programs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any node is started."""
    (tmp_path / theirs.PLUGIN).touch()
    with pytest.raises(SystemExit) as ended:
        main(["--theirs", str(tmp_path)])
    assert ended.value.code == 2
    assert theirs.AGENT in capsys.readouterr().err
