# Run the systemd-networkd of this machine, or another command, over a folder of configuration: sh networkd.sh FOLDER SECONDS [COMMAND]
# FOLDER holds what would be in /etc/systemd. The network is that of the caller; /run, /etc/systemd and /sys are private.
set -e
mount --make-rprivate /
mount -t sysfs -o ro sysfs /sys # read-only: then networkd does not wait for udev
mount -t tmpfs -o mode=0755 tmpfs /etc/systemd # a copy: networkd drops its privileges, and FOLDER may be root's alone
cp -R "$1/." /etc/systemd
chmod -R a+rX /etc/systemd
mount -t tmpfs -o mode=0755 tmpfs /run
install -d -o systemd-network -g systemd-network /run/systemd /run/systemd/netif /run/systemd/netif/links /run/systemd/netif/leases
seconds=$2
shift 2
SYSTEMD_LOG_LEVEL=debug SYSTEMD_LOG_TARGET=console exec timeout "$seconds" "${@:-/lib/systemd/systemd-networkd}"
