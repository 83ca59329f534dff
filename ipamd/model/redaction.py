"""Remove secrets from text that leaves the node: from support archives, and from settings that are shown.

Secrets are found by form (keys, tokens and hashes that their issuers made recognizable, long words of mixed letters and digits) and by
name (the text after a word such as `password`). A secret with neither a known form nor a known name before it is not found. So a
support archive leaves out data that is likely to contain secrets, such as the environment and the files of pods.

The time of the search is at most proportional to the length of the text, whatever the text is. To ensure this, the patterns never
backtrack over a part that may be long, and such a part begins at the start of a word or line. All other parts have a bound. Single
characters are repeated with possessive quantifiers (`*+`). Groups are repeated inside atomic groups (`(?>(?:...)*)`) instead, because
before Python 3.11.5 a possessive quantifier after a group matches too much (https://github.com/python/cpython/issues/106052); the
Python of Debian 12, which is also that of the image, is older.
"""

from __future__ import annotations

import re
from base64 import b64decode
from functools import cache
from itertools import pairwise

GONE = "[redacted]"

PEM_MAX = 20_000
"""How many characters are removed after the first line of a private key if the key's last line is missing. Ours: an RSA key of 16,384
bits has 12,700."""

_NAME = (
    r"(?:secret(?!s?-?manager)|passw(?:or)?[dt]|passphrase|passcode|(?<!client)(?<!client[_ -])token|credential|signature"
    r"|authorization|cookie|session_?id|(?<![a-z0-9])(?:auth|pass|pwd(?!=/)|sig|psk|jwt|bearer)(?![a-z0-9])"
    r"|(?:api|access|account|private|client|server|secret|master|encryption|signing|ssh|shared|storage|auth|admin|hmac|jwt|rsa|tls|ssl"
    r"|certificate|app|deploy)[_ .-]?key)[\w.-]*+"
)
"""Pattern of names of secrets. It excludes EC2's client tokens, which are not secrets: they identify repeated calls."""

SECRET_NAMES = _NAME
"""The pattern of names of secrets, for callers that test a text before they call `without_secrets`."""

_NOT_ABOUT = r"(?<!file)(?<!path)(?<!name)(?<!type)(?<!_ttl)(?<!expiration)"
"""Pattern that excludes names of facts about a secret, such as `AWS_WEB_IDENTITY_TOKEN_FILE`."""

_OTHER_LANGUAGES = (
    r"(?:kennwort|geheimnis|contrase(?:\u00f1|n)a|clave|mot[ _-]?de[ _-]?passe|senha|palavra-passe|parola|wachtwoord|l\u00f6senord"
    r"|adgangskode|passord|salasana|has\u0142o|heslo|jelsz\u00f3|lozinka|\u015fifre|sifre|\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6[\u7801\u78bc]"
    r"|\u30d1\u30b9\u30ef\u30fc\u30c9|\ube44\ubc00\ubc88\ud638|\u0643\u0644\u0645\u0629 \u0627\u0644\u0633\u0631)"
)
"""Pattern of some names of secrets in languages other than English."""

_INVISIBLE = dict.fromkeys((173, 6158, 65279, *range(8203, 8208), *range(8234, 8239), *range(8288, 8293)))
"""Invisible characters that may split a word."""

_ODD_QUOTE = (
    r"(?:[`\u201c-\u201f\u2018-\u201b\u00ab\u00bb\u2039\u203a\uff02\uff07]|&quot;|&#3[49];"
    r"|\\{1,4}u(?:002[27]|201[89a-f]|00[ab]b|203[9a]|ff0[27]))"
)
"""Quotes as word processors, HTML and JSON write them."""

_QUOTE = rf"(?:\\{{0,7}}[\"']|{_ODD_QUOTE})"
_CRI = r"(?:\S{1,40} std(?:out|err) [FP] )?"
"""The beginning of each line in a container's log file, as the runtime writes it for kubelet."""

_BLOCK = r"[|>][-+0-9]{0,2}[ \t]*+"
_VALUE = (
    r"(?P<value>(?P<depth>\\+)(?P<mark>[\"'])(?>(?:(?!(?<!\\)(?:(?P=depth))?(?P=mark))[^\n])*)"
    r'|"(?>(?:[^"\\\n]|\\.|"")*)(?>(?:\r?\n[^"]{0,2000}+(?="[ \t,;)]*+$))?)'
    r"|'(?>(?:[^'\\\n]|\\.|'')*)(?>(?:\r?\n[^']{0,2000}+(?='[ \t,;)]*+$))?)"
    rf"|{_ODD_QUOTE}(?>(?:(?!{_ODD_QUOTE})[^\n])*)"
    r"|\[(?!\[?redacted\])[^\]\n]++"
    rf"|{_BLOCK}(?:\\{{1,4}}n[^\"\n]*+|(?>(?:\r?\n{_CRI}[ \t][^\n]*+)+))"
    r"|(?!\{[\"'\s\\}]|\{$|[\[<])(?>(?:[^\s&;,\"'\\]|\\[^\"'\s])+))"
)
"""Pattern of the value after a name. The value may be quoted, even in JSON inside JSON at any depth, and may have several lines if the
closing quote ends a line. Or it is a list, a block of YAML, or a word."""

