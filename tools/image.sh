#!/usr/bin/env bash
# Build the image with Debian's tools, without Docker and without another registry: image.sh STEP...
#   context   build/image/ARCH: wheels by the lock's hashes, the static plugin (needs `make plugin`, or `make plugin-arm64`), the
#             reference plugins (needs Go and its module proxy, unless they are there: the DaemonSet is not whole without them)
#   base      build/image/base-ARCH.tar: Debian, by mmdebstrap, at one SOURCE_DATE_EPOCH; kept once it is there
#   build     the image, as build/image/vpc-ipamd-ARCH.tar (an OCI archive), with digest, list of contents and sizes beside it
#   sbom      build/sbom.json (of the other architecture: build/sbom-ARCH.json): CycloneDX, Python and Debian packages of that image
#   all       these four, in this order (the default)
# ARCH=amd64 or arm64 (default: this machine's); the other one is built under QEMU (tools/foreign.py). MIRROR=URL: where the base
# comes from, for instance a date at snapshot.debian.org. SCRATCH=DIR: where trees are while they are built: 1 GB of many small files,
# so by default in memory where 4 GB of /dev/shm are free. OUT=DIR: where bases and images are, instead of build/image. Runs as root.
set -euo pipefail
cd "$(dirname "$0")/.."
native=$(dpkg --print-architecture) out=${OUT:-build/image} venv=build/heavy/venv
arch=${ARCH:-$native} mirror=${MIRROR:-} parent=build/image
[ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 || echo 0)" -lt 4000000 ] || parent=/dev/shm
mkdir -p "$out"
scratch=$(mktemp -d "$(realpath "${SCRATCH:-$parent}")/vpc-ipamd-image.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
chmod 755 "$scratch" # mmdebstrap's own users go through it
export SOURCE_DATE_EPOCH=1767225600 # 2026-01-01: every file's newest time in the image, and the image's own
platforms=() plugin=build/vpc-cni libc=musl bom=build/sbom.json context=build/image/$arch
case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "image: ARCH=$arch: known are amd64 and arm64" >&2; exit 2 ;;
esac
[ "$arch" = "$native" ] || plugin=build/vpc-cni-$arch libc=libc6-dev-$arch-cross bom=build/sbom-$arch.json
for glibc in 2014 _2_17 _2_28 _2_34; do platforms+=(--platform "manylinux${glibc}_$machine"); done
cannot() { echo "image: $1" >&2; exit 1; }
tool() { command -v "$1" >/dev/null || cannot "no $1 here: \`tools/setup.sh image\` installs it"; }
in_store() { buildah --root "$scratch/store" --runroot "$scratch/run" --storage-driver "${STORAGE_DRIVER:-vfs}" "$@"; }

context() {
    [ -e "$plugin" ] || cannot "no $plugin: \`make plugin\` (for arm64 elsewhere: \`make plugin-arm64\`) builds it"
    tools/build_reference_plugins.sh "$context/plugins" "$arch" >/dev/null \
        || cannot "no reference plugins, without which the DaemonSet's conflist is not whole: Go and its module proxy must be there"
    rm -rf "$context/wheels" "$context/plugin"
    mkdir -p "$context/wheels" "$context/plugin"
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
        --python-version 3.11 --implementation cp "${platforms[@]}" --dest "$context/wheels" \
        --requirement manifests/image/requirements.lock --requirement manifests/image/build.lock
    install -m 0755 "$plugin" "$context/plugin/vpc-cni"
    cat build/micropython/source/LICENSE "/usr/share/doc/$libc/copyright" >"$context/plugin/vpc-cni.licences"
}

base() {
    make_base "$arch"
    make_base "$native" # runs what the build has to run
}

make_base() ( # ARCH
    exec 9>"$out/base-$1.lock"
    flock 9 # two images at once may need the same
    [ -e "$out/base-$1.tar" ] && return 0
    tool mmdebstrap
    local foreign=()
    [ "$1" = "$native" ] || foreign=(.venv/bin/python tools/foreign.py "$1")
    # `essential` has no apt, but dpkg with its list of what is installed, which scanners read. mmdebstrap's own check for QEMU asks
    # for one more package, and where none of the architecture's programs runs, the first package says so.
    TMPDIR=$scratch "${foreign[@]}" mmdebstrap --quiet --skip=check/qemu --architectures="$1" --variant=essential \
        --include=python3.11-minimal,libpython3.11-stdlib,libnftables1,libstdc++6 --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        bookworm "$out/base-$1.tmp.tar" ${mirror:+"$mirror"} 2>"$scratch/log" || { cat "$scratch/log" >&2; cannot "no base for $1"; }
    mv "$out/base-$1.tmp.tar" "$out/base-$1.tar"
)

import_base() { # ARCH NAME; prints the reference by digest
    local container
    container=$(in_store from --arch "$1" scratch)
    in_store add --quiet "$container" "$out/base-$1.tar" / >/dev/null
    in_store commit --quiet --rm --timestamp "$SOURCE_DATE_EPOCH" --format oci "$container" "$2" >/dev/null
    echo "localhost/$2@$(in_store images --format '{{.Digest}}' "localhost/$2")"
}

build() {
    tool buildah
    local base builder
    base=$(import_base "$arch" vpc-ipamd-base) builder=$base
    [ "$arch" = "$native" ] || builder=$(import_base "$native" vpc-ipamd-builder)
    in_store build --quiet --isolation chroot --layers=false --format oci --timestamp "$SOURCE_DATE_EPOCH" --arch "$arch" \
        --ignorefile manifests/Dockerfile.dockerignore --build-arg "BASE=$base" --build-arg "BUILDER=$builder" \
        --build-arg "TARGETARCH=$arch" --file manifests/Dockerfile --tag vpc-ipamd . >/dev/null
    rm -f "$out/vpc-ipamd-$arch.tar"
    in_store push --quiet vpc-ipamd "oci-archive:$out/vpc-ipamd-$arch.tar:vpc-ipamd"
    .venv/bin/python tools/image_contents.py "$out/vpc-ipamd-$arch.tar" "$out/contents-$arch.txt" "$base"
}

sbom() {
    local root=$scratch/rootfs
    mkdir -p "$root"
    .venv/bin/python tools/image_contents.py --unpack "$root" "$out/vpc-ipamd-$arch.tar"
    "$venv/bin/python" tools/image_sbom.py "$root" "$bom"
}

all() { context; base; build; sbom; }

for step in "${@:-all}"; do "$step"; done
