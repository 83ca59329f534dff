"""The pages of an operator's tasks, the commands on them, and which test runs each (tests/unit/docs/test_task_pages.py holds it).

A command is a line of an indented block that begins with `$ `; lines below it that are indented deeper belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

TASKS = {
    "install": ("install.md",),
    "settings": ("settings.md", "subnets.md"),
    "capacity": ("capacity.md",),
    "upgrade": ("upgrade.md",),
    "migrate": ("migration.md",),
    "roll back": ("upgrade.md", "migration.md"),
    "troubleshoot": ("troubleshooting.md",),
    "collect": ("troubleshooting.md",),
}
"""Task -> the pages of docs/ that it is on."""

PAGES = tuple(dict.fromkeys(page for pages in TASKS.values() for page in pages))

IN_POD = "kubectl -n kube-system exec POD -- "
NODE_PROGRAMS = {"ipamctl", "ipamd", "nft", "ip", "tar"}
CLUSTER_PROGRAMS = {"kubectl", "helm", "aws", "cp", "sed"}

ELSEWHERE = {
    "make image": "tests/heavy/test_image.py runs the script that it runs",
    "skopeo copy oci-archive:build/image/vpc-ipamd-amd64.tar docker://REGISTRY/vpc-ipamd:0.1.0": "no test has a registry; "
    "tests/heavy/test_image.py names the file and reads it as an OCI archive",
    "make image ARCH=arm64": "tests/heavy/test_image_arm64.py runs the script that it runs",
    **dict.fromkeys(
        (
            "buildah manifest create vpc-ipamd",
            "buildah manifest add vpc-ipamd oci-archive:build/image/vpc-ipamd-amd64.tar",
            "buildah manifest add vpc-ipamd oci-archive:build/image/vpc-ipamd-arm64.tar",
            "buildah manifest push --all vpc-ipamd docker://REGISTRY/vpc-ipamd:0.1.0",
        ),
        "tests/heavy/test_image_arm64.py, test_both_under_one_name, into a directory instead of a registry",
    ),
    f"{IN_POD}ipamctl probe aws --run > report.md": "tests/lab/cloud_adapter/test_probe_cleanup.py: it takes ten seconds",
    "ipamctl convert-values values-of-aws-vpc-cni.yaml > values.yaml": "tests/unit/ipamctl/test_convert_values.py: it needs no node",
    "kubectl ipamd clean-up NODE": "lab/cluster/debug_pods.py (`make cluster`), tests/unit/kubectl/test_nodes.py",
    **dict.fromkeys(
        (
            "kubectl debug node/NODE -n kube-system -it --image=IMAGE --profile=sysadmin \\\n"
            "-- sh -c 'cd /host && rm -rf opt/cni/bin/vpc-cni* etc/cni/net.d/*vpc-ipamd* etc/cni/net.d/.*vpc-ipamd* \\\n"
            "run/vpc-ipamd var/lib/vpc-ipamd'",
            "kubectl -n kube-system delete pod DEBUG_POD",
        ),
        "lab/cluster/clean_up.py (`make cluster`); tests/lab/cluster/test_parts.py holds that it runs them",
    ),
    **dict.fromkeys(
        ("kubectl ipamd migrate --plan > over.sh", "kubectl ipamd migrate --plan --back > back.sh"),
        "tests/unit/kubectl/test_migrate.py runs the command and what it prints",
    ),
    "vpc-lab exec node-a -- ipamctl status": "tests/lab/fabric/test_cli.py",
    "vpc-lab daemon node-a log": "tests/lab/fabric/test_cli.py",
}
"""Command -> why no test of the pages runs it, and what does instead."""


class Runner(StrEnum):
    """Where a command is run: in a lab's node, in one that has the trouble of its section, on a fleet of made nodes that has it,
    beside a stand-in for the API server, or not by a test of the pages."""

    NODE = "node"
    TROUBLED = "troubled"
    FLEET = "fleet"
    CLUSTER = "cluster"
    ELSEWHERE = "elsewhere"


RUN_BY: Mapping[tuple[str, Runner], str] = {
    **{(page, Runner.NODE): "tests/lab/tickets/test_task_pages.py" for page in PAGES},
    ("troubleshooting.md", Runner.TROUBLED): "tests/lab/tickets/test_tickets.py",
    ("troubleshooting.md", Runner.FLEET): "tests/unit/kubectl/test_tickets.py",
    ("migration.md", Runner.NODE): "tests/lab/migration/test_back.py",
    **{(page, Runner.CLUSTER): "tests/heavy/test_task_pages_on_a_cluster.py" for page in PAGES},
}
"""Page and runner -> the file that runs these commands of that page."""


@dataclass(frozen=True)
class Section:
    """Commands in order, without comments behind them, and the words in code font of its sentences."""

    commands: tuple[str, ...]
    quoted: frozenset[str]


def parse(text: str) -> dict[str, Section]:
    """Read a page: heading of the second level -> its section; what stands before the first one has the heading ""."""
    found = {}
    for part in re.split(r"^## ", f"\n{text}", flags=re.M):
        heading, _, body = part.partition("\n")
        commands, sentences = [], []
        indent = None
        for line in body.splitlines():
            start = re.match(r"( {4,})\$ (.*)", line)
            if start:
                indent = len(start[1])
                commands.append(start[2])
            elif indent is not None and line.startswith(" " * (indent + 1)):
                commands[-1] += "\n" + line.strip()
            else:
                indent = None
                sentences.append(line)
        stripped = tuple(re.sub(r"\s+# .*", "", command) for command in commands)
        found[heading.strip()] = Section(stripped, frozenset(re.findall(r"`([^`]+)`", "\n".join(sentences))))
    return found


def sections(page: str) -> dict[str, Section]:
    """The sections of a page of docs/."""
    return parse((DOCS / page).read_text())


def program(command: str) -> str:
    """What a command starts, in the pod if it is one for there."""
    words = command.removeprefix(IN_POD).split()
    return next(word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word))


def runner(command: str, *, page: str = "") -> Runner:
    """Where a command is run. On the page of troubles one that needs no pod belongs to the trouble of its section. Raises: ValueError
    if no test would run it."""
    if command in ELSEWHERE:
        return Runner.ELSEWHERE
    if page == "troubleshooting.md" and command.startswith("ipamctl "):
        return Runner.TROUBLED
    if page == "troubleshooting.md" and command.startswith("kubectl ipamd "):
        return Runner.FLEET
    first = program(command)
    if first in CLUSTER_PROGRAMS or "manifests/" in command or "eniconfig" in command:
        return Runner.CLUSTER
    if first in NODE_PROGRAMS:
        return Runner.NODE
    raise ValueError(f"no test runs {command!r}")


def commands(page: str, where: Runner) -> list[str]:
    """The commands of a page that are run there, in order."""
    return [command for section in sections(page).values() for command in section.commands if runner(command, page=page) == where]


def filled(command: str, words: Mapping[str, str]) -> str:
    """The command with the words in capitals that stand for the reader's own replaced."""
    for word, value in words.items():
        command = re.sub(rf"\b{word}\b(?!=)", value, command)
    return command