_SPACE = r"(?:\s|\\{1,4}[nrt])"
"""Pattern of white space, including its escapes in JSON."""

_BLANK = r"(?>(?:[ \t]|\\{1,4}[nrt](?:[ \t]{0,80}+-[ \t])?){0,80})(?>(?:!!\w{1,16}[ \t])?)"
_IS = (
    rf"(?:{_QUOTE}?[ \t]*+(?>[:?]?=[=>]?|:|->|[\uff1a\uff1d]|\\{{1,4}}uff1[ad]|%3[ad])(?:\s{{0,200}}+(?={_QUOTE})|{_BLANK})"
    rf"|{_QUOTE}?(?>(?:,|{_SPACE}){{1,80}}){_QUOTE}?value{_QUOTE}?[ \t]*+[:=]{_BLANK}|{_QUOTE}>)"
)
"""Pattern of the text between name and value, even if the name is itself a value (`name: DB_PASSWORD`, then `value: ...`)."""

_ON_A_LINE = rf"^{_CRI}(?P<indent>[ \t]*+)(?:-[ \t]++)?{_QUOTE}?[\w.-]{{0,64}}?{_NAME}{_NOT_ABOUT}{_QUOTE}?[ \t]*+:[ \t]*+"
_DEEPER = rf"\r?\n{_CRI}(?P=indent)[ \t]"
_LESS, _MORE = r"(?:<|&lt;|\\{1,4}u003c)", r"(?:>|&gt;|\\{1,4}u003e)"
_TEXT = rf"(?P<value>(?>(?:(?!{_LESS}).){{1,8192}})|<!\[CDATA\[(?>(?:(?!\]\]>).){{1,8192}}))"
_USER = r"[^\s/@:\"'<>]"

