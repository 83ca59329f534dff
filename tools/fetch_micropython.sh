#!/usr/bin/env bash
# Unpack MicroPython's source, as Debian has it, into build/micropython/source: `vpc-cni` as one static file is built on it
# (docs/adr/0020). One version, known by its SHA-256, wherever it comes from; nothing of it is committed. Runs no command as root.
# Exits 0 when it is there; otherwise says in one sentence why not and exits 1.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.25.0 # of Debian 13 (trixie), so that it stays in the archive for as long as that release does
file=micropython_$version+ds.orig.tar.xz
sha256=7b25be99a502f070b2de81dafc08da7051d992325d6e67daa9045a918fffdbea
urls=("http://deb.debian.org/debian/pool/main/m/micropython/$file"
      "https://snapshot.debian.org/archive/debian/20250901T000000Z/pool/main/m/micropython/$file")
target=build/micropython/source

[ "$(cat "$target/.sha256" 2>/dev/null)" = "$sha256" ] && exit 0
cannot() { echo "fetch_micropython: $1" >&2; exit 1; }
command -v xz >/dev/null || cannot "no xz here (package xz-utils)"

mkdir -p build/micropython
work=$(mktemp -d build/micropython/.fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT

download() { # URL
    if [ -x /usr/lib/apt/apt-helper ]; then # everywhere that has apt, and it goes through the proxy that apt is set up for
        timeout 120 /usr/lib/apt/apt-helper -o Acquire::http::Timeout=20 -o APT::Sandbox::User="" download-file "$1" "$work/$file"
    else
        curl --fail --silent --show-error --location --max-time 120 --output "$work/$file" "$1"
    fi
}
is_it() { echo "$sha256  $work/$file" | sha256sum --check --status; }
for url in "${urls[@]}"; do
    download "$url" >"$work/log" 2>&1 && is_it && break
done
is_it 2>/dev/null || { tail -n 2 "$work/log" >&2; cannot "$file could not be fetched, or is not the file that is expected"; }

# Without what other ports and its own tests need.
mkdir "$work/source"
tar -xf "$work/$file" -C "$work/source" --strip-components=1 \
    --exclude='*/ports/*' --exclude='*/docs/*' --exclude='*/tests/*' --exclude='*/drivers/*' || cannot "$file could not be unpacked"
echo "$sha256" >"$work/source/.sha256"
# Moved into place as one: a second run, or an interrupted one, never sees half of it.
rm -rf "$target"
mv -T "$work/source" "$target"
