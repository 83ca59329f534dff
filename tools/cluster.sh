#!/usr/bin/env bash
# Build the programs of `make cluster`'s Kubernetes: cluster.sh OUTPUT. OUTPUT gets kube-apiserver, kube-controller-manager,
# kube-scheduler, kube-proxy, kubelet, kubectl, etcd, coredns and BUILT-FROM (a hash of all that decides them).
#
# Their sources are pinned by tools/cluster/*/go.mod, and every module's hash by go.sum beside it; the compiler is that of
# tools/reference_plugins/plugins.json. kubernetes/go.mod names Kubernetes's own modules, which its source tree has as folders.
# It takes Go, the module proxy, 3 GB of disk and about 12 minutes of a core's time, once; a second run builds nothing.
# Exits 1, and says in one sentence why, if it cannot build here.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
cannot() { echo "cluster: $1" >&2; exit 1; }

pins=$PWD/tools/cluster
toolchain=$(python3 -c 'import json; print(json.load(open("tools/reference_plugins/plugins.json"))["go"])')
from=$(cat tools/cluster.sh "$pins"/*/go.mod "$pins"/*/go.sum "$pins"/*/*.go | sha256sum | cut -d ' ' -f 1)
from+=" $toolchain"
[ "$(cat "$output/BUILT-FROM" 2>/dev/null)" = "$from" ] && exit 0
command -v go >/dev/null || cannot "no Go here, which fetches and builds Kubernetes (any release from 1.21 fetches the pinned one)"

mkdir -p "$(dirname "$output")"
staged=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$staged"' EXIT
export GOTOOLCHAIN=$toolchain GOOS=linux CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOEXPERIMENT=
unset GOROOT GOBIN || true
version=$(sed -n 's/^require k8s\.io\/kubernetes \(v[^ ]*\).*/\1/p' "$pins/kubernetes/go.mod")
stamps=(-X "k8s.io/component-base/version.gitVersion=$version" -X "k8s.io/client-go/pkg/version.gitVersion=$version")
build() { # FOLDER OUTPUT PACKAGE...: at low priority, so that the machine stays usable
    local folder=$1 target=$2
    shift 2
    (cd "$pins/$folder" && timeout -k 5 3000 nice -n 15 go build -trimpath -buildvcs=false -o "$target" \
        -ldflags "-s -w -buildid= ${stamps[*]}" "$@") >"$staged/log" 2>&1 \
        || { tail -n 5 "$staged/log" >&2; cannot "Go could not fetch or build $folder"; }
}
echo "cluster: building Kubernetes $version, etcd and CoreDNS, once"
# shellcheck disable=SC2046  # a list of words
build kubernetes "$staged/" $(sed -n 's/^\t\(k8s\.io\/kubernetes\/cmd\/.*\)$/\1/p' "$pins/kubernetes/go.mod")
build etcd "$staged/etcd" go.etcd.io/etcd/server/v3
build coredns "$staged/coredns" .
rm "$staged/log"
echo "$from" >"$staged/BUILT-FROM"
chmod 0755 "$staged"
# One rename: a second run, or an interrupted one, never leaves half of it.
rm -rf "$output" && mv -T "$staged" "$output"
trap - EXIT
echo "cluster: $output, $(du -sm "$output" | cut -f1) MiB"
