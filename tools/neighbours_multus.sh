#!/usr/bin/env bash
# Build the thin plugin of Multus for tests/neighbours/test_multus_net1.py: neighbours_multus.sh CHECKOUT OUTPUT
#
# CHECKOUT is a checkout of github.com/k8snetworkplumbingwg/multus-cni (tried: commit 95a093235, after v4.2): the module proxy does not
# serve that module, but it serves those that it needs. The first build fetches them, about 300 MB, and takes some minutes. Then:
#
#     MULTUS_BINARY=OUTPUT VPC_IPAMD_HEAVY=1 .venv/bin/python -m pytest tests/neighbours/test_multus_net1.py
set -euo pipefail
[ $# = 2 ] || { echo "usage: neighbours_multus.sh CHECKOUT OUTPUT" >&2; exit 2; }
output=$(realpath "$2")
cd "$1"
command -v go >/dev/null || { echo "neighbours_multus: no Go here, which fetches and builds it" >&2; exit 1; }
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off
timeout -k 5 1500 nice -n 15 go build -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output" ./cmd/multus
