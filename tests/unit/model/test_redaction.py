r"""What leaves the node: no secret of a wide set, all that support needs, in a time that grows as the text does."""

from __future__ import annotations

import json
import time

import pytest

from ipamd.model.redaction import GONE, without_secrets
from tests.table import each_of

S = "hunter2hunter2"
"""The planted secret, where its form tells nothing."""

BASE64 = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PEM = "-----BEGIN {0}PRIVATE KEY{1}-----\nMIIEow" + "x" * 58 + f"\n{S}\n-----END {{0}}PRIVATE KEY{{1}}-----"

ENCODED = "cGFzc3dvcmQ9c3dvcmRmaXNoLXRhbmdv"
HEX = "9f86d081884c7d659a2feaa0c55ad015"
MIXED = "wJalrXUtnFEMIbKgMDENGcbPxRfiCYzEXqMPLeKe"

BY_NAME = [
    "password: {}", "password={}", "password = '{}'", '"password": "{}"', "password:{}", "PASSWORD: {}", "PassWord={}",
    "passwd={}", "'password': '{}'", 'password="{}"', "password => {}", "password := {}", "password == {}", "password -> {}",
    "pwd={}", "pass: {}", "passphrase: {}", "Passwort: {}", "db.password={}", "db-password: {}", "dbPassword: {}",
    "DB_PASSWORD={}", "PGPASSWORD={}", "export DB_PASS={}", "MYSQL_PWD={}", "token: {}", "access_token={}", "refreshToken: {}",
    "secret: {}", "client_secret={}", "client-secret: {}", "api_key={}", "apikey: {}", "api-key={}", "API Key: {}",
    "x-api-key: {}", "Secret Access Key: {}", "aws_secret_access_key = {}", "aws_session_token={}", "AWS_SECRET_ACCESS_KEY={}",
    "SecretAccessKey: {}", "private_key: {}", "client-key-data: {}", "encryption_key: {}", "AccountKey={};EndpointSuffix=x",
    "psk={}", "jwt={}", "sig={}&x=1", "credentials: {}", '"auth": "{}"', "_auth={}", "//registry.npmjs.org/:_authToken={}",
    "identitytoken: {}", "session_id={}", "JSESSIONID=1; sessionid={}", "https://x/?token={}&b=1",
    "https://x/?X-Amz-Signature={}&b=1", "https://x/?X-Amz-Credential={}%2F20261122&b=1", "https://x/?X-Amz-Security-Token={}",
    "x-amz-security-token: {}", "X-aws-ec2-metadata-token: {}\r\nHost: x", "password%3D{}", "Server=db;Uid=sa;Pwd={};Encrypt=yes",
    "password: `{}`", "\u201cpassword\u201d: \u201c{}\u201d", "password=\u2018{}\u2019", "password\uff1a{}",
    "&quot;password&quot;: &quot;{}&quot;", '\\u0022password\\u0022:\\u0022{}\\u0022', "password=[{}]", "passwords: ['a', '{}']",
    '- name: DB_PASSWORD\n  value: {}', '{{"name": "DB_PASSWORD", "value": "{}"}}', '{{"name": "DB_PASSWORD",\n  "value": "{}"}}',
    '{{"password":\n  "{}"}}', "password='it''s {}'", "password='''{}'''", "password='a\n{}'\n", 'password="a\n{}"\n',
    'password="a\\"{}"', "password={}\nb", "password is {}", 'password "{}"', "machine h\n login u\n password {}",
    "IDENTIFIED BY '{}'", "requirepass {}", 'WITH PASSWORD "{}"', "password: \"{}", "Enter password: {}",
    "2026-11-22 INFO password: {}",
]  # fmt: skip

BLOCKS = [
    "password: |\n  {}\nnext: x", "password: >-\n  a\n\n  {}\nnext: x", "  - secret: |2\n      {}\n  - next: x",
    "password:\n  {}\nnext: x", "passwords:\n  - {}\nnext: x",
    "2026-11-22T10:00:00Z stderr F password: |\n2026-11-22T10:00:00Z stderr F   {}", "token: !!binary {}",
    "INFO password: |\n  {}\nnext: x", "password: |\\n  a\\n  {}", "password:\\n  {}",
]  # fmt: skip

ALONE = ["password: correct horse {}", "  DB_PASSWORD={}&more;{}", "PGPASSWORD=a,{}", "- token: a {}"]
"""Lines that are nothing else: all of it."""

