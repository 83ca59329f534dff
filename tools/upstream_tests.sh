#!/usr/bin/env bash
# Fetch and build the integration tests of amazon-vpc-cni-k8s, for `make incumbent-tests`: upstream_tests.sh OUTPUT
#
# OUTPUT gets tests/SUITE.test for each suite of its test/integration, agent/NAME for each program of its test/agent/cmd, all static, and
# the folder testdata, which some tests read.
# Both are Go modules, which go verifies by the public checksum database. They and what they import are fetched once (about 2 GB), and
# compiled for half an hour of a core. Nothing of them enters the repository.
set -euo pipefail
tests=github.com/aws/amazon-vpc-cni-k8s@v1.23.1
agent=github.com/aws/amazon-vpc-cni-k8s/test/agent@v0.0.0-20231212223725-21c4bd73015b
output=$(realpath -m "$1")
[ "$(cat "$output/versions" 2>/dev/null)" = "$tests $agent" ] && [ -d "$output/testdata" ] && exit 0
command -v go >/dev/null || { echo "upstream_tests: no Go here, which fetches and builds them" >&2; exit 1; }
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The module's files in a folder of its own, because go builds tests only of the module that it stands in.
unpack() {
    local directory
    directory=$(cd "$work" && timeout -k 5 600 go mod download -json "$1" |
        python3 -c 'import json, sys; print(json.load(sys.stdin).get("Dir", ""))')
    [ -d "$directory" ] || { echo "upstream_tests: the module proxy does not serve $1" >&2; exit 1; }
    cp -r "$directory" "$work/$2"
    chmod -R u+w "$work/$2"
}

unpack "$tests" tests
unpack "$agent" agent
rm -rf "$output/tests" "$output/agent" "$output/testdata" "$output/versions"
mkdir -p "$output/tests" "$output/agent"
(cd "$work/agent" && timeout -k 5 1800 nice -n 15 go build -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output/agent/" ./cmd/...)
for suite in "$work"/tests/test/integration/*/; do
    name=$(basename "$suite")
    compgen -G "$suite*suite_test.go" >/dev/null || continue
    (cd "$work/tests" && timeout -k 5 3600 nice -n 15 \
        go test -c -p 2 -trimpath -buildvcs=false -ldflags '-s -w' -o "$output/tests/$name.test" "./test/integration/$name")
done
cp -r "$work/tests/testdata" "$output/testdata"
echo "$tests $agent" >"$output/versions"
echo "upstream_tests: $output, $(find "$output/tests" -name '*.test' | wc -l) suites, $(du -sm "$output" | cut -f1) MiB"
