#!/usr/bin/env bash
# Unpack another containerd of Debian's, for the lab's nodes only: fetch_containerd.sh [1.7|2]
#   1.7: trixie's (it has GetContainerEvents) into build/containerd-1.7
#   2:   forky's (2.1 or later: it asks CNI STATUS for the node's condition) into build/containerd-2
#
# The machine's apt is not touched: sources, lists, cache and the list of installed packages are private and temporary, and the
# archive's signature is checked with Debian's keyring as apt always does. runc stays the machine's: the shim finds it on PATH.
# Exits 0 when it is there; otherwise says in one sentence why not and exits 1: the tests that need it are then skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-1.7}
target=build/containerd-$version
case $version in
    1.7) suite=trixie ;;
    2) suite=forky ;;
    *) echo "fetch_containerd: $version: known are 1.7 and 2" >&2; exit 2 ;;
esac
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
tools=(containerd containerd-shim-runc-v2 ctr)

[ -x "$target/containerd" ] && exit 0
cannot() { echo "fetch_containerd: $1; tests on a real containerd $version are skipped" >&2; exit 1; }

for tool in apt-get dpkg-deb; do command -v "$tool" >/dev/null || cannot "no $tool here"; done
[ -r "$keyring" ] || cannot "no $keyring here (package debian-archive-keyring)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,preferences,state/lists/partial,cache/archives/partial,deb,root}
: >"$work/status"
cat >"$work/suite.sources" <<SOURCES
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite
Components: main
Signed-By: $keyring
SOURCES
apt=(apt-get -q
     -o "Dir::Etc::sourcelist=$work/suite.sources" -o "Dir::Etc::sourceparts=$work/parts"
     -o "Dir::Etc::preferences=$work/none" -o "Dir::Etc::preferencesparts=$work/preferences"
     -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache"
     -o APT::Sandbox::User="" -o APT::Update::Error-Mode=any -o Acquire::Languages=none -o Acquire::Retries=1
     -o Acquire::http::Timeout=15 -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)

{ timeout 60 "${apt[@]}" update && (cd "$work/deb" && timeout 120 "${apt[@]}" download containerd); } >"$work/log" 2>&1 \
    || { tail -n 3 "$work/log" >&2; cannot "apt-get could not get Debian $suite's containerd"; }
dpkg-deb -x "$work"/deb/containerd_*.deb "$work/root" || cannot "the package could not be unpacked"
mkdir -p "$work/bin"
for tool in "${tools[@]}"; do
    cp "$work/root/usr/bin/$tool" "$work/bin/" 2>/dev/null || cannot "the package has no $tool"
done
# Built against that suite's libc; on an older one it may not start, and then it is of no use here.
"$work/bin/containerd" --version >/dev/null 2>&1 || cannot "Debian $suite's containerd does not run with this machine's libc"
# Moved into place as one: a second run, or an interrupted one, never sees half of it.
mkdir -p build
staged=$(mktemp -d "$target.XXXXXX")
chmod 755 "$staged"
cp "$work"/bin/* "$staged/"
mv -T "$staged" "$target" 2>/dev/null || { rm -rf "$staged"; [ -x "$target/containerd" ]; }