_PATTERNS = (
    # XML: an element whose own name is that of a secret; and the element after an element whose text is the name of a secret
    rf"(?s:{_LESS}[\w:.-]{{0,64}}?{_NAME}(?:\s[^<>]{{0,200}}?)?{_MORE}{_TEXT}(?={_LESS}/|\]))",
    rf"(?s:{_MORE}[\w:.-]{{0,64}}?{_NAME}{_LESS}/[\w:]{{1,80}}+{_MORE}(?>{_SPACE}{{0,80}}){_LESS}[\w:]{{1,80}}+{_MORE}{_TEXT}(?={_LESS}/))",
    # whole HTTP headers; authentication schemes anywhere in the text
    r"(?:authorization|cookie)[ \t]*+:[ \t]*+(?P<value>(?![\"'{\[])(?>(?:[^\r\n\"'\\]|\\[^\"'rn\r\n])+))",
    r"(?<![\w-])bearer[ \t]++(?!tokens?\b|auth|realm)(?P<value>[\w+/=.~:-]{4,}+)",
    r"(?<![\w-])(?:basic|negotiate)[ \t]++(?P<value>(?=[\w+/.~-]{1,200}?(?:=|(?-i:[A-Z0-9])))[\w+/=.~:-]{4,}+)",
    # the rest of a line of YAML or of an environment, or the indented lines below it
    rf"{_ON_A_LINE}(?:{_BLOCK})(?P<value>(?>(?:{_DEEPER}[^\n]*+|\r?\n{_CRI}[ \t]*+(?=\r?\n))+))",
    rf"{_ON_A_LINE}(?P<value>(?>(?:{_DEEPER}[ \t]*+(?:-[ \t]++)?[^\s:{{\[\"'][^:\n]*+$)+))",
    rf"{_ON_A_LINE}(?<=[ \t])(?!{_QUOTE}|[\s{{\[|>])(?P<value>[^\r\n]++)",
    rf"^{_CRI}[ \t]*+(?:export[ \t]++)?[\w.-]{{0,64}}?{_NAME}{_NOT_ABOUT}=(?![\s\"'])(?P<value>\S++)",
    # options of a command line
    rf"(?<![\w-])--?[\w-]{{0,40}}?{_NAME}{_NOT_ABOUT}"
    rf"(?:[ \t]++|{_QUOTE},?\s{{0,80}}+(?={_QUOTE})|(?>{_SPACE}{{1,80}})-[ \t]++)(?!-){_VALUE}",
    rf"(?<![\w-])-p[ \t]++(?!(?:tcp|udp|sctp|icmp(?:v?6)?|esp|ah|all|[\d:.-]+|/\S*)(?:[\s;,\"']|$)|-){_VALUE}",
    r"\b(?:mysql\w{0,8}|mariadb[\w-]{0,8}|sshpass)\b[^\n]{0,200}?[ \t]-p(?P<value>[^\s=]\S*+)",
    rf"(?<![\w-])(?:-u|--(?:proxy-)?user)[ \t=]++[\"']?(?!\d{{1,8}}:\d{{1,8}}\b){_USER}{{1,64}}:(?P<value>[^\s\"']++)",
    # a name anywhere in the text. The value is optional, so that a name without one is matched too, and the search goes on behind it.
    # Otherwise the rest of a long name such as `tokentokentoken` would be read again from each `token`
    rf"(?=[sptcajbmehrd]){_NAME}(?:{_NOT_ABOUT}{_IS}{_VALUE})?",
    rf"passw(?:or)?d(?:[ \t]++(?=\\{{0,7}}[\"'])|[ \t]++(?:is|was)[ \t]++(?=\S{{0,80}}\d)){_VALUE}",
    rf"\b(?:requirepass|masterauth|identified[ \t]++by|login\s{{1,80}}\S{{1,128}}\s{{1,80}}password)\s{{1,80}}+{_VALUE}",
    # credentials in URLs, and in front of the host in an address of Go's MySQL driver
    rf"://(?P<value>{_USER}{{0,256}}+:(?!\d{{1,5}}(?:[/?#\s\"']|$))(?:[^\s/\"'<>]{{0,256}}|[^\s\"'<>]{{0,256}})(?=@)|{_USER}{{16,256}}(?=@))",
    rf"(?<![\w.-])(?P<value>[\w.-]{{1,64}}+:{_USER}{{1,128}})(?=@(?:tcp|udp|unix)\()",
    # other names: in other languages, of LDAP, SNMP and IPsec; and names in brackets
    rf"{_OTHER_LANGUAGES}[\w.-]*+(?:{_IS}{_VALUE})?",
    rf"(?<![a-z])(?:bind_?(?:pw|secret)|(?:r[ow])?community6?)(?:{_IS}|[ \t]++){_VALUE}",
    rf"(?<![a-z])com2sec6?[ \t]++\S{{1,80}}[ \t]++\S{{1,80}}[ \t]++{_VALUE}",
    rf"(?<![a-z])(?:psk|xauth|eap|rsa|ntlm)[ \t]++(?=[\"'0-9a-z]){_VALUE}",
    rf"\[{_QUOTE}[\w./-]{{0,128}}?{_NAME}{_QUOTE}\]{_IS}{_VALUE}",
    # a line of .pgpass, which must not be an IPv6 address
    r"^(?![0-9a-f]{1,4}:\d{1,4}:[0-9a-f:]{1,40}$)[^\s:]{1,255}:(?:\*|\d{1,5}):[^\s:]{1,64}:[^\s:]{1,64}:(?P<value>\S++)$",
    # a value that comes before its name, and the data of a Kubernetes Secret, whatever its keys are called
    rf"{_QUOTE}value{_QUOTE}\s{{0,20}}:\s{{0,20}}(?P<value>\"(?>(?:[^\"\\\n]|\\.){{0,8192}})\")\s{{0,80}},\s{{0,80}}"
    rf"{_QUOTE}(?:name|key){_QUOTE}\s{{0,20}}:\s{{0,20}}{_QUOTE}[\w./-]{{0,64}}?{_NAME}",
    r"^(?P<level>[ \t]{0,40})kind:[ \t]{0,8}Secret[ \t]*+\n(?:(?P=level)\S[^\n]{0,400}\n|(?P=level)[ \t][^\n]{0,400}\n){0,40}?"
    r"(?P=level)(?:string)?data:[ \t]*+\n(?P<value>(?>(?:(?P=level)[ \t][^\n]{0,20000}(?:\n|\Z)){1,200}))",
    r"^(?P<level>[ \t]{0,40})(?:string)?data:[ \t]*+\n(?P<value>(?:(?P=level)[ \t][^\n]{0,20000}\n){1,200})"
    r"(?:(?P=level)\S[^\n]{0,400}\n|(?P=level)[ \t][^\n]{0,400}\n){0,4}?(?P=level)kind:[ \t]{0,8}Secret\b",
    r"\"kind\"\s{0,8}:\s{0,8}\"Secret\".{0,2000}?\"(?:string)?data\"\s{0,8}:\s{0,8}\{(?P<value>[^{}]{1,20000})\}",
    r"\"(?:string)?data\"\s{0,8}:\s{0,8}\{(?P<value>[^{}]{1,20000})\}.{0,200}?\"kind\"\s{0,8}:\s{0,8}\"Secret\"",
    # secrets that are recognised by their form
    r"(?<![\w./:-])(?P<value>[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{48})(?![\w/-])",
    r"(?<![A-Za-z0-9])(?P<value>(?-i:A(?:KIA|SIA|ROA|IDA)[A-Z0-9]{12,}+|AIza[\w-]{6,}+|SG\.[\w-]{6,}+\.[\w-]++|ATATT[\w=-]{6,}+|AGE-SECRET-KEY-\w++)"
    r"|(?:gh[a-z]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|wt)-|xox[a-z]-|xapp-|[a-z]{2,5}_(?:live|test)_|whsec_|ya29\.|gocspx-"
    r"|dckr_pat_|hv[sbr]\.|dop_v1_|shp[a-z]{2}_|sq0[a-z]{3}-|lin_api_|[np]rak-|pmak-)[\w.-]{6,}+|(?:npm_|hf_|pypi-|sk-|key-|dapi)[\w-]{20,}+)",
    r"(?<![\w-])(?P<value>eyJ[\w-]{5,}+(?:\.[\w-]*+){1,4})",
    r"(?P<value>\$(?:1|2[abxy]|5|6|y|apr1|argon2\w{0,2})\$[\w./$,=+-]{8,}+)",
    r"hooks\.slack\.com/services/(?P<value>[\w/]++)",
)
_MARK = "-----{} [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
_PEM = re.compile(rf"(?s:(?>{_MARK.format('BEGIN')})(?:.{{0,{PEM_MAX}}}?{_MARK.format('END')}|.{{0,{PEM_MAX}}}))")
_OPENING = re.compile(rf"{_QUOTE}|\[")
_BASE64 = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{12,4000}+={0,2}(?![\w+/=-])")
_FROM_URL_SAFE = str.maketrans("-_", "+/")
_ENCODED = re.compile(rf"(?:{_NAME}|{_OTHER_LANGUAGES})[\"']?\s{{0,4}}[=:]", re.I)
JUMPY_SHARE = 0.35
"""A word counts as random if more than this share of its letters is followed by a change between capitals and small letters. Ours: in
joined words such as CamelCase it is about every fourth letter, in random words every second one."""

