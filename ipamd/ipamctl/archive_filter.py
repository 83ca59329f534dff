"""Filter the files of a support archive: keep only known fields, and only those words of a text that are known to be harmless.

`FILES` has the filter of each file. JSON objects keep only the fields that the filter of their file knows, and never a field whose
name suggests a secret. A word of a text is kept if

- it has the shape of something that operators need: an address, a MAC, an ID of EC2, a time, a number, an instance type;
- it is the name of a pod, a sandbox, a link or a file, and a field of the same archive has that name;
- our program, EC2, the kernel or nftables writes it (`ipamd/ipamctl/vocabulary.py`).

Any other word is replaced by its length, as `[12]`, and counted. Before that, `without_secrets` removes the value behind a name such
as `password`, even if the value is a known word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from ipamd.ipamctl.archive_fields import KERNEL_FIELDS, LOG_FIELDS
from ipamd.ipamctl.vocabulary import is_word
from ipamd.model.conditions import ConditionCode
from ipamd.model.finding_codes import FindingCode
from ipamd.model.legs.codes import LEG_CODES
from ipamd.model.record import dataclass
from ipamd.model.redaction import SECRET_NAMES, tells_of_secret, without_secrets
from ipamd.model.refusals import RefusalCode


class Kind(Enum):
    """The kind of a field's text, which decides how the text is filtered.

    TEXT: sentences, filtered word by word.
    POD, SANDBOX, LINK, PATH: a name. If it is plain, or a container ID, it is kept, and so is each repetition of it in later texts.
    VERSION: words and numbers of a version. It is kept, but not where a later text repeats it.
    CODE: a member of CODES, which is kept.
    """

    TEXT = auto()
    POD = auto()
    SANDBOX = auto()
    LINK = auto()
    PATH = auto()
    VERSION = auto()
    CODE = auto()


CODES = frozenset(map(str, (*ConditionCode, *FindingCode, *RefusalCode, *LEG_CODES)))
"""The codes of conditions, findings and refusals. A field of the kind CODE that has one of them is kept, even if its words are
unknown."""

FIELDS = {
    "sandbox_name": Kind.POD,
    "pod": Kind.POD,
    "container_id": Kind.SANDBOX,
    "container": Kind.SANDBOX,
    "sandbox": Kind.SANDBOX,
    "ifname": Kind.LINK,
    "host_veth": Kind.LINK,
    "veth": Kind.LINK,
    "link": Kind.LINK,
    "netns": Kind.PATH,
    "path": Kind.PATH,
    "new_path": Kind.PATH,
    "directory": Kind.PATH,
    "socket": Kind.PATH,
    "IFLA_IFNAME": Kind.LINK,
    "IFA_LABEL": Kind.LINK,
    "FRA_IIFNAME": Kind.LINK,
    "FRA_OIFNAME": Kind.LINK,
    "python": Kind.VERSION,
    "kernel": Kind.VERSION,
    "vpc-ipamd": Kind.VERSION,
    "boto3": Kind.VERSION,
    "grpcio": Kind.VERSION,
    "protobuf": Kind.VERSION,
    "pyroute2": Kind.VERSION,
    "sqlalchemy": Kind.VERSION,
    "prometheus_client": Kind.VERSION,
    "version": Kind.VERSION,
    "code": Kind.CODE,
    "codes": Kind.CODE,
    "refusal": Kind.CODE,
}
"""Fields, of any file, whose text is not of the kind TEXT."""

VERSIONS = frozenset({"vpc-ipamd", "python", "libraries", "kernel"})
LIBRARIES = frozenset({"boto3", "grpcio", "protobuf", "pyroute2", "sqlalchemy", "prometheus_client"})
HISTORY = frozenset(
    {
        "at",
        "event",
        "address",
        "container_id",
        "ifname",
        "eni_id",
        "pod",
        "other_address",
        "since",
        "count",
        "code",
        "detail",
        "problem",
    }
)
REPLIES = {
    "status": "GetStatus",
    "enis": "ListEnis",
    "attachments": "ListAttachments",
    "plan": "Plan",
    "capacity": "Capacity",
    "config": "GetConfig",
    "audit": "Audit",
}
"""File -> the RPC whose reply it is; the fields are those of `proto/vpc_ipamd/v1/introspection.proto`."""

NETLINK_FIELD = re.compile(r"(?:IFLA|IFA|RTA|RTAX|FRA|NDA|NDTPA|AF)_[A-Z0-9_]{1,40}")

REMOVED = "[{}]"

DEPTH_MAX = 30
"""The largest number of levels of nested lists and objects that are kept. Ours: a link's attributes have six levels."""


