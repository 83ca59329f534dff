#!/usr/bin/env bash
# Build the CNI plugins that sandboxes need beside ours: build_reference_plugins.sh OUTPUT [amd64|arm64]
# (default: this machine's). OUTPUT gets loopback, portmap, bandwidth, tuning, SHA256SUMS and LICENCES.
#
# Their source is pinned by tools/reference_plugins/go.mod and go.sum, the compiler's version by plugins.json beside them, which also has
# the SHA-256 of every file that must come out: the build is repeatable, static, and for both architectures on either.
# Exits 1, and says in one sentence why, if it cannot build here; the lab then has Debian's (containernetworking-plugins, 1.1.1).
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
cannot() { echo "build_reference_plugins: $1" >&2; exit 1; }

pins=$PWD/tools/reference_plugins/plugins.json
command -v python3 >/dev/null || cannot "no python3 here"
pin() { python3 -c 'import json, sys; found = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("/"): found = found[key]
print("\n".join(f"{sum}  {name}" for name, sum in sorted(found.items())) if isinstance(found, dict) else found)' "$pins" "$1"; }
case ${2:-$(uname -m)} in
    amd64 | x86_64) arch=amd64 ;;
    arm64 | aarch64) arch=arm64 ;;
    *) echo "build_reference_plugins: ${2:-$(uname -m)}: known are amd64 and arm64" >&2; exit 2 ;;
esac
sums=$(pin "sha256/$arch")

[ -f "$output/SHA256SUMS" ] && [ "$(cat "$output/SHA256SUMS")" = "$sums" ] && (cd "$output" && sha256sum --quiet -c SHA256SUMS) && exit 0
command -v go >/dev/null || cannot "no Go here, which fetches and builds them (any release from 1.21 fetches the pinned one)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/plugins"
export GOTOOLCHAIN; GOTOOLCHAIN=$(pin go)
export GOOS=linux GOARCH=$arch CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0 GOFLAGS=-mod=readonly GOWORK=off GOEXPERIMENT=
unset GOROOT GOBIN || true
packages=$(sed -n 's/^\tgithub\.com\(.*\/plugins\/\(main\|meta\)\/.*\)$/github.com\1/p' tools/reference_plugins/go.mod)
# shellcheck disable=SC2086  # a list of words
(cd tools/reference_plugins && timeout 300 go build -trimpath -buildvcs=false -o "$work/plugins/" \
    -ldflags "-s -w -buildid= -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v$(pin version)" \
    $packages) >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; cannot "Go could not fetch or build them"; }
# shellcheck disable=SC2086
(cd tools/reference_plugins && go list -deps -f '{{with .Module}}{{.Path}} {{.Dir}}{{end}}' $packages) | sort -u | while read -r module folder; do
    for text in "$folder"/LICENSE* "$folder"/NOTICE*; do [ ! -f "$text" ] || printf '== %s, %s\n\n%s\n\n' "$module" "${text##*/}" "$(cat "$text")"; done
done >"$work/plugins/LICENCES"
printf '%s\n' "$sums" >"$work/plugins/SHA256SUMS"
(cd "$work/plugins" && sha256sum loopback portmap bandwidth tuning | sort -k2 >"$work/built")
(cd "$work/plugins" && sha256sum --quiet -c SHA256SUMS) >&2 || { cat "$work/built" >&2; cannot "what was built is not what plugins.json names"; }
chmod 0755 "$work/plugins" && chmod 0755 "$work"/plugins/{loopback,portmap,bandwidth,tuning}
# One rename: a second run, or an interrupted one, never leaves half of it.
mkdir -p "$(dirname "$output")"
staged=$(mktemp -d "$output.XXXXXX")
cp -p "$work"/plugins/* "$staged/" && chmod 0755 "$staged"
rm -rf "$output" && mv -T "$staged" "$output"
echo "build_reference_plugins: $output, $(du -sk "$output" | cut -f1) KiB for $arch"
