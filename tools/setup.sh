#!/usr/bin/env bash
# Install what a command needs and nothing else, each thing only if it is missing.
#   for_plugin  Debian's compiler for the static plugin         for_lab     that, and what lab nodes run: `make demo`, `make chaos`
#   for_tests   that, and what some tests run: `make setup`     beside      two more containerds and reference plugins, for tests
#   venv        what daemon and lab import, generated data      venv_tests  that, and what checks and tests import
#   image       what `make image` needs                         cluster     what `make cluster` needs beside the image
#   arm64       a cross compiler and QEMU, for the plugin       machine     the arm64 machine of `make test-arm64`
#   for_newest_python  what unpacks a Debian root: `make newest-python`
#   lock        pip-tools                                       manifests   kubectl, helm and kustomize, none of them installed
#   neighbours  a Debian root with other software that runs beside the daemon in tests/heavy/test_neighbours.py
#   axe         axe-core, which judges the status page in Chromium
#   heavy       image, lock, machine, manifests, neighbours, axe, Chromium, Prometheus, secilc and a kernel: `make test-all`
# Says in one sentence what it cannot install; what needs it is then skipped, and named, by the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}

# package:file that shows it is there
# MicroPython's makefiles run python3, which need not be the Python of the virtual environment.
plugin_packages=(gcc:/usr/bin/gcc libc6-dev:/usr/include/stdio.h musl-tools:/usr/bin/musl-gcc xz-utils:/usr/bin/xz
                 python3:/usr/bin/python3)
lab_packages=(containerd:/usr/bin/containerd runc:/usr/sbin/runc nftables:/usr/sbin/nft iproute2:/usr/sbin/ip
              util-linux:/usr/bin/nsenter mount:/usr/bin/mount containernetworking-plugins:/usr/lib/cni/ptp)
test_packages=(systemd:/usr/lib/systemd/systemd-networkd udev:/usr/bin/udevadm)
# skopeo is for the step after `make image`: into a registry (docs/install.md).
image_packages=(buildah:/usr/bin/buildah mmdebstrap:/usr/bin/mmdebstrap skopeo:/usr/bin/skopeo)
machine_packages=(cpio:/usr/bin/cpio kmod:/usr/sbin/depmod qemu-system-arm:/usr/bin/qemu-system-aarch64
                  qemu-user-static:/usr/bin/qemu-aarch64-static)
# A test in tests/heavy that needs another tool gets its package here.
heavy_packages=(chromium:/usr/bin/chromium prometheus:/usr/bin/promtool qemu-system-x86:/usr/bin/qemu-system-x86_64
                secilc:/usr/bin/secilc)
neighbour_packages=systemd,dbus,network-manager,firewalld,docker.io,iptables,nftables,iproute2
# Python tools have an environment of their own, build/heavy/venv: none of them is imported by a test.
image_python="cyclonedx-bom >= 7, < 8"
lock_python="pip-tools >= 7.5, < 8"
# The wheel carries axe-core 4.12.1 (MPL-2.0) as one file, which stays in build/: no file of ours has any of it.
axe_wheel=axe-playwright-python==0.1.8
axe_sha256=fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8
# Schemas of Kubernetes that tests/unit/manifests/test_kubernetes_schemas.py asks for.
schema_versions="1.30 1.35 1.37"
helm_version=v3.19.0 helm_kubernetes_minor=34 kustomize_version=v5.7.1

for_plugin() {
    needed=("${plugin_packages[@]}")
    debian_packages
}

for_lab() {
    needed=("${lab_packages[@]}" "${plugin_packages[@]}")
    with_libnftables
    with_ensurepip
    debian_packages
}

for_tests() {
    needed=("${lab_packages[@]}" "${plugin_packages[@]}" "${test_packages[@]}")
    with_libnftables
    with_ensurepip
    debian_packages
}

with_libnftables() {
    # Its folder has the architecture's name.
    ldconfig -p 2>/dev/null | grep -q libnftables.so.1 || needed+=(libnftables1:none)
}

with_ensurepip() {
    # Debian splits ensurepip off its python3, and without it no virtual environment is made. A Python of pyenv has it.
    ! lacks_ensurepip || needed+=(python3-venv:none)
}

lacks_ensurepip() {
    command -v "$python" >/dev/null && ! "$python" -c 'import ensurepip' 2>/dev/null
}

beside() {
    containerd 1.7
    containerd 2
    reference_plugins
}

reference_plugins() {
    # Tests of chained plugins use them. What is missing is no reason to stop.
    if ! command -v go >/dev/null && [ ! -d build/reference-plugins ]; then
        echo "setup: without Go, tests of chained plugins are skipped; nothing else needs it"
        return 0
    fi
    timeout -k 5 400 tools/build_reference_plugins.sh build/reference-plugins || true
}

