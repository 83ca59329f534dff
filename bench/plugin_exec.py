"""Time `vpc-cni` from exec to exit, and in the same run its interpreter with an empty program (the *bare interpreter*).

The two alternate, because the speed of a shared machine changes from minute to minute by more than the difference between them.
Medians are used, because the slowest samples are due to the machine. The module imports nothing of the plugin, so that it can also
measure other CNI plugins and a one-file binary.

    python bench/plugin_exec.py --plugin build/vpc-cni --python /usr/bin/python3 [--responder raw|grpcio] [--rounds 400]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# The bytes that the responder `raw` sends on every connection as soon as a request arrives: SETTINGS, HEADERS (:status 200), DATA (an
# ExecReply with protocol 1 and no result), trailers (grpc-status 0). They are prepared, so that a server's time is not measured.
RAW_ANSWER = (
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88"
    b"\x00\x00\x07\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x02\x08\x01"
    b"\x00\x00\x0f\x01\x05\x00\x00\x00\x01\x00\x0bgrpc-status\x010"
)
CONFIG = b'{"cniVersion":"1.0.0","name":"vpc","type":"vpc-cni"}'

_RAW_SERVER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(64)
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    peer.recv(65536)
    peer.sendall(bytes.fromhex(sys.argv[2]))
    peer.recv(65536)
    peer.close()
"""
_GRPC_SERVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from ipamd.pb import cni_pb2, cni_pb2_grpc

class Servicer(cni_pb2_grpc.CniServicer):
    def Exec(self, request, context):
        return cni_pb2.ExecReply(protocol=1)

server = grpc.server(ThreadPoolExecutor(2))
cni_pb2_grpc.add_CniServicer_to_server(Servicer(), server)
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("ready", flush=True)
server.wait_for_termination()
"""


def medians_ms(
    commands: Mapping[str, Sequence[str]], *, environment: Mapping[str, str], rounds: int = 200, stdin: bytes = CONFIG
) -> dict[str, float]:
    """Run every command `rounds` times, one after the other in each round.

    Args:
        commands: name -> argv; each must exit with 0.
        stdin: the standard input of each.
    Returns: name -> median time from posix_spawn until the process is reaped, in ms.
    Raises: RuntimeError if a command fails.
    """
    samples: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.NamedTemporaryFile() as config:
        config.write(stdin)
        config.flush()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, config.name, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        for _ in range(rounds):
            for name, argv in commands.items():
                started = time.perf_counter()
                pid = os.posix_spawn(argv[0], list(argv), dict(environment), file_actions=actions)
                _, status = os.waitpid(pid, 0)
                samples[name].append((time.perf_counter() - started) * 1000)
                if status:
                    raise RuntimeError(f"{name}: wait status {status:#x}")
    return {name: statistics.median(times) for name, times in samples.items()}


def bare_interpreter(python: Path) -> list[str]:
    """Return the command of an interpreter that starts, does nothing and ends."""
    return [str(python), "-I", "-S", "-c", "pass"]


def measure_plugin(plugin: Path, *, python: Path, responder: str = "raw", rounds: int = 200) -> dict[str, float]:
    """Measure `plugin` and its bare interpreter, with a responder that answers at once.

    Args:
        responder: "raw" (a socket that sends RAW_ANSWER) or "grpcio" (a real server, which adds about 0.5 ms).
    Returns: {"bare": ms, "plugin": ms}, medians of the same run.
    """
    with tempfile.TemporaryDirectory(prefix="vpc-cni-bench-") as run_dir:
        path = f"{run_dir}/ipamd.sock"
        script = _RAW_SERVER if responder == "raw" else _GRPC_SERVER
        argv = [sys.executable, "-c", script, path, RAW_ANSWER.hex()]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as server:
            try:
                if server.stdout is None or server.stdout.readline() != b"ready\n":
                    raise RuntimeError("the responder did not start")
                environment = {
                    "VPC_IPAMD_RUN_DIR": run_dir,
                    "CNI_COMMAND": "ADD",
                    "CNI_CONTAINERID": "0123456789abcdef" * 4,
                    "CNI_IFNAME": "eth0",
                    "CNI_NETNS": "/var/run/netns/bench",
                }
                commands = {"bare": bare_interpreter(python), "plugin": [str(plugin)]}
                return medians_ms(commands, environment=environment, rounds=rounds)
            finally:
                server.kill()


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description="Time vpc-cni beside its bare interpreter.")
    parser.add_argument("--plugin", type=Path, default=Path("build/vpc-cni"))
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"))
    parser.add_argument("--responder", choices=("raw", "grpcio"), default="raw")
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    medians = measure_plugin(options.plugin.resolve(), python=options.python, responder=options.responder, rounds=options.rounds)
    ratio = medians["plugin"] / medians["bare"]
    print(f"{options.responder}: bare {medians['bare']:.2f} ms, plugin {medians['plugin']:.2f} ms, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
