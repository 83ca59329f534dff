#!/usr/bin/env bash
# Boot an arm64 machine whose root is the image, with Debian's kernel and the lab in it, and run a Python program there:
# arm64_machine.sh PROGRAM [IMAGE]. Prints its console; exits 0 if the program ended with 0. IMAGE: an OCI archive, by default
# build/image/vpc-ipamd-arm64.tar.
#
# QEMU emulates processor and devices, so kernel, netlink and nftables are arm64's own, which QEMU for single programs (tools/foreign.py)
# does not pass on. Needs qemu-system-arm, cpio, kmod and mmdebstrap, no KVM. The program is run by the image's interpreter, with
# lab/ and tests/rig.py of this checkout on its path, and has 20 minutes.
# SCRATCH=DIR: where the machine's 1 GB of files is while it is made, by default in memory where 2 GB of /dev/shm are free. Runs as root.
set -euo pipefail
program=$(realpath "$1") image=$(realpath -m "${2:-$(dirname "$0")/../build/image/vpc-ipamd-arm64.tar}")
cd "$(dirname "$0")/.."
cannot() { echo "arm64_machine: $1" >&2; exit 1; }
for tool in qemu-system-aarch64 cpio depmod mmdebstrap; do
    command -v "$tool" >/dev/null || cannot "no $tool here: \`tools/setup.sh machine\` installs it"
done
extra=build/image/machine-arm64.tar
mkdir -p build/image
[ -e "$image" ] || cannot "no $image: \`make image ARCH=arm64\` builds it"
parent=build/image
[ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 || echo 0)" -lt 2000000 ] || parent=/dev/shm
scratch=$(mktemp -d "$(realpath "${SCRATCH:-$parent}")/vpc-ipamd-machine.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
chmod 755 "$scratch"

# What a node has beside the image. Unpacked, not installed: nothing of it is executed here. Kept once it is there.
if [ ! -e "$extra" ]; then
    TMPDIR=$scratch mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 \
        --include=linux-image-cloud-arm64,iproute2,kmod,mount,nftables,procps,util-linux bookworm "$extra.tmp.tar" 2>"$scratch/log" \
        || { cat "$scratch/log" >&2; cannot "no Debian packages for the machine"; }
    mv "$extra.tmp.tar" "$extra"
fi
root=$scratch/root
mkdir "$root"
.venv/bin/python tools/image_contents.py --unpack "$root" "$image"
tar -C "$root" --keep-directory-symlink --skip-old-files -xf "$extra"
mv "$root"/boot/vmlinuz-* "$scratch/kernel"
release=$(ls "$root/lib/modules")
(cd "$root/lib/modules/$release/kernel" && rm -rf sound drivers/gpu drivers/infiniband drivers/media drivers/scsi drivers/usb)
depmod -b "$root" "$release"
rm -rf "$root"/usr/share/{doc,locale,man} "$root"/boot/*

# The lab starts the daemon with its own interpreter, the image's; ipamd/ of the checkout is not there, so the image's is imported.
checkout=$root/checkout
mkdir -p "$checkout/tests" "$checkout/build" "$checkout/cni_plugin"
cp -r lab "$checkout/"
cp tests/__init__.py tests/patience.py tests/rig.py "$checkout/tests/"
cp cni_plugin/*.py "$checkout/cni_plugin/"
cp "$root/opt/vpc-ipamd/vpc-cni" "$checkout/build/" # newer than its sources, so the lab installs it
cp "$program" "$checkout/program.py"
cat >"$root/init" <<'EOS'
#!/bin/sh
export PATH=/opt/ipamd/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONPATH=/checkout PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr
for folder in /run /tmp /dev/shm; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
modprobe overlay
ip link set lo up
cd /checkout
timeout 1200 /opt/ipamd/bin/python program.py
echo "arm64_machine: the program ended with $?"
echo o >/proc/sysrq-trigger
sleep 60
EOS
chmod 755 "$root/init"
(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --format=newc --quiet) >"$scratch/initrd"
rm -rf --one-file-system "$root"
timeout -k 5 1300 qemu-system-aarch64 -machine virt -cpu cortex-a72 -smp 2 -m 2G -accel tcg,thread=multi -display none -nodefaults \
    -no-reboot -serial stdio -kernel "$scratch/kernel" -initrd "$scratch/initrd" -append "console=ttyAMA0 quiet panic=-1 rdinit=/init" \
    </dev/null | tee "$scratch/console"
grep -q "^arm64_machine: the program ended with 0" "$scratch/console"
