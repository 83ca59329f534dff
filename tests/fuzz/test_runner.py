"""The runner finds every kind of defect, names the case, goes on behind it, and replays it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz import __main__ as command
from fuzz import corpus, runner, scale, targets
from fuzz.mutation import mutated
from fuzz.runner import Finding, Share
from fuzz.shrink import shrink
from fuzz.target import PIECE_BYTES, blob, pieces, random_of
from tests.fuzz import planted

EXPECTED = {
    "violation": ("planted", "a ! was given"),
    "exception": ("traceback", "KeyError"),
    "memory": ("memory", "grew by"),
    "slow": ("slow", "of CPU"),
    "log": ("traceback", "it failed"),
    "stderr": ("traceback", "standard error"),
    "thread": ("traceback", "thread"),
    "hang": ("hang", "did not end"),
    "crash": ("death", "SIGSEGV"),
    "leak": ("left", "something is left"),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run the planted target."""
    monkeypatch.setattr(runner, "WORKER", "tests.fuzz.worker_of_planted")


def run_files(tmp_path: Path, *kinds: str) -> list[Finding]:
    """Run one case of each of these kinds, in files, and some numbers behind them."""
    files = []
    for number, kind in enumerate(kinds):
        files.append(tmp_path / f"{number}.txt")
        corpus.write(files[-1], {"kind": kind, "data": b"abc!def"}, comment="planted\n")
    (outcome,) = runner.run([Share("planted", 0, 20, tuple(files))], seed=1, jobs=1, tell=lambda line: None)
    assert outcome.case_count == len(kinds) + 20
    return outcome.findings


def test_every_kind_is_known() -> None:
    """No planted defect goes untested."""
    assert {*EXPECTED, planted.FINE} == set(planted.KINDS)


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_defect_is_found(impatient: None, tmp_path: Path, kind: str) -> None:
    """Each kind of defect is one finding with what was seen; the good cases around it are none."""
    (found,) = run_files(tmp_path, "fine", kind, "fine")
    assert found.kind == EXPECTED[kind][0]
    assert EXPECTED[kind][1] in found.message
    if kind != "leak":  # that is seen by the check after the batch
        assert found.label == str(tmp_path / "1.txt")
        assert found.replay() == f"python -m fuzz --only planted --input {found.label}"


def test_a_death_does_not_hide_what_follows(impatient: None, tmp_path: Path) -> None:
    """Behind a crash the other cases run, and the same defect twice is one finding, seen twice."""
    findings = run_files(tmp_path, "crash", "violation", "violation", "fine")
    assert [(found.kind, found.times) for found in findings] == [("death", 1), ("planted", 2)]


def test_a_finding_is_made_small(impatient: None, tmp_path: Path) -> None:
    """What the violation does not need is left out."""
    (found,) = run_files(tmp_path, "violation")
    assert found.case == repr({"kind": "violation", "data": b"!"})


def test_nothing_found_is_nothing_told(impatient: None, tmp_path: Path) -> None:
    """Good cases give no finding."""
    assert run_files(tmp_path, "fine") == []


def test_a_worker_that_cannot_start_is_a_finding() -> None:
    """A target that cannot be made is told, not passed over."""
    (outcome,) = runner.run([Share("no_such_target", 0, 5)], seed=1, jobs=1, tell=lambda line: None)
    assert [found.kind for found in outcome.findings] == ["no start"]


@pytest.mark.parametrize("name", sorted(scale.CASES))
def test_cases_depend_on_seed_and_number_only(name: str) -> None:
    """The same seed and number make the same case, whatever ran before; another seed makes others; each can be written down."""
    module = targets.load(name)
    try:
        module.seeds = tuple(corpus.read(path) for path in corpus.paths(name))
        cases = [module.generate(random_of(1, name, number)) for number in range(12)]
        assert [module.generate(random_of(1, name, number)) for number in reversed(range(12))] == cases[::-1]
        assert [module.generate(random_of(2, name, number)) for number in range(12)] != cases
        assert corpus.parsed(repr(cases[0])) == cases[0]
    finally:
        module.close()


def test_shares_hold_every_case_once() -> None:
    """Numbers are split among the workers without gap or overlap; the corpus is run once."""
    shares = runner.shares({"json": 101}, jobs=3)
    numbers = [number for share in shares for number in range(share.first, share.last)]
    assert numbers == list(range(101))
    assert sum(len(share.files) for share in shares) == len(corpus.paths("json"))


def test_scales_keep_what_was_promised() -> None:
    """`usual` has 100,000 cases; `full` 1,000,000 plugin inputs in process, 20,000 processes and 100,000 requests."""
    assert sum(scale.counts("usual").values()) >= 100_000
    full = scale.counts("full")
    assert full["plugin_input"] >= 1_000_000
    assert full["plugin_process"] >= 20_000
    assert full["daemon_requests"] >= 100_000


def test_every_target_has_its_counts() -> None:
    """A module in `fuzz/targets/` is a target with counts, and the other way round."""
    modules = {path.stem for path in Path(targets.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == set(scale.CASES)
    assert {path.name for path in corpus.CORPUS.iterdir()} <= modules


def test_mutation_never_fails() -> None:
    """Any bytes can be damaged, the empty ones too."""
    random = random_of(1, "mutation", 0)
    for _ in range(2000):
        assert isinstance(mutated(random, random.randbytes(random.randrange(4)), others=(b"", b"ab")), bytes)


def test_shrinking_ends() -> None:
    """It stops at its limit, also where everything fails."""
    tries = []

    def fails(case: dict[str, object]) -> bool:
        tries.append(case)
        return True

    shrink({"a": b"x" * 10_000, "b": [(b"y", 1 << 20)]}, fails, tries=50)
    assert len(tries) < 50


def test_repeated_parts_are_written_out() -> None:
    """Bytes may be stated as parts and counts."""
    assert blob([(b"a", 3), (b"", 5), (b"b", 1)]) == b"aaab"
    assert blob(b"ab") == b"ab"


def test_a_flood_is_written_out_in_pieces() -> None:
    """Never as a whole: what reads it would seem to have grown by it."""
    flood = [(b"a" * 1000, 5000), (b"b" * (PIECE_BYTES + 1), 2)]
    found = list(pieces(flood))
    assert [len(one) <= PIECE_BYTES for one in found] == [True] * (len(found) - 2) + [False] * 2
    assert b"".join(found) == blob(flood) == b"a" * 5_000_000 + b"b" * 2 * (PIECE_BYTES + 1)


def test_the_command_reports(
    impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 with findings, 0 without; the report has targets, cases and findings; a replay is printed."""
    monkeypatch.chdir(tmp_path)
    bad, good = tmp_path / "bad.txt", tmp_path / "good.txt"
    corpus.write(bad, {"kind": "violation", "data": b"!"}, comment="planted")
    corpus.write(good, {"kind": "fine", "data": b"!"}, comment="planted")
    work = {"bad": [Share("json", 0, 2, (bad,))], "good": [Share("json", 0, 2, (good,))]}
    for name, status in (("good", 0), ("bad", 1)):
        monkeypatch.setattr(command, "work", lambda options, name=name: work[name])
        assert command.main(["--jobs", "1", "--output", str(tmp_path / name)]) == status
        report = json.loads((tmp_path / name).read_text())
        assert [(t["name"], t["cases"], t["findings"]) for t in report["targets"]] == [("json", 3, status)]
    assert "replay: python -m fuzz --only json --input" in capsys.readouterr().out
