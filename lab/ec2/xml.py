"""Writes EC2's XML: answers and error documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from xml.sax.saxutils import escape

from lab.vpc.errors import Ec2Error

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'

Tree = Mapping[str, object]  # values: None (left out), str, int, bool, datetime, Tree, or a sequence of these as <item>s


def answer(api: str, request_id: str, tree: Tree) -> bytes:
    """Write the answer of one API."""
    inner = _element("requestId", request_id) + _members(tree)
    return f'{_HEAD}<{api}Response xmlns="{_NAMESPACE}">{inner}</{api}Response>'.encode()


def error(refusal: Ec2Error, request_id: str) -> bytes:
    """Write an error document."""
    inner = _element("Code", refusal.code) + _element("Message", refusal.message)
    body = f"<Errors><Error>{inner}</Error></Errors>{_element('RequestID', request_id)}"
    return f"{_HEAD}<Response>{body}</Response>".encode()


def _members(tree: Tree) -> str:
    return "".join(_element(name, value) for name, value in tree.items() if value is not None)


def _element(name: str, value: object) -> str:
    return f"<{name}>{_content(value)}</{name}>"


def _content(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_element("item", item) for item in value)
    return escape(str(value))