OPTIONS = [
    "--password {}", "--password={}", "-password {}", "--db-password '{}'", "--token {}", '["--password", "{}"]',
    "['--token', '{}']", "- --password\n- {}", "- --password={}", "--secret-key {}", "-p {}", "mysql -u root -p{}",
    "sshpass -p {} ssh x", "curl -u me:{} http://x/", "--user me:{}", "--certificate-key {}", 'login --password "{}"',
]  # fmt: skip

HEADERS = [
    "Authorization: Basic {}", "Authorization: Bearer {}", "authorization: token {}", "Proxy-Authorization: Basic {}",
    "Bearer {}", "curl -H 'Authorization: Bearer {}' http://10.0.0.5/", "Cookie: a=b; c={}", "Set-Cookie: id={}; Path=/",
    "authorization=Basic {}=", "{{'Authorization': 'Basic {}', 'Host': 'x'}}",
    "Authorization: AWS4-HMAC-SHA256 Credential=x/20261122, Signature={}", "bearer: {}",
]  # fmt: skip

XML = [
    "<password>{}</password>", "<Password>{}</Password>", "<SecretAccessKey>{}</SecretAccessKey>",
    "<db:password type='x'>{}</db:password>", "<a password=\"{}\"/>", "<property name='password' value='{}'/>",
    "<password>\n  {}\n</password>", "<password><![CDATA[{}]]></password>", "<key>password</key>\n<string>{}</string>",
    '<entry key="db.password">{}</entry>', "&lt;password&gt;{}&lt;/password&gt;",
    "\\u003cpassword\\u003e{}\\u003c/password\\u003e", "<SessionToken>{}</SessionToken>",
]  # fmt: skip

URLS = [
    "http://me:{}@proxy:3128/x", "postgres://me:a@{}@db/x", "postgres://me:a/{}@db/x", "redis://:{}@db:6379",
    "https://{}xx@github.com/a", "me:{}@tcp(db:3306)/x", "amqp://me:{}@10.0.0.5/",
]  # fmt: skip

FORMS = [
    "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "gho_16C7e42F292c6912E7",
    "ghs_16C7e42F292c", "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv", "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOHcbrzqgy",
    "xoxp-1234-5678-abcdef", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "rk_test_4eC39HqLyjWDarjtT1zdp7dc",
    "AIzaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe", "glpat-ABCdefGHIjkl12345678", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2ln", BASE64, "dckr_pat_abcdefghijklmnop", "hvs.CAESIabcdefghijklmnop",
    "SG.abcdefghijk.lmnopqrstuv", "ya29.a0AfH6SMBabcdef", "$2y$10$abcdefghijklmnopqrstuv", "$6$salt1234$abcdefghijklmnopqrstuv/",
    "sk-proj-abcdefghijkl1234567890", "pypi-AgEIcHlwaS5vcmcCJDU3", "whsec_abcdefghijklm",
]  # fmt: skip

OTHERS = [
    "bindpw {}", "bindpw: {}", "bind_pw={}", "rocommunity {}", "snmp-server community {} RO", "com2sec readonly default {}",
    '10.0.0.1 10.0.0.2 : PSK "{}"', "10.0.0.1 : PSK {}", ': XAUTH "{}"', 'annotations["x/secret"]={}', "annotations['x/token'] = '{}'",
    '{{"value": "{}", "name": "DB_PASSWORD"}}', '{{"value":"{}","key":"api_key"}}', "kind: Secret\ndata:\n  tls.example: {}\n",
    "apiVersion: v1\ndata:\n  a: {}\n  b: {}\nkind: Secret\nmetadata:\n  name: x\n", '{{"kind": "Secret", "data": {{"tls": "{}"}}}}',
    '{{"data": {{"tls": "{}"}}, "kind": "Secret"}}', "pass\u200bword: {}", "p\u00adassword={}", "\u2060pass\ufeffword: {}",
    "Kennwort: {}",
    "contrase\u00f1a: {}", "mot de passe: {}", "senha={}", "wachtwoord: {}", "\u043f\u0430\u0440\u043e\u043b\u044c: {}",
    "\u5bc6\u7801\uff1a{}", "\u30d1\u30b9\u30ef\u30fc\u30c9: {}", "has\u0142o: {}", "l\u00f6senord={}", "heslo: {}",
]  # fmt: skip
"""Names and forms of other programs and languages."""

LINES = ["db.corp:5432:orders:app:{}", "*:*:*:postgres:{}"]
"""Lines of .pgpass."""

