#!/usr/bin/env bash
# Build the root file system of the stand-ins for the test images of amazon-vpc-cni-k8s: stand_in_rootfs.sh OUTPUT.tar
#
# Their registry needs an account, so `make incumbent-tests` gives the nodes images of Debian's packages under the same names:
# busybox, nginx, netcat-openbsd, curl and iptables. Nothing is configured and no script of a package runs, so the programs that Debian
# chooses by alternatives are linked in /usr/local/bin here, and nginx gets the least that it needs. wget is GNU's, which gives up at once
# as busybox's does: that of Debian's busybox 1.35 crashes on an address without a scheme, which their tests ask for. What GNU's makes of
# such an address of IPv6 is mended by tools/stand_in_wget.sh, which comes first in the path.
set -euo pipefail
output=$(realpath -m "$1")
wget=$(realpath "$(dirname "$0")/stand_in_wget.sh")
[ "$output" -nt "$wget" ] && [ "$output" -nt "$0" ] && exit 0
command -v mmdebstrap >/dev/null || { echo "stand_in_rootfs: no mmdebstrap here: \`tools/setup.sh image\` installs it" >&2; exit 1; }
mkdir -p "$(dirname "$output")"
log=$(mktemp)
trap 'rm -f "$log" "$output.tmp.tar"' EXIT
# shellcheck disable=SC2016  # the hook's own $1
timeout -k 5 600 mmdebstrap --quiet --variant=extract --dpkgopt='path-exclude=/usr/share/*' \
    --include=busybox,netcat-openbsd,curl,wget,iptables,nginx \
    --extract-hook='mkdir -p "$1/usr/local/bin" "$1/www" "$1/tmp"
        for applet in sh sleep ping tail cat ls nsenter; do ln -sf /bin/busybox "$1/usr/local/bin/$applet"; done
        ln -sf /bin/nc.openbsd "$1/usr/local/bin/nc"
        install -m 0755 "'"$wget"'" "$1/usr/local/bin/wget"
        for tool in iptables ip6tables; do ln -sf /usr/sbin/$tool-nft "$1/usr/local/bin/$tool"; done
        echo "vpc-ipamd lab" >"$1/www/index.html"
        echo "tries = 1" >"$1/etc/wgetrc"
        echo "root:x:0:0::/:/bin/sh" >"$1/etc/passwd"
        echo "root:x:0:" >"$1/etc/group"
        echo "daemon off; user root; pid /tmp/nginx.pid; events {} http { access_log off; server { listen 80; root /www; } }" \
            >"$1/www/nginx.conf"' \
    bookworm "$output.tmp.tar" >"$log" 2>&1 || { tail -n 5 "$log" >&2; echo "stand_in_rootfs: no root file system" >&2; exit 1; }
mv "$output.tmp.tar" "$output"
echo "stand_in_rootfs: $output, $(du -m "$output" | cut -f1) MiB"
