# Run a daemon of a Debian root on a lab node: sh neighbour.sh ROOT FOLDER COMMAND...
# ROOT is only read. FOLDER keeps over restarts what is written (upper/) and /run (run/); its files/ are copied over the root.
# The network, the processes and the cgroups are those of the caller, which has made a mount namespace. A D-Bus is there.
set -e
root=$1 folder=$2
shift 2
mount --make-rprivate /
mkdir -p "$folder/upper" "$folder/work" "$folder/root" "$folder/run"
mount -t overlay -o "lowerdir=$root,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
cd "$folder/root"
# Daemons drop their privileges, and files/ may be root's alone.
cp -R "$folder/files/." .
chmod -R a+rX etc
echo 7670632d6970616d642d6c61622d6e6f > etc/machine-id # without one networkd's DHCPv6 fails
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys # read-only: then nothing waits for udev
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
mount --bind "$folder/run" run
mkdir -p run/dbus run/lock
mount -t tmpfs tmpfs run/dbus
# An overlay takes no second one as its upper layer: Docker's.
mkdir -p var/lib/docker
mount -t tmpfs tmpfs var/lib/docker
exec chroot . /bin/sh -c '
    for folder in systemd systemd/netif systemd/netif/links systemd/netif/leases; do
        install -d -o systemd-network -g systemd-network "/run/$folder"
    done
    dbus-daemon --system --fork --nopidfile
    exec "$@"' sh "$@"