# Shapes of single words.
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_IPV6 = r"(?=[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:)(?:[0-9a-fA-F]{1,4}|:)(?:::?[0-9a-fA-F]{1,4}){0,7}:{0,2}(?:[0-9.]{7,15})?"
_MAC = r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}"
_TIME = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?|\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?"
_STAMP = r"\d{8}T\d{6}Z"
_UNIT = r"(?:%|ms|us|ns|s|min|h|d|[KMG]i?B?|B|x|/second|/minute)"
_NUMBER = rf"[-+]?(?:\d{{1,20}}(?:\.\d{{1,20}})?(?:e[-+]?\d{{1,3}})?|0x[0-9a-fA-F]{{1,8}}){_UNIT}?"
_SHAPES = (
    rf"{_IPV4}(?:/\d{{1,3}})?(?::\d{{1,5}})?",
    rf"{_IPV6}(?:/\d{{1,3}})?",
    _MAC,
    r"(?:eni|eni-attach|i|subnet|sg|vpc|vpce|rtb|acl|eipalloc|ami|vol|r|igw|nat|tgw|pl|trunk-assoc|scr)-(?:[0-9a-f]{8}|[0-9a-f]{17})",
    _TIME,
    _NUMBER,
    r"v?\d{1,4}(?:\.\d{1,4}){1,3}(?:-(?:eks|rc|alpha|beta)[.-]?[0-9a-f]{0,8})?",
    r"(?:eni|vlan)[0-9a-f]{11}|(?:eth|ens|enp|enX|eni|vlan|veth|cni|docker|br|bond|dummy|wlan|lxcbr)\d{0,5}\*?",
    r"[a-z]{1,4}\d{1,2}[a-z-]{0,8}\.(?:nano|micro|small|medium|(?:\d{1,3})?x?large|metal(?:-\d{1,3}xl)?)",
    r"(?:us|eu|ap|ca|sa|me|af|il|mx|cn|eusc)(?:-[a-z]{2,12}){1,3}-\d[a-z]?",
    r"(?:KUBE|CNI|cali|CILIUM|AWS)-(?:[A-Z]{2,12}-)?(?:[A-Z0-9]{16}|[0-9a-f]{20,24})",
    r"0[0-7]{3}|[0-7]{5,6}",
    _STAMP,
    r"(?:/[\w.-]{1,40}){0,8}/(?:python3(?:\.\d+)?|site-packages|dist-packages|ipamd|cni_plugin)(?:/[\w.-]{1,40}){0,8}\.py",
    r"/(?:var/)?run/netns/(?:cni-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
)
_SHAPE = re.compile("|".join(_SHAPES))
_NETWORK = re.compile("|".join(_SHAPES[:4]))
_LONG = re.compile(r"\d{10,20}")
_COUNTED = re.compile(r"(?:packets|bytes|since|[a-z]_[a-z_]+(?:\{[^{}\n]*\})?)[ =:\"]{1,3}$")
"""Matches the end of a text after which a number is a count or a time. A number of ten digits or more is kept only there."""

LINK_MAX = 15
"""The largest number of bytes of a link's name: the kernel's IFNAMSIZ less its terminator."""

_DIGITS = re.compile(r"\d{1,6}")
_CHUNK = re.compile(r"[^\s\"'`(){}\[\]<>,;|]+")
_SPLIT = re.compile(r"[-_./:@*+&#!?$%~^\\=]+")
_KEY = re.compile(r"([A-Za-z][\w.-]{0,60}[=:]{1,2})(.+)")
_PUNCTUATION = ".:!?=*&"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_REQUEST = re.compile(r"request[ _-]?id:? ?$", re.I)
_ENCODED = re.compile(r"[\w-]{100,}")
_FAILURE = "failure message: "
_CHUNK_MAX = 300
"""The largest number of characters of a word that may be kept; a longer one is replaced. Ours: a pod's name has 253 at most, and the
expressions that judge a word take longer for a longer one."""

_SUSPECT = re.compile(
    rf"{SECRET_NAMES}|[@?&]|(?<![\w-])-[pu]\b|\b(?:identified|requirepass|masterauth|basic|negotiate|value)\b", re.I
)
"""Matches in a text that may contain a secret that is itself a known word. Only such a text goes through `without_secrets`, because
that step would take most of the filter's time."""

