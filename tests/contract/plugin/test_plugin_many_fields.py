"""A reply of nothing but fields: refused before the plugin has grown, whatever the fields are."""

from __future__ import annotations

import pytest

from cni_plugin import envelope
from cni_plugin.errors import PeerError
from ipamd.pb import cni_pb2

REPLY = cni_pb2.ExecReply(protocol=1, result=b"{}").SerializeToString()
FIELDS = [b"\x08\x01", b"\x12\x00", b"\x1a\x00", b"\x78\x00", b"\xfa\x01\x00"]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.hex())
def test_many_fields_are_refused(field):
    """A message of the largest size, with a million empty fields, took 150 MB; one in `error` the same."""
    many = field * ((4 << 20) // len(field))
    for data in (many, b"\x1a\x80\x80\x80\x01" + many[: 1 << 21].ljust(1 << 21, b"\0")):
        with pytest.raises(PeerError):
            envelope.decode_reply(data)


def test_more_fields_than_are_known_pass():
    """A newer daemon may send fields that this plugin does not know."""
    assert envelope.decode_reply(b"\x78\x00" * 500 + REPLY).result == b"{}"
