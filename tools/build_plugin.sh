#!/usr/bin/env bash
# Build `vpc-cni` as one static file: build_plugin.sh OUTPUT [native|arm64]. The sources of cni_plugin/ are frozen into MicroPython
# with the port of cni_plugin/micropython (docs/adr/0020). Two builds of the same sources give the same bytes, in whatever folder.
#   native: for this machine, on musl (package musl-tools)
#   arm64:  for arm64 on another machine, on glibc (packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)
# Exits 1, and says in one sentence why, if it cannot be built here; nodes then get the interpreted plugin (cni_plugin/build.py).
set -euo pipefail
output=$(realpath -m "$1") target=${2:-native}
cd "$(dirname "$0")/.."
cannot() { echo "build_plugin: $1; \`make plugin\` as root installs what is missing" >&2; exit 1; }

case $target in
    native) compiler=musl-gcc strip=strip size=size ;;
    arm64) compiler=aarch64-linux-gnu-gcc strip=aarch64-linux-gnu-strip size=aarch64-linux-gnu-size ;;
    *) echo "build_plugin: $target: known are native and arm64" >&2; exit 2 ;;
esac
for tool in "$compiler" "$strip" gcc make flock python3; do command -v "$tool" >/dev/null || cannot "no $tool here"; done

mkdir -p build/micropython "$(dirname "$output")"
exec 9>build/micropython/lock
flock 9 # one build at a time: they share MicroPython's source and its compiler
tools/fetch_micropython.sh || cannot "no source of MicroPython"

top=$PWD/build/micropython/source port=$PWD/cni_plugin/micropython
# Objects are kept for the next build; make does not see that flags or the compiler changed, so the folder's name does.
key=$(cat "$port"/* "$top/.sha256" tools/build_plugin.sh <("$compiler" --version) | sha256sum | cut -c1-12)
objects=${OBJECTS:-$PWD/build/micropython/$target-$key}
find build/micropython -maxdepth 1 -name "$target-*" ! -path "*-$key" -exec rm -rf {} +
# MicroPython's version header would ask git and the clock.
export MICROPY_GIT_TAG=source MICROPY_GIT_HASH=debian SOURCE_DATE_EPOCH=0 PYTHONDONTWRITEBYTECODE=1 LC_ALL=C
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export MAKEFLAGS=-j$(nproc)
{ make -C "$top/mpy-cross" PYTHON=python3 &&
  make -C "$port" TOP="$top" BUILD="$objects" PYTHON=python3 CC="$compiler" STRIP="$strip" SIZE="$size"
} >"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "build_plugin: the build failed" >&2; exit 1; }

# One rename: who starts the plugin at this moment gets the old file or the new one, whole.
install -m 0755 "$objects/vpc-cni" "$output.tmp"
mv -f "$output.tmp" "$output"
echo "build_plugin: $output, $(stat -c %s "$output") bytes, needs no other file"