_PLAIN_PART = re.compile(rf"{_STAMP}|[A-Za-z]{{1,20}}|\d{{1,10}}|[a-z0-9]{{1,10}}|eni[0-9a-f]{{11}}")
_PLAIN = re.compile(r"[A-Za-z0-9](?:[\w.@:-]{0,251}[A-Za-z0-9])?")
_POD = re.compile(r"(?:[a-z0-9-]{1,63}/)?[a-z0-9][a-z0-9.-]{0,252}")
_SANDBOX = re.compile(r"([0-9a-f]{12,64})(?:/([\w.-]{1,15}))?")
_VERSION = re.compile(r"[v#@]?\d{1,6}(?:[.:+~_-](?:\d{1,8}|[a-z]{1,5}\d{0,6}|x86_64|aarch64|amd64|arm64|generic)){0,10}")


def is_plain(name: str) -> bool:
    """Whether the name of a link, a file or a pod consists of short parts. Keys, hashes and tokens do not."""
    parts = _SPLIT.split(name)
    return bool(_PLAIN.fullmatch(name)) and all(_PLAIN_PART.fullmatch(part) for part in parts if part)


@dataclass(slots=True)
class FieldCounts:
    """How many fields and words of one file were kept, and how many were left out."""

    kept_count: int = 0
    left_out_count: int = 0


