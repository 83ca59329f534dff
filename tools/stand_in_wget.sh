#!/bin/busybox sh
# wget of the stand-ins (tools/stand_in_rootfs.sh): GNU's, for an address in brackets without a scheme too. GNU's takes [2600::1]:80 for
# FTP, and busybox's for HTTP, as it takes every address; the tests of amazon-vpc-cni-k8s ask so on a cluster of IPv6.
for word; do
    shift
    case $word in
        '['*) word=http://$word ;;
    esac
    set -- "$@" "$word"
done
exec /usr/bin/wget "$@"
