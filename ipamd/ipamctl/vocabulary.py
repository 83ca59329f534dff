"""List the words that may leave the node in a support archive: those of this program, of EC2, of the kernel and of nftables.

Any other word may be anything, even a password, because neither this program nor AWS nor the kernel is known to write it. Case does
not matter. A joined word (`UnauthorizedOperation`) counts if each of its parts is a word.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_WORD = re.compile(r"[A-Za-z0-9]+")
_LETTERS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
MIXED_MAX = 8
"""The largest number of characters of a word with digits that is taken from our source (`ipv4`, `ec2`). Longer ones with digits are
examples of IDs."""

PART_MIN = 2
"""A part of a joined word in our source (`DescribeSubnets`) is taken as a word if it has at least this many letters. The rule for a
joined word in the archive is stricter: each part must have more letters than this, because a random word in upper and lower case
splits into very short parts."""

OTHERS = """
aarch64 able aborted about above absent accept access according account accounting accounts action actions active actual
additional address addresses af again against algorithm all allocation already also amazon amazonaws amount and another ap api
appear appears apply apr argument arm64 arn arp assign association assumed attach attempt attempts attributeerror aug
authenticated authorized availability available aws back bad balancer bandwidth because been before between bits block blocked
boundary bridge broadcast broken bucket busy but by bypass bytes ca cali calico call called caller calls cannot capacity carrier
cause central certain chain chains changed check child children cidr cilium client clock cluster cn cni code codel codes collected
collisions com combination comma comment common complete component compressed compute condition conditions conf configured
confirmed conflict conflicts conflist connect connection connectionerror constant consult contains context continue control
corrupt could count counter cpu crc created cross cstamp ct current currently customer dad daddr data dec decode default delete
denied deny describe descriptor dest destination details device dhcp different direct directories directory disabled disk dnat
document does don dormant down dport drop dropped dst dstnat due dummy dup duplicate during dynamic each east either eks elastic
elements empty enabled encoded endpoint engine ensure entity error errors established ether eu event every exceed exceeded exceeds
exception exec exist exists expected expired explicit explicitly exthdr failed failure fast fault fds feature feb fib field fifo
file filenotfounderror filter firewall first flags flannel flow flowtable flush following for forbidden format forward forwarding
found fq frag fragment free fri from function fwd gateway gc gcc generation generic get given goto gov greater group groups had
handle handling hard has hash have header heartbeat help hook hop host hour hours however icmp icmpv6 id identifier identity if
ifi ifindex iif iifgroup iifkind iifname iiftype il illegal image implementation in inappropriate incorrect index indexerror inet
inetproto info information ingress input insert instance instances insufficient interface internal interrupted interval invalid
invert ioctl ip ip6 ipam ipip is issue istio it item jan jhash job join jul jump jun kernel key keyerror keys kind kindnet known
kubernetes l4proto label large last later latest launch layer le least len length less level like limit limits line linkerd linux
list load local location lock log long loop loopback lost lowerlayerdown machine macvlan made main maintenance malformed managed
mangle many map mar mark martians masquerade match matches max maximum may mc me media memory message messages meta metadata
method mh minimum minutes mismatch missed missing mod modified modify module mon most mq mtu multicast multus must mx name names
namespace nat native ndm neither netdev network never new next nfproto nftrace no node nohandler none noqueue north not nothing
notrack nov null number numgen object objects occurred oct of offload offset oif oifgroup oifkind oifname oiftype on once one only
open operand operation operations option optional or order organizations original oserror osf other out output outside over own
owner packet packets parameter parameters parse part partial path peer pending per perform performed permission permissionerror
permissions permissive permitted pfifo pipe place please policies policy pool port portmap postrouting preempt preferred prefix
prefixlen prerouting present previous principal priority private problem process processing profile proto protocol protocols
provided ptp public python quantile queue quota ra random range rate rather raw reached read reason received recent record
redirect redirects refcnt refused regex region regional reject related release remove replace reply request requested requests
require required requires res1 res2 reset resident resource resources respond response restore result results retry return
returned role root route routing rp rt rule runtimeerror rx sa saddr same sat sbr scope sctp secmark seconds section secure
security see seek send sent sep seq server service session set sets shared should signature since sit size skgid skuid slow smp
snat socket some source south space specified specify sport src srcnat stale start state statement static status still stop string
sts subnet subnets success such sum sun support supported symhash synproxy syntax system table tag tags target tcp temporarily
temporary terminated text than that the their them then there these they this those throttled throttling through thu time timed
timeout timeouterror times to token too tos total tproxy traceback transmits transport trust try tstamp tue tuning tunnel two tx
type typeerror udp udplite unable unassign unauthorized unavailable uncollectable under unexpected unicast unique unknown unless
unprocessed unreachable unrecoverable unspec unsupported until untracked up update updated upgrade us usage use used user users
using valid validation value valueerror values verdict version veth violation virtual vlan vmap vmark volume volumes vpc vpcs vrf
wait waiting want was watches way we weave wed were west what when where which while who whose will window with within without
would write wrong x86 xt yes yet you your zone zones
"""
"""Words that our source does not have, but that EC2, STS, libc, the kernel, nftables, other network plugins, Prometheus and Python
write. Ours: chosen from their messages. A word that is missing here is left out of an archive, so the list need not be complete."""


@cache
def vocabulary() -> frozenset[str]:
    """Return all words, in lower case: OTHERS, and those of our source. The source is read once, which takes a tenth of a second."""
    root = Path(__file__).parents[1]
    words = set(OTHERS.split())
    for path in root.rglob("*.py"):
        if "pb" in path.relative_to(root).parts:
            continue
        for word in _WORD.findall(path.read_text()):
            if word.isalpha():
                words.add(word.lower())
                words.update(part.lower() for part in _LETTERS.findall(word) if len(part) >= PART_MIN)
            elif not word.isdigit() and len(word) <= MIXED_MAX:
                words.add(word.lower())
    return frozenset(words)


@cache
def is_word(text: str) -> bool:
    """Whether a text is a known word, or several known words that are joined (`DescribeSubnets`)."""
    words = vocabulary()
    if text.lower() in words:
        return True
    parts = _LETTERS.findall(text)
    return "".join(parts) == text and all(len(part) > PART_MIN and part.lower() in words for part in parts)
