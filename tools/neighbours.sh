#!/usr/bin/env bash
# Build programs of other projects that `make neighbours` runs beside the daemon: neighbours.sh OUTPUT
#
# OUTPUT gets istio-installer (Istio's own installer of CNI configuration, with a small main of ours), istio-cni (its plugin) and
# kube-proxy. Their source is pinned by go.mod and go.sum in tools/neighbours and, of kube-proxy, in tools/cluster/kubernetes. Go
# fetches about 500 MB of modules once and compiles for some minutes.
# Multus and Linkerd are not built: the module proxy that our builds use does not serve their modules.
set -euo pipefail
mkdir -p "$1"
output=$(realpath "$1")
cd "$(dirname "$0")/neighbours"
command -v go >/dev/null || { echo "neighbours: no Go here, which fetches and builds them" >&2; exit 1; }
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off
timeout -k 5 1500 nice -n 15 go build -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output/istio-installer" ./installer
timeout -k 5 1500 nice -n 15 go build -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output/istio-cni" istio.io/istio/cni/cmd/istio-cni
cd ../cluster/kubernetes
GOTOOLCHAIN=$(python3 -c 'import json; print(json.load(open("../../reference_plugins/plugins.json"))["go"])')
export GOTOOLCHAIN
timeout -k 5 1500 nice -n 15 go build -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output/kube-proxy" k8s.io/kubernetes/cmd/kube-proxy
echo "neighbours: $output, $(du -sm "$output" | cut -f1) MiB"