_LONG = re.compile(r"(?<![\w+/-])(?<!failure message: )[A-Za-z0-9+/_-]{40,}+=*+")
"""Pattern of long words, which may be random. It excludes AWS's encoded authorization failure message, which is not a secret and must
stay whole, so that AWS can decode it."""


@cache
def _rules() -> tuple[re.Pattern[str], ...]:
    """Compile the patterns, at their first use: this takes tens of milliseconds, which would delay the daemon's start."""
    return tuple(re.compile(pattern, re.I | re.M) for pattern in _PATTERNS)


def tells_of_secret(name: str) -> bool:
    """Whether a field, a variable or a key with this name probably contains a secret."""
    return re.search(rf"{_NAME}{_NOT_ABOUT}$", name.rstrip("=:"), re.I) is not None


def without_secrets(text: str) -> str:
    """Return the text with everything that looks like a secret replaced."""
    if not text.isascii():
        text = text.translate(_INVISIBLE)
    text = _PEM.sub(GONE, text)
    for pattern in _rules():
        text = pattern.sub(_without_value, text)
    return _LONG.sub(_without_random, _BASE64.sub(_without_encoded, text))


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    if not value or value.startswith(GONE):
        return match[0]
    opening, begin = _OPENING.match(value), match.start()
    before, behind = match[0][: match.start("value") - begin], match[0][match.end("value") - begin :]
    return before + (opening[0] if opening else "") + GONE + behind


def _without_encoded(match: re.Match[str]) -> str:
    """Replace a Base64 word if its decoded text contains the name of a secret and a value."""
    word = match[0]
    standard = word.translate(_FROM_URL_SAFE)
    try:
        text = b64decode(standard + "=" * (-len(word) % 4)).decode()
    except (ValueError, UnicodeDecodeError):
        return word
    if text.isprintable() and _ENCODED.search(text):
        return GONE
    return word


def _without_random(match: re.Match[str]) -> str:
    word = match[0]
    is_mixed = word.lower() != word != word.upper() and (any(map(word.__contains__, "0123456789")) or _is_jumpy(word))
    is_path = word.startswith("/") or word.count("/") * 10 > len(word)
    if is_mixed and not is_path:
        return GONE
    return word


def _is_jumpy(word: str) -> bool:
    """Whether capitals and small letters alternate so often that the word is probably random."""
    letters = [letter.isupper() for letter in word if letter.isalpha()]
    changes = sum(before != after for before, after in pairwise(letters))
    return changes > JUMPY_SHARE * len(letters)