class ArchiveFilter:
    """Filters the files of one archive, one after the other. A name in a field of one file is kept in all later files."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._verdicts: dict[str, bool] = {}

    def keep(self, file: str, text: str) -> tuple[str, FieldCounts]:
        """Filter the text of one file.

        Returns: the filtered text, and how many of its fields and words were kept and left out.
        Raises: KeyError if the file is not in FILES.
        """
        counts = FieldCounts()
        return FILES[file](self, text, counts), counts

    def sentence(self, text: str) -> str:
        """Filter a sentence, such as the reason why a file is missing."""
        return self.lines(text, FieldCounts())

    def document(self, text: str, counts: FieldCounts, *, is_field: Callable[[str], bool]) -> str:
        """Filter one JSON document. Other content is filtered as text."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.lines(text, counts)
        return json.dumps(self._value(value, "", counts, is_field, DEPTH_MAX), indent=2) + "\n"

    def json_lines(self, text: str, counts: FieldCounts, *, is_field: Callable[[str], bool]) -> str:
        """Filter lines of JSON objects, which may have the prefix of a container's log. Other lines are filtered as text."""
        return "".join(f"{self._json_line(line, counts, is_field)}\n" for line in text.splitlines())

    def _json_line(self, line: str, counts: FieldCounts, is_field: Callable[[str], bool]) -> str:
        start = line.find("{")
        if start < 0:
            return self.lines(line, counts)
        try:
            value = json.loads(line[start:])
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return self.lines(line, counts)
        prefix = self.words(line[:start], counts)
        return prefix + json.dumps(self._value(value, "", counts, is_field, DEPTH_MAX), ensure_ascii=False)

    def _value(self, value: Any, name: str, counts: FieldCounts, is_field: Callable[[str], bool], levels: int) -> Any:
        if isinstance(value, (dict, list)) and not levels:
            counts.left_out_count += 1
            return None
        if isinstance(value, dict):
            return self._object(value, counts, is_field, levels - 1)
        if isinstance(value, list):
            return [self._value(element, name, counts, is_field, levels - 1) for element in value]
        if isinstance(value, str):
            return self._text(value, FIELDS.get(name, Kind.TEXT), counts)
        counts.kept_count += 1
        return value

    def _object(self, value: dict[str, Any], counts: FieldCounts, is_field: Callable[[str], bool], levels: int) -> dict[str, Any]:
        reduced = {}
        for name in sorted(value, key=_is_text_field):  # names first, because texts repeat them
            if is_field(name) and not tells_of_secret(name):
                reduced[name] = self._value(value[name], name, counts, is_field, levels)
        counts.left_out_count += len(value) - len(reduced)
        return {name: reduced[name] for name in value if name in reduced}

    def _text(self, text: str, kind: Kind, counts: FieldCounts) -> str:
        if kind is not Kind.TEXT and self._learn(text, kind):
            counts.kept_count += 1
            return text
        return self.lines(text, counts)

    def _learn(self, text: str, kind: Kind) -> bool:
        """Decide whether the text of a field of another kind than TEXT is kept unchanged. Later texts may repeat a kept name."""
        if kind is Kind.VERSION:
            return self._is_version(text)
        if kind is Kind.CODE:
            return text in CODES
        sandbox = _SANDBOX.fullmatch(text)
        if kind is Kind.SANDBOX and sandbox is not None:
            container_id = sandbox[1]
            self._names.update({container_id, container_id[:12], container_id[:13], text})
            return True
        if not _may_be_name(text, kind):
            return False
        parts = [text]
        if kind is not Kind.LINK:
            parts = text.split("/")
        if not _are_plain(parts):
            return False
        self._names.update({text, parts[-1]})
        return True

    def _is_version(self, text: str) -> bool:
        for word in _CHUNK.findall(text):
            if not _VERSION.fullmatch(word) and (not self._is_kept(word) or _LONG.fullmatch(word)):
                return False
        return not _SUSPECT.search(text.replace("@", ""))

    def lines(self, text: str, counts: FieldCounts) -> str:
        """Filter any text, word by word."""
        if _SUSPECT.search(text):
            text = without_secrets(text)
        return self.words(text, counts)

    def named_lines(self, text: str, counts: FieldCounts, *, names: re.Pattern[str]) -> str:
        """Filter text that introduces names: plain names that the pattern finds are kept."""
        for match in names.finditer(text):
            name = match["name"]
            if _are_plain(name.split("/")):
                self._names.add(name)
        return self.lines(text, counts)

    def words(self, text: str, counts: FieldCounts) -> str:
        """Replace each unknown word by its length, and also the word after it if that may be the value of the unknown word."""
        pieces = []
        end = 0
        was_left_out = False
        for match in _CHUNK.finditer(text):
            chunk, start = match[0], match.start()
            between = text[end:start]
            is_kept = self._is_kept(chunk) or _is_kept_behind(chunk, text, start)
            follows_unknown = was_left_out and not between.strip(" \t\"':=>")
            if (follows_unknown and _is_value(chunk, text, start)) or _is_odd_number(chunk, text, start):
                is_kept = False
            pieces.append(_printable(between))
            if is_kept:
                pieces.append(chunk)
                counts.kept_count += 1
            else:
                pieces.append(REMOVED.format(len(chunk)))
                counts.left_out_count += 1
            end = match.end()
            if chunk.strip(_PUNCTUATION):
                was_left_out = not is_kept
        return "".join([*pieces, _printable(text[end:])])

    def _is_kept(self, chunk: str) -> bool:
        """Whether a word is harmless. The verdict is stored for the next time. A word that was left out is judged again after a field
        has shown that it is a name (`_learn`)."""
        is_kept = self._verdicts.get(chunk)
        if is_kept is None or (not is_kept and self._is_name(chunk)):
            is_kept = len(chunk) <= _CHUNK_MAX and self._is_harmless(chunk)
            self._verdicts[chunk] = is_kept
        return is_kept

    def _is_name(self, chunk: str) -> bool:
        return chunk in self._names or chunk.strip(_PUNCTUATION) in self._names

    def _is_harmless(self, chunk: str) -> bool:
        """Whether a word is a name, has a known shape, is made of known words or harmless parts, or is punctuation alone.

        A word with characters outside printable ASCII is not harmless.
        """
        if not (chunk.isascii() and chunk.isprintable()):
            return False
        bare = chunk.strip(_PUNCTUATION)
        if not bare or self._is_name(chunk) or _SHAPE.fullmatch(bare):
            return True
        if _consists_of_words(bare):
            return not bare.replace(".", "").isdigit() or len(bare) <= 20
        return self._has_harmless_parts(bare)

    def _has_harmless_parts(self, bare: str) -> bool:
        """Whether a word is `key=value` or a path, and all its parts are harmless."""
        pair = _KEY.fullmatch(bare)
        if pair is not None and not tells_of_secret(pair[1]):
            return self._is_harmless(pair[1]) and self._is_harmless_part(pair[2])
        return "/" in bare and all(self._is_harmless_part(part) for part in bare.split("/") if part)

    def _is_harmless_part(self, part: str) -> bool:
        return self._is_harmless(part) and not _LONG.fullmatch(part)


def _is_text_field(name: str) -> bool:
    return FIELDS.get(name, Kind.TEXT) is Kind.TEXT


def _may_be_name(text: str, kind: Kind) -> bool:
    """Whether a text has the form that names of its kind have."""
    if kind is Kind.POD:
        return bool(_POD.fullmatch(text))
    if kind is Kind.LINK:
        return 0 < len(text) <= LINK_MAX
    return bool(text)


def _are_plain(parts: Iterable[str]) -> bool:
    return all(is_plain(part) for part in parts if part)


def _consists_of_words(text: str) -> bool:
    """Whether all parts of a joined word are known words or short numbers."""
    return all(is_word(part) or _DIGITS.fullmatch(part) for part in _SPLIT.split(text) if part)