PLANTED = [form.format(S, S) for form in (*BY_NAME, *BLOCKS, *OPTIONS, *HEADERS, *XML, *URLS)]

KEPT = [
    "10.0.0.5 default/token-server c1 ClientToken=ab12 IP_COOLDOWN_PERIOD=30 eni-08133287637ebdcd9 02:00:00:00:00:01",
    "c0ffee" * 10 + "beef eni-attach-0a1b2c3d4e5f60718 subnet-0a1b2c3d4e5f60718 i-0a1b2c3d4e5f60718 192.168.0.0/16 fe80::1/64",
    "UnauthorizedOperation: You are not authorized to perform this operation (ec2:AssignPrivateIpAddresses)",
    "Encoded authorization failure message: " + "aB3_-" * 400,
    "InsufficientFreeAddressesInSubnet RequestLimitExceeded RequestID: 7a62c49f-347e-4fc4-9331-6e8eEXAMPLE HTTP 403",
    "sha256:" + "0123456789abcdef" * 4 + " image repo/ipamd:v1@sha256:" + "fedcba9876543210" * 4,
    "AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
    "http://10.0.0.5:61678/metrics http://169.254.169.254/latest/meta-data/ https://ec2.us-west-2.amazonaws.com/",
    "-A INPUT -p tcp -m tcp --dport 53 -j ACCEPT; docker run -p 8080:80; mkdir -p /run/x; pods without a token",
    '{"at":"2026-11-22T10:00:00Z","level":"INFO","message":"ADD default/web 10.0.0.5","container_id":"' + "ab12" * 16 + '"}',
    "2001:db8:1:2:abcd::5/128 2600:1F14:0001:0002:ABCD:0000:0000:0005 via fe80::1 dev eni0a1b2c3d4e5 [fd00:ec2::254]:80 fd00::ac:2",
    "http://[fd00:ec2::23]:80/v1/pods GET [2001:db8::5]:61678 ::ffff:10.0.0.5 2001:db8:1:2:abcd::/80 v6if0 fe80::1%eth0",
    "oifname \"eni0a1b2c3d4e5\" ip saddr 10.0.0.5 counter packets 5 bytes 420 drop comment \"vpc-ipamd\"",
    "net/ipv4/conf/enikey0/rp_filter = 1\nipamd_ec2_attempts_total{api=\"AttachNetworkInterface\",outcome=\"ok\"} 3",
    "the credentials were refused; authentication failed; basic checks; bearer token refused; compass: north; author: x; keys: 3",
    "/usr/lib/python3/dist-packages/ipamd/service/pool/provisioner.py line 2, /var/log/pods/kube-system_vpc-ipamd-x_UUID1/ipamd/0.log",
]  # fmt: skip


@each_of(PLANTED)
def test_a_secret_that_its_name_tells_of_is_gone(planted: str) -> None:
    """Whatever syntax the name is in: also in a JSON string, in JSON in JSON, and in the middle of a log line."""
    inside = json.dumps(planted)
    for text in (
        planted,
        f"before\n{planted}\nafter",
        f"10.0.0.5 {inside}",
        json.dumps({"detail": json.dumps({"message": planted})}),
    ):
        clean = without_secrets(text)
        assert S not in clean, clean
        assert GONE in clean


@each_of(OTHERS)
def test_a_secret_of_other_programs_and_languages_is_gone(form: str) -> None:
    """Each in text, and on a line of its own."""
    planted = form.format(S, S)
    for text in (planted, f"before\n{planted}\nafter"):
        clean = without_secrets(text)
        assert S not in clean, clean
        assert GONE in clean


@each_of([ENCODED, HEX, MIXED])
def test_a_secret_that_is_coded_is_gone(secret: str) -> None:
    """Base64 of a name and a value, 32 digits, and 40 letters without a digit."""
    for text in (secret, f"the word {secret} here", json.dumps({"x": secret})):
        assert secret not in without_secrets(text)


@each_of(LINES)
def test_a_line_of_pgpass_is_gone(form: str) -> None:
    """An address of IPv6 is none."""
    assert S not in without_secrets(f"before\n{form.format(S)}\nafter")
    for address in ("2001:1234:1:2:3:4:5:6", "fd00:1:2:3:4::5", "10.0.0.5:53:udp"):
        assert without_secrets(address) == address


