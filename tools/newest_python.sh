#!/usr/bin/env bash
# Run a command of this checkout with the newest Python that Debian and grpcio's wheels have: newest_python.sh MAKE-ARGUMENTS...
#   tools/newest_python.sh unit        tools/newest_python.sh demo
# The first run makes a Debian root in build/newest-python, 1.7 GB with what the tests install. The files that git knows are copied into it, so the checkout
# with its own virtual environment stays as it is. Needs root: the command runs in that root, in a mount namespace of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
cannot() { echo "newest_python: $1" >&2; exit 1; }
suite=forky python=python3.15
root=$PWD/build/newest-python
packages=$python,$python-venv,make,git,ca-certificates,procps,iputils-ping,libsqlite3-0
[ "$(id -u)" -eq 0 ] || cannot "only root can make and enter a root of its own"
if [ ! -x "$root/usr/bin/$python" ]; then
    command -v mmdebstrap >/dev/null || cannot "mmdebstrap is missing: apt-get install mmdebstrap"
    rm -rf "$root" "$root.new"
    mkdir -p build
    # A mirror of this suite that is some weeks behind will do: its lists are signed, though they have expired.
    mmdebstrap --quiet --variant=minbase --include="$packages" --aptopt='Acquire::Check-Valid-Until "false"' \
        "$suite" "$root.new" http://deb.debian.org/debian || cannot "Debian's $suite could not be unpacked"
    mv "$root.new" "$root"
fi
# The certificates and the resolver are this machine's, whatever stands between it and the package indexes.
install -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
install -m 0644 /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/src"
find "$root/src" -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$root/src"
unshare --mount --propagation private /bin/sh -ec '
    root=$1 python=$2
    shift 2
    mount --bind "$root" "$root" # namespaces that are made inside change how their root is shared, which must then be a mount
    for shared in proc sys dev run tmp; do mount --rbind "/$shared" "$root/$shared"; done
    exec chroot "$root" /usr/bin/env -u PYTHONDONTWRITEBYTECODE make -C /src PYTHON="/usr/bin/$python" "$@"
' sh "$root" "$python" "$@"
