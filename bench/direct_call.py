"""Call the daemon directly, with the plugin's protocol and client, to find out when it first serves after a restart.

The plugin itself is not used, because while the daemon is absent it writes a DEL to disk and succeeds.
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
"""The plugin's object for system calls, which its client needs."""


class PluginFailed(Exception):
    """A plugin ended with an error, or the daemon refused a call. The text has the output or the refusal."""


def first_served(*, delete_id: str, add_id: str, deadline_s: float) -> dict[str, float]:
    """Repeat a DEL, and then an ADD, directly at the daemon until each succeeds.

    Returns: verb -> monotonic time of its first success, in s. Raises: PluginFailed with the last refusal, if one takes longer than
        `deadline_s`.
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
        except Exception as exc:  # noqa: BLE001  # whether the daemon is away, late or broken, the call is repeated
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