@each_of(ALONE)
def test_a_line_with_nothing_else_is_gone_whole(line: str) -> None:
    """A value of YAML may have blanks, one of an environment any character."""
    planted = line.format(S, S)
    for text in (planted, f"before\n{planted}\nafter", f"2026-11-22T10:00:00Z stderr F {planted}\r\n"):
        assert S not in without_secrets(text)


@each_of(FORMS)
def test_a_secret_that_its_form_tells_of_is_gone(secret: str) -> None:
    """Without any word beside it, in prose, in JSON and in a path of a URL."""
    for text in (secret, f"the key {secret} was denied", json.dumps({"x": secret}), f"x={secret},y", f"http://x/?q={secret}&r=1"):
        clean = without_secrets(text)
        assert secret not in clean, clean
        assert secret[-10:] not in clean, clean


@pytest.mark.parametrize("kind", [("", ""), ("RSA ", ""), ("EC ", ""), ("ENCRYPTED ", ""), ("OPENSSH ", ""), ("PGP ", " BLOCK")])
def test_a_private_key_is_gone(kind: tuple[str, str]) -> None:
    """Over lines, as one JSON string, twice, and without its last line; what is around it stays."""
    pem = PEM.format(*kind)
    for text in (pem, json.dumps(pem), f"{pem}\n10.0.0.5\n{pem}", pem.rpartition("\n")[0]):
        assert S not in without_secrets(f"a {text} z")
    assert without_secrets(f"10.0.0.5\n{pem}\n10.0.0.6\n{pem}\n10.0.0.7") == f"10.0.0.5\n{GONE}\n10.0.0.6\n{GONE}\n10.0.0.7"
    endless = pem.rpartition("\n")[0] + "\n" + "10.0.0.5 attached\n" * 5000
    assert without_secrets(endless).endswith("10.0.0.5 attached\n" * 3000), "a key without an end takes not all of a log along"


@each_of(KEPT)
def test_what_support_needs_stays(text: str) -> None:
    """To the last character; also beside a secret."""
    assert without_secrets(text) == text
    assert without_secrets(f"password={S} {text}") == f"password={GONE} {text}"
    assert without_secrets(f"{text}\npassword: {S}\n{text}") == f"{text}\npassword: {GONE}\n{text}"


def test_json_stays_json() -> None:
    """A program can still read what was taken from: quotes and escapes stay in pairs, and the neighbours are whole."""
    given = {
        "password": f'a"b\\{S}',
        "detail": json.dumps({"token": S, "eni": "eni-1"}),
        "message": f'x password={S}" y',
        "address": "10.0.0.5",
    }
    for text in (json.dumps(given), json.dumps(given, indent=2), json.dumps(given, separators=(",", ":"))):
        read = json.loads(without_secrets(text))
        assert S not in json.dumps(read)
        assert read["address"] == "10.0.0.5"
        assert json.loads(read["detail"]) == {"token": GONE, "eni": "eni-1"}


def test_what_was_taken_out_once_stays_as_it_is() -> None:
    """The daemon's own answers are clean already, and go through it again."""
    once = without_secrets("\n".join(PLANTED))
    assert without_secrets(once) == once


LONG_WORDS = [
    "a", "a.b-c_", "secret", "passw", "eyJ", "a://", "a://b:", '"', "\\", '\\"', "token=", "token ", "token\n", "token='",
    "<token>", "<token ", "-----BEGIN PRIVATE KEY-----", "password: |\n ", 'token="\n', "--token ", "-token-", "mysql ",
    "login a password ", "&quot;", "token\\\"", "[", "Aa1", "basic ", "bearer ", "$1$", "a:b@", " ", "\n", "password: >\n\n",
    "secret:\n", "x stderr F ", "://a:", "authorization: \\", "kennwort", "kennwort: ", "kind: Secret\n", "data:\n a\n",
    '"kind": "Secret" ', '"data": {', '"value": "a", ', "psk a ", "com2sec a ", "community ", "cGFzc3dvcmQ9", '["a/', "a:1:b:c:d\n",
    "\u200b", "\u5bc6\u7801",
]  # fmt: skip


@pytest.mark.parametrize("word", LONG_WORDS)
def test_the_time_grows_as_the_text_does(word: str) -> None:
    """Sixteen times the text takes about sixteen times as long, not the 256 times of what looks at a word from each of its letters."""
    took_s = []
    for size in (4 << 10, 64 << 10):
        text = word * (size // len(word))
        began_s = time.thread_time()
        without_secrets(text)
        took_s.append(time.thread_time() - began_s)
    assert took_s[1] < max(took_s[0], 0.01) * 16 * 5, took_s