containerd() { # VERSION
    # Only the lab uses it, and the lab needs root. What is missing is said by the script, and is no reason to stop.
    [ "$(id -u)" -ne 0 ] || timeout -k 5 200 tools/fetch_containerd.sh "$1" || true
}

arm64() {
    needed=(gcc-aarch64-linux-gnu:/usr/bin/aarch64-linux-gnu-gcc libc6-dev-arm64-cross:/usr/aarch64-linux-gnu/lib/libc.a
            qemu-user-static:/usr/bin/qemu-aarch64-static)
    debian_packages
}

image() {
    needed=("${image_packages[@]}")
    debian_packages
    python_tool cyclonedx-py "$image_python"
}

lock() {
    python_tool pip-compile "$lock_python"
}

cluster() {
    for_lab
    containerd 2
    helm
}

for_newest_python() {
    needed=(mmdebstrap:/usr/bin/mmdebstrap)
    debian_packages
}

machine() {
    needed=("${machine_packages[@]}")
    debian_packages
}

helm() {
    # Its own builds take the release of Kubernetes from the linker; without it helm takes each cluster for 1.20 while it renders, and
    # refuses the chart, which needs a later one.
    local package=helm.sh/helm/v3/pkg name flags="" stamp=build/heavy/helm-$helm_version-kubernetes-1.$helm_kubernetes_minor
    mkdir -p build/heavy
    [ -e "$stamp" ] || ! command -v go >/dev/null || rm -f build/heavy/helm
    for name in chartutil lint/rules; do
        flags+=" -X $package/$name.k8sVersionMajor=1 -X $package/$name.k8sVersionMinor=$helm_kubernetes_minor"
    done
    from_go helm "helm.sh/helm/v3/cmd/helm@$helm_version" "-ldflags=$flags"
    [ ! -x build/heavy/helm ] || touch "$stamp"
}

manifests() {
    helm
    heavy_kubectl
    from_go kustomize "sigs.k8s.io/kustomize/kustomize/v5@$kustomize_version"
}

heavy() {
    needed=("${heavy_packages[@]}" "${image_packages[@]}" "${machine_packages[@]}")
    debian_packages
    image
    lock
    manifests
    axe
    neighbours
    vlan_kernel
}

python_tool() { # PROGRAM REQUIREMENT
    [ ! -x "build/heavy/venv/bin/$1" ] || return 0
    heavy_venv
    build/heavy/venv/bin/python -m pip install --quiet --disable-pip-version-check "$2"
}

heavy_venv() {
    mkdir -p build/heavy
    [ -x build/heavy/venv/bin/pip ] || "$python" -m venv build/heavy/venv
}

