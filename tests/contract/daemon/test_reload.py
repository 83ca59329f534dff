"""Settings change under the real daemon: SIGHUP and a change of the file, and a wrong file that changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

FILE = "/run/settings/ipamd.settings"


class File:
    """The settings file of a node, replaced with one rename, as kubelet replaces a ConfigMap's."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self.path = Path(made.node.root + FILE)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, *lines: str) -> None:
        """Replace what is in it."""
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.path)

    def reload(self, *lines: str) -> None:
        """Replace it, and ask for it to be read at once."""
        self.write(*lines)
        assert self._made.daemon is not None
        self._made.daemon.send_signal(signal.SIGHUP)


def settings(made: Rig) -> dict[str, Any]:
    """What `ipamctl -o json status` says of the settings in force, and the conditions beside it."""
    status = made.driver.ipamctl_json("status")
    return {**status["settings"], "degraded": [one for one in status["degraded"] if one.startswith("settings: ")]}


def generation(made: Rig) -> int:
    """The generation in force, over the socket."""
    status = made.status()
    return int(status["settings"]["generation"]) if status is not None else 0


def test_sighup_changes_a_target_and_a_wrong_file_keeps_it() -> None:
    """The pool follows the target; a wrong file keeps the generation and says why; what needs a restart is named."""
    env = {"VPC_IPAMD_SETTINGS_FILE": FILE, "WARM_IP_TARGET": "2", "VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}
    with rig(start=False, env=env) as made:
        file = File(made)
        file.write("# nothing yet")
        made.start()
        wait_until(lambda: made.pool()["free_count"] >= 2, what="the target of the environment")
        assert settings(made) == {
            "generation": 1,
            "file": FILE,
            "awaiting_restart": [],
            "valid": True,
            "differences": [],
            "degraded": [],
        }

        file.reload("WARM_IP_TARGET=7", "VPC_IPAMD_MAX_CONCURRENT_REQUESTS=64", "VPC_IPAMD_LOG_LEVEL=debug")
        wait_until(lambda: generation(made) == 2, what="the second generation")
        wait_until(lambda: made.pool()["free_count"] == 7, what="the pool follows the new target")
        restart = "settings: needs a restart: VPC_IPAMD_MAX_CONCURRENT_REQUESTS"
        said = settings(made)
        assert said == {
            "generation": 2,
            "file": FILE,
            "awaiting_restart": ["VPC_IPAMD_MAX_CONCURRENT_REQUESTS"],
            "valid": True,
            "differences": [],
            "degraded": [restart],
        }

        file.reload("WARM_IP_TARGET=lots", "WARM_ENI_TARGETT=1", "ENABLE_IMDS_ONLY_MODE=true")
        wait_until(lambda: not settings(made)["valid"], what="the wrong file is told")
        said = settings(made)
        assert said["generation"] == 2
        told = next(one for one in said["degraded"] if "generation 2 stays in force: wrong settings (3)" in one)
        assert all(part in told for part in ("'lots'", "did you mean WARM_ENI_TARGET?", "metadata alone"))
        assert {target["name"]: target["value"] for target in made.pool()["targets"]}["WARM_IP_TARGET"] == 7
        assert "generation 2 stays in force" in made.driver.log_text()
        _, metrics = made.page("http://127.0.0.1:61678/metrics")
        assert "ipamd_settings_generation 2.0" in metrics
        assert "ipamd_settings_valid 0.0" in metrics
        assert "ipamd_settings_awaiting_restart 1.0" in metrics

        file.reload()
        wait_until(lambda: settings(made)["valid"], what="a good file ends the condition")
        assert settings(made) == {
            "generation": 3,
            "file": FILE,
            "awaiting_restart": [],
            "valid": True,
            "differences": [],
            "degraded": [],
        }
        assert made.add("a").ok
        made.assert_sound(expected=1)


def test_a_changed_file_sets_the_network_up_anew() -> None:
    """The file's change is noticed without a signal: SNAT goes from the node, an open sandbox lives on, a new one has the new MTU."""
    env = {"VPC_IPAMD_SETTINGS_FILE": FILE, "VPC_IPAMD_RELOAD_JITTER_SECONDS": "0"}
    with rig(start=False, env=env) as made:
        file = File(made)
        file.write("POD_MTU=1500")
        made.start()
        old = made.add("old")
        assert "snat to" in made.node.run(["nft", "list", "ruleset"]).stdout
        file.write("POD_MTU=1400", "AWS_VPC_K8S_CNI_EXTERNALSNAT=true", "AWS_EXTERNAL_SERVICE_CIDRS=198.51.100.0/24")
        wait_until(lambda: generation(made) == 2, what="the change is noticed")
        wait_until(lambda: "snat to" not in made.node.run(["nft", "list", "ruleset"]).stdout, what="no SNAT any more")
        assert "1535:\tfrom all to 198.51.100.0/24 lookup main" in made.node.run(["ip", "rule"]).stdout
        new = made.add("new")
        for name, mtu in (("old", 1500), ("new", 1400)):
            link = made.node.run(["ip", "netns", "exec", name, "ip", "link", "show", "eth0"]).stdout
            assert f"mtu {mtu} " in link
        answered = made.lab.ping(source="host-a", targets=[old.address, new.address])
        assert all(answered.values()), answered
        status = made.status()
        assert status is not None
        assert status["degraded"] == ["CRI is off: nothing is reaped"]
        assert "host routing" not in made.driver.log_text(), "a change of settings is no repair"
        made.assert_sound(expected=2)


def test_sighup_without_a_file_changes_nothing() -> None:
    """The daemon lives, and says that there is nothing to read."""
    with rig() as made:
        assert made.daemon is not None
        made.daemon.send_signal(signal.SIGHUP)
        wait_until(lambda: "VPC_IPAMD_SETTINGS_FILE names no file" in made.driver.log_text(), what="SIGHUP is answered")
        assert generation(made) == 1
        made.assert_sound(expected=0)
