#!/usr/bin/env bash
# Build the image and the chart of another commit, for `make cluster`: image_before.sh OUTPUT [COMMIT] (default: the one before this).
# OUTPUT gets vpc-ipamd-ARCH.tar, chart and COMMIT, the commit's hash; nothing is built if they are of that commit already. It needs what
# `make image` needs, and takes the base, the wheels and the reference plugins that `make image` has put into build/image.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
cannot() { echo "image_before: $1" >&2; exit 1; }
commit=$(git rev-parse --verify --quiet "${2:-HEAD~1}^{commit}") || cannot "no commit ${2:-HEAD~1}: this is no clone, or a shallow one"
arch=$(dpkg --print-architecture)
[ "$(cat "$output/COMMIT" 2>/dev/null)" = "$commit" ] && exit 0
[ -d "build/image/$arch" ] || cannot "no build/image/$arch: \`make image\` makes it"
mkdir -p "$(dirname "$output")"
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/source/build/image" "$work/out"
git archive "$commit" | tar -x -C "$work/source"
ln -s "$PWD/.venv" "$work/source/.venv"
cp -al "build/image/$arch" "$work/source/build/image/$arch"
cp -al "build/image/base-$arch.tar" "$work/out/"
if ! git diff --quiet "$commit" -- cni_plugin tools/build_plugin.sh tools/fetch_micropython.sh; then
    [ ! -d build/micropython ] || cp -a build/micropython "$work/source/build/micropython"
    rm "$work/source/build/image/$arch/plugin/vpc-cni" # a link to ours
    (cd "$work/source" && tools/build_plugin.sh build/vpc-cni) >/dev/null || cannot "the plugin of $commit could not be built"
    install -m 0755 "$work/source/build/vpc-cni" "$work/source/build/image/$arch/plugin/vpc-cni"
fi
OUT=$work/out "$work/source/tools/image.sh" build >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; cannot "the image of $commit could not be built"; }
rm -rf "$output"
mkdir "$output"
mv "$work/out/vpc-ipamd-$arch.tar" "$work/source/manifests/chart" "$output/"
echo "$commit" >"$output/COMMIT"
echo "image_before: $output, of $(git show --no-patch --format='%h %s' "$commit")"
