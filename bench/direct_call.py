"""Asks the daemon itself, in the plugin's protocol and with the plugin's client, when it first serves after a restart.

The plugin is not used, because it spools a DEL and succeeds while the daemon is absent.
"""

from __future__ import annotations

import json
import time

from bench.namespaces import make_netns, netns_path
from bench.network_config import CONFIGS, IFNAME
from cni_plugin import client, envelope
from cni_plugin._cni import System

RUN_DIR = "/run/vpc-ipamd"
POLL_S = 0.001
CALL_DEADLINE_MS = 5000

SYSTEM = System()
"""The plugin's seam to the system, used as its client uses it."""


class PluginFailed(Exception):
    """A plugin ended with an error, or the daemon refused; the text is what it said."""


def first_served(*, delete_id: str, add_id: str, deadline_s: float) -> dict[str, float]:
    """Ask the daemon itself, over and over, for one DEL and then one ADD, until each succeeds.

    Returns: {"DEL": monotonic s of the first success, "ADD": the same}. Raises: PluginFailed with the last refusal.
    """
    make_netns(add_id)
    return {
        verb: _ask_until_served(_request(verb, container_id), time.monotonic() + deadline_s)
        for verb, container_id in (("DEL", delete_id), ("ADD", add_id))
    }


def _ask_until_served(request: bytes, give_up_at: float) -> float:
    refusal = "nobody listened"
    while time.monotonic() < give_up_at:
        try:
            deadline_ms = SYSTEM.monotonic_ms() + CALL_DEADLINE_MS
            call = client.exchange(
                SYSTEM, client.connect(SYSTEM, RUN_DIR, deadline_ms=deadline_ms), request, deadline_ms=deadline_ms
            )
            answered_at = time.monotonic()
            reply = envelope.decode_reply(call.reply)
            if call.status == 0 and not reply.is_error:
                return answered_at
            refusal = f"gRPC status {call.status}, {reply.message!r} {reply.details!r}"
        except Exception as exc:  # noqa: BLE001  # away, late or broken: all mean "again" here
            refusal = repr(exc)
        time.sleep(POLL_S)
    raise PluginFailed(f"not served in time: {refusal}")


def _request(verb: str, container_id: str) -> bytes:
    return envelope.encode_request(
        verb,
        container_id=container_id.encode(),
        netns=str(netns_path(container_id)).encode(),
        ifname=IFNAME.encode(),
        config=json.dumps(CONFIGS["vpc"]).encode(),
        plugin_version="bench",
    )