def _is_value(chunk: str, text: str, start: int) -> bool:
    """Whether a word may be the value of the unknown name before it: it has a digit, or stands behind `:`, `=` or `>`.

    Addresses, MACs and IDs of EC2 never count as such a value.
    """
    if _NETWORK.fullmatch(chunk.rstrip(_PUNCTUATION)):
        return False
    before = text[max(start - 3, 0) : start].rstrip(" \t\"'")
    return any(map(str.isdigit, chunk)) or before.endswith((":", "=", ">"))


def _is_odd_number(chunk: str, text: str, start: int) -> bool:
    """Whether a word is a long number that does not stand behind the name of a count."""
    return bool(_LONG.fullmatch(chunk.strip("=:.-+@#"))) and not _COUNTED.search(text[max(start - 200, 0) : start])


def _is_kept_behind(chunk: str, text: str, start: int) -> bool:
    """Whether the text before a word makes it harmless: the ID of a request to AWS, or an encoded refusal that only AWS decodes."""
    before = text[max(start - 20, 0) : start]
    if _UUID.fullmatch(chunk.rstrip(_PUNCTUATION)):
        return bool(_REQUEST.search(before))
    return bool(_ENCODED.fullmatch(chunk)) and before.endswith(_FAILURE)


def _printable(text: str) -> str:
    """Replace characters that control a terminal by spaces, in the text between words."""
    characters = []
    for character in text:
        if character not in "\n\t" and not (character.isascii() and character.isprintable()):
            character = " "
        characters.append(character)
    return "".join(characters)


def _reply_fields(method: str) -> frozenset[str]:
    """All fields of a reply and of the messages in it."""
    from ipamd.pb import introspection_pb2 as pb

    names: set[str] = set()
    messages = [pb.DESCRIPTOR.services_by_name["Introspection"].methods_by_name[method].output_type]
    while messages:
        for field in messages.pop().fields:
            if field.name not in names and field.message_type is not None:
                messages.append(field.message_type)
            names.add(field.name)
    return frozenset(names)


def _reply(method: str) -> Callable[[ArchiveFilter, str, FieldCounts], str]:
    def make(archive_filter: ArchiveFilter, text: str, counts: FieldCounts) -> str:
        fields = _reply_fields(method)
        return archive_filter.document(text, counts, is_field=lambda name: name in fields)

    return make


def _json_file(fields: Iterable[str]) -> Callable[[ArchiveFilter, str, FieldCounts], str]:
    names = frozenset(fields)
    return lambda archive_filter, text, counts: archive_filter.document(text, counts, is_field=lambda name: name in names)


def _lines_of(is_field: Callable[[str], Any]) -> Callable[[ArchiveFilter, str, FieldCounts], str]:
    return lambda archive_filter, text, counts: archive_filter.json_lines(
        text, counts, is_field=lambda name: bool(is_field(name))
    )


def _is_netlink_field(name: str) -> bool:
    """Whether a field is an attribute of the kernel, or part of the header before the attributes."""
    return name in KERNEL_FIELDS or bool(NETLINK_FIELD.fullmatch(name))


NFT_NAMES = re.compile(
    r"(?:\btable \w{2,6}|\bchain|\bset|\bmap|\bjump|\bgoto|\bflowtable|\bcounter(?: name)?|@)\s*\"?(?P<name>[A-Za-z][\w.-]{0,63})"
)
PATHS = re.compile(r"(?m)^(?P<name>/[\w./@-]{1,250})")

FILES: dict[str, Callable[[ArchiveFilter, str, FieldCounts], str]] = {
    "versions.json": _json_file(VERSIONS | LIBRARIES),
    **{f"{file}.json": _reply(method) for file, method in REPLIES.items()},
    "history.jsonl": _lines_of(HISTORY.__contains__),
    "metrics.txt": ArchiveFilter.lines,
    **{f"{file}.jsonl": _lines_of(_is_netlink_field) for file in ("links", "addresses", "rules", "routes", "neighbours")},
    "nft.txt": lambda archive_filter, text, counts: archive_filter.named_lines(text, counts, names=NFT_NAMES),
    "sysctls.txt": ArchiveFilter.lines,
    "files.txt": lambda archive_filter, text, counts: archive_filter.named_lines(text, counts, names=PATHS),
    "log.txt": _lines_of(LOG_FIELDS.__contains__),
}
"""Name of each file that is filtered -> the function that filters it. Every other file of the archive only loses its secrets."""
