"""The plugin itself answers invalid input of the runtime: with the code of the specification and the name of the variable."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

REQUIRED = [
    (verb, name)
    for verb, names in {
        "ADD": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"),
        "CHECK": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"),
        "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    }.items()
    for name in names
]
INVALID = (
    [("CNI_CONTAINERID", value) for value in ("-a", ".a", "_a", "a/b", "a b", "a\n", "\u00e4", "a" * 161, b"\xff", b"a\xff")]
    + [
        ("CNI_IFNAME", value)
        for value in (".", "..", "a/b", "a:b", "a b", "a\tb", "a\n", "a" * 16, "\u00e4" * 8, b"\xff", b"e\xc2\xa0", "e%d", "%s")
    ]
    + [("CNI_NETNS", value) for value in ("relative", "./x", "/" + "a" * 4096, b"/\xff")]
    + [
        ("CNI_ARGS", b"\xff"),
        ("CNI_ARGS", b"\xed\xa0\x80"),  # a surrogate
        ("CNI_ARGS", b"\xc0\xaf"),  # '/', longer than needed
        ("CNI_ARGS", b"\xe0\x80\xaf"),
        ("CNI_ARGS", b"\xf4\x90\x80\x80"),  # beyond U+10FFFF
        ("CNI_ARGS", b"\xf8\x88\x80\x80\x80"),
        ("CNI_PATH", b"\xc3"),
        ("VPC_IPAMD_RUN_DIR", "relative"),
        ("VPC_IPAMD_RUN_DIR", "/" + "a" * 107),
        ("VPC_IPAMD_RUN_DIR", b"/\xff"),
    ]
)


@pytest.mark.parametrize(("verb", "name"), REQUIRED)
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_is_named(any_plugin, daemon, verb, name, value):
    """A variable that the verb needs and that is missing gives code 4 with its name, and nothing is sent (I14)."""
    assert name in any_plugin.run(verb, **{name: value}).error(4)["msg"]
    assert daemon.requests == []


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_an_invalid_variable_is_named(any_plugin, daemon, spooled, name, value):
    """Hostile or damaged values give code 4, are not sent, and never reach the spool."""
    for verb in ("ADD", "DEL"):
        assert name in any_plugin.run(verb, **{name: value}).error(4)["msg"]
    assert daemon.requests == []
    assert spooled() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CNI_CONTAINERID", "a"),
        ("CNI_CONTAINERID", "0_.-" + "Z" * 156),
        ("CNI_IFNAME", "e" * 15),
        ("CNI_IFNAME", "..."),
        ("CNI_IFNAME", "\u00e4"),
        ("CNI_NETNS", "/" + "a" * 4095),
        ("CNI_ARGS", ""),
        ("CNI_ARGS", "\ud7ff\ue000\uffff\U00010000\U0010ffff"),
        ("CNI_PATH", "p" * 100000),
    ],
)
def test_unusual_but_valid_values_pass(any_plugin, daemon, name, value):
    """What the specification and the kernel allow is not refused."""
    assert any_plugin.run("ADD", **{name: value}).status == 0
    field = {"CNI_CONTAINERID": "container_id"}.get(name, name[4:].lower())
    assert getattr(daemon.requests[0], field) == value


@pytest.mark.parametrize("verb", [None, "", "add", "ADD ", "UPDATE", b"\xff"])
def test_an_unknown_verb_is_refused(plugin, verb):
    """CNI_COMMAND other than the six verbs gives code 4, without waiting for standard input."""
    with subprocess.Popen(
        plugin.argv, env=plugin.environment("ADD", CNI_COMMAND=verb), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert b'"code":4' in process.stdout.read()  # standard input is still open here
        process.stdin.close()
        assert process.wait(10) == 1


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "GC"])
@pytest.mark.parametrize("config", [b"", b" \n\t"])
def test_an_empty_configuration_is_refused(any_plugin, daemon, verb, config):
    """ADD, CHECK and GC without a configuration give code 7; an empty GC must not read as "nothing is attached" (I2)."""
    any_plugin.run(verb, config).error(7)
    assert daemon.requests == []


@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS", "VERSION"])
def test_standard_input_is_capped(any_plugin, daemon, verb):
    """A configuration over 1.75 MiB gives code 7; one of exactly so much passes."""
    any_plugin.run(verb, b" " * (7 << 18) + b"{").error(7)
    assert daemon.requests == []
    assert any_plugin.run(verb, b"{" + b" " * ((7 << 18) - 2) + b"}").status == 0


def write_for_ever(descriptor):
    """Until the reader is gone."""
    while True:
        os.write(descriptor, b"x" * 65536)


def test_endless_standard_input_ends_at_the_cap(any_plugin):
    """A writer that never stops is answered as soon as the cap is passed."""
    reader, writer = os.pipe()
    process = subprocess.Popen(any_plugin.argv, env=any_plugin.environment("ADD"), stdin=reader, stdout=subprocess.PIPE)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_for_ever(writer)
    os.close(writer)
    stdout, _ = process.communicate(timeout=120)
    assert b'"code":7' in stdout


def test_closed_standard_input_is_an_io_error(plugin, daemon):
    """No standard input at all gives code 5."""
    script = 'exec "$0" "$@" <&-'
    finished = subprocess.run(
        ["/bin/sh", "-c", script, *plugin.argv], env=plugin.environment("ADD"), capture_output=True, timeout=120
    )
    assert finished.returncode == 1
    assert b'"code":5' in finished.stdout
    assert finished.stderr == b""


def test_a_directory_as_standard_input_is_an_io_error(static_plugin, tmp_path):
    """A directory gives code 5. Static file only: CPython itself refuses to start on one, before a line of ours runs."""
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        finished = subprocess.run(
            static_plugin.argv,
            env=static_plugin.environment("ADD"),
            stdin=directory,
            capture_output=True,
            check=False,
            timeout=120,
        )
    finally:
        os.close(directory)
    assert (finished.returncode, finished.stderr) == (1, b"")
    assert b'"code":5' in finished.stdout


def test_a_reader_that_left_ends_the_process(plugin, daemon):
    """A closed or broken standard output gives exit status 1 and nothing on standard error."""
    process = plugin.start("ADD")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(b"{}", timeout=120)
    assert (process.returncode, stderr) == (0, b"")  # nothing was to be printed
    process = plugin.start("VERSION")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(b"{}", timeout=120)
    assert (process.returncode, stderr) == (1, b"")
    script = 'exec "$0" "$@" >&-'
    finished = subprocess.run(
        ["/bin/sh", "-c", script, *plugin.argv],
        env=plugin.environment("VERSION"),
        input=b"{}",
        stderr=subprocess.PIPE,
        timeout=20,
    )
    assert (finished.returncode, finished.stderr) == (1, b"")


def test_non_blocking_descriptors_are_waited_for(any_plugin, daemon):
    """Standard input and output that another process made non-blocking work the same."""
    here, there = socket.socketpair()
    here.settimeout(20)
    there.setblocking(False)
    process = subprocess.Popen(any_plugin.argv, env=any_plugin.environment("VERSION"), stdin=there, stdout=there)
    there.close()
    here.sendall(b'{"cniVersion":"0.3.1"}')
    here.shutdown(socket.SHUT_WR)
    assert b'"cniVersion":"0.3.1"' in here.recv(4096)
    here.close()
    assert process.wait(20) == 0


def test_the_environment_cannot_inject_code(plugin, daemon, tmp_path):
    """PYTHON* variables and the working directory do not reach the interpreter: the runtime's user is root."""
    (tmp_path / "errors.py").write_text("raise SystemExit('injected')")
    for name in ("sitecustomize", "posix", "select", "marshal", "binascii", "_socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('injected')")
    environment = plugin.environment(
        "ADD", PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "errors.py"), PYTHONHOME=str(tmp_path)
    )
    finished = subprocess.run(plugin.argv, env=environment, input=b"{}", capture_output=True, cwd=tmp_path, timeout=120)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"", b"")


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1", "C.UTF-8"])
def test_the_locale_makes_no_difference(plugin, daemon, run_dir, locale):
    """UTF-8 in, UTF-8 out, whatever LANG says."""
    assert plugin.run("ADD", CNI_ARGS="p\u00f6d", LC_ALL=locale).status == 0
    assert daemon.requests[0].args == "p\u00f6d"


def test_the_tests_run_the_built_file(built):
    """The fixtures start what would be installed, not the sources."""
    assert all(os.access(path, os.X_OK) and path.name == "vpc-cni" for path in built.values())
    assert Path(sys.executable).is_absolute()