axe() {
    # Unpacked, not installed: the wheel requires Playwright, which would download browsers of its own.
    local target=build/heavy/axe work
    [ ! -e "$target/$axe_sha256" ] || return 0
    heavy_venv
    work=$(mktemp -d)
    echo "$axe_wheel --hash=sha256:$axe_sha256" >"$work/requirements.txt"
    if build/heavy/venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
        --dest "$work" --requirement "$work/requirements.txt"; then
        rm -rf "$target"
        build/heavy/venv/bin/python -m zipfile --extract "$work"/*.whl "$work/wheel"
        install -D -m 0644 "$work/wheel/axe_playwright_python/axe.min.js" "$target/axe.min.js"
        touch "$target/$axe_sha256"
    else
        echo "setup: $axe_wheel could not be downloaded; tests with axe-core are skipped" >&2
    fi
    rm -rf "$work"
}

heavy_kubectl() {
    # Unpacked, not installed: a machine may have another kubectl at the same path, and keeps it.
    local target=build/heavy/kubernetes-client work
    [ ! -x "$target/usr/bin/kubectl" ] && command -v apt-get >/dev/null || return 0
    work=$(mktemp -d)
    chmod 755 "$work"
    if (cd "$work" && { apt-get download -q kubernetes-client || { apt-get update -q && apt-get download -q kubernetes-client; }; }) \
        >/dev/null 2>&1; then
        rm -rf "$target"
        dpkg-deb -x "$work"/kubernetes-client_*.deb "$target"
    else
        echo "setup: apt-get has no kubernetes-client; tests with kubectl are skipped" >&2
    fi
    rm -rf "$work"
}

from_go() { # PROGRAM PACKAGE@VERSION [FLAG of go install]...
    # From its Go module, whose hash Go's checksum database knows; where Go is not, tests with it are skipped.
    [ ! -x "build/heavy/$1" ] && command -v go >/dev/null || return 0
    GOBIN=$PWD/build/heavy GOFLAGS= timeout -k 5 900 go install -trimpath "${@:3}" "$2" >/dev/null 2>&1 \
        || echo "setup: $1 could not be built from its Go module $2; tests with it are skipped" >&2
}

neighbours() {
    # A root of its own, 0.5 GB: installed, such a daemon would take this machine's network over at its next boot.
    local target=build/heavy/neighbours
    [ ! -d "$target/usr" ] || return 0
    needed=(mmdebstrap:/usr/bin/mmdebstrap)
    debian_packages
    if [ "$(id -u)" -ne 0 ] || ! command -v mmdebstrap >/dev/null; then
        echo "setup: without root and mmdebstrap there are no real neighbours; tests with them are skipped" >&2
        return 0
    fi
    rm -rf "$target.new"
    if timeout -k 5 1500 mmdebstrap --quiet --skip=check/qemu --variant=minbase --include="$neighbour_packages" \
        --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' bookworm "$target.new" >/dev/null 2>&1; then
        mv "$target.new" "$target"
    else
        rm -rf "$target.new"
        echo "setup: mmdebstrap could not make $target; tests with real neighbours are skipped" >&2
    fi
}

vlan_kernel() {
    # A kernel with VLAN links for tests/heavy/test_vlan_links.py: unpacked, not installed.
    local target=build/heavy/vlan-kernel work package
    [ ! -d "$target/boot" ] && command -v apt-get >/dev/null || return 0
    work=$(mktemp -d)
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-\S*\)/\1/p' | head -n 1)
    if [ -n "$package" ] && (cd "$work" && apt-get download -q "$package") >/dev/null 2>&1; then
        mkdir -p "$target"
        dpkg-deb -x "$work"/linux-image-*.deb "$target"
    else
        echo "setup: apt-get has no linux-image-cloud-amd64; the test of real VLAN links is skipped" >&2
    fi
    rm -rf "$work"
}

debian_packages() {
    local missing=() entry
    for entry in "${needed[@]}"; do
        [ -e "${entry#*:}" ] || missing+=("${entry%%:*}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: not root, so these packages are not installed and what needs them is skipped: ${missing[*]}" >&2
        return 0
    fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here, so these packages are not installed and what needs them is skipped: ${missing[*]}" >&2
        return 0
    fi
    # One at a time: two goals of one `make -j` may both miss something.
    exec 9<tools/setup.sh
    flock 9
    echo "setup: installing ${missing[*]}"
    local before; before=$(debian_has)
    # policy-rc.d keeps a package from starting its service: containerd is started by the lab, in the lab's namespaces only.
    local policy=/usr/sbin/policy-rc.d made=no
    if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=yes; fi
    local log; log=$(mktemp)
    if ! { DEBIAN_FRONTEND=noninteractive apt-get update -q && \
           DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        echo "setup: apt-get could not install ${missing[*]}; what needs them is skipped" >&2
    fi
    rm -f "$log"
    if [ "$made" = yes ]; then rm -f "$policy"; fi
    comm -13 <(echo "$before") <(debian_has) >>.debian-packages
    exec 9<&-
    echo "setup: with what they need, .debian-packages names them: apt-get remove \$(cat .debian-packages) takes them away"
}

debian_has() {
    dpkg-query --show --showformat '${db:Status-Abbrev}${Package}\n' 2>/dev/null | sed -n 's/^ii *//p' | LC_ALL=C sort -u
}

venv() {
    in_venv .
}

venv_tests() {
    in_venv '.[test]'
    # 26 versions of 4 MB each come with it.
    local kept=()
    for version in $schema_versions; do kept+=(! -name "v$version.*-local-strict"); done
    find .venv/lib/python3*/site-packages/kubernetes_validate/kubernetes-json-schema -mindepth 1 -maxdepth 1 "${kept[@]}" -exec rm -r {} +
}

in_venv() { # WHAT, with its extras
    if [ ! -x .venv/bin/python ]; then
        if ! command -v "$python" >/dev/null; then
            echo "setup: $python is missing: install it, or name a newer Python with make: PYTHON=/usr/bin/python3" >&2
            exit 1
        fi
        echo "setup: making .venv"
        needed=()
        with_ensurepip
        debian_packages
        "$python" -m venv .venv
    fi
    echo "setup: installing Python packages"
    # Python compiles what is imported, a third of it, and then only.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --config-settings editable_mode=compat --editable "$1"
    lab_command
    .venv/bin/python -m ipamd.cloud.trim_model
}

lab_command() {
    # lab/ is in no wheel and in no image (setup.cfg), so pip does not install it: the checkout goes on this environment's path.
    local site; site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    pwd >"$site/vpc_ipamd_checkout.pth"
    printf '#!/bin/sh\nexec "$(dirname "$0")/python" -P -m lab.cli "$@"\n' >.venv/bin/vpc-lab
    chmod 0755 .venv/bin/vpc-lab
}

for part in "$@"; do "$part"; done
