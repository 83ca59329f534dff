#!/bin/sh
# Install the locked wheels and this package for the image: image_python.sh WHEELS TARGET ARCH. Runs in the build, without network, and
# on any machine for ARCH (amd64 or arm64): nothing that is compiled for ARCH is executed.
# What it writes depends on its input only: no timestamps in bytecode, no order of a hash table, no path of a temporary directory.
set -eu
wheels=$1 target=$2
# CPython's own variable for builds on another machine; pip takes the wheels that fit it.
case $3 in
    amd64) export _PYTHON_HOST_PLATFORM=linux-x86_64 ;;
    arm64) export _PYTHON_HOST_PLATFORM=linux-aarch64 ;;
    *) echo "image_python: $3: known are amd64 and arm64" >&2; exit 2 ;;
esac
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1767225600}"

# pip and setuptools run here and are not part of the image.
set -- "$wheels"/pip-*.whl
pip_wheel=$1
in_venv() { # VENV ARGUMENTS: pip's install into it
    venv=$1
    shift
    python3.11 "$pip_wheel/pip" --python "$venv/bin/python" install --quiet --no-index --find-links "$wheels" --no-compile "$@"
}
python3.11 -m venv --without-pip /tmp/builder
python3.11 -m venv --without-pip "$target"
in_venv /tmp/builder --require-hashes --requirement manifests/image/build.lock
in_venv "$target" --require-hashes --requirement manifests/image/requirements.lock
(umask 022 && mkdir -p /tmp/wheel && env -u PYTHONDONTWRITEBYTECODE /tmp/builder/bin/python -c \
    'import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))' /tmp/wheel >/dev/null)
in_venv "$target" --no-deps /tmp/wheel/vpc_ipamd-*.whl

# From elsewhere than the sources, so that the installed package gets the trimmed model. After that botocore's own 20 MB of service
# descriptions are read by nobody (ipamd/cloud/trim_model.py). The plugin is not run from here: the image has it as one file.
cd /
"$target/bin/python" -m ipamd.cloud.trim_model
rm -rf "$target"/lib/python3.11/site-packages/botocore/data "$target/bin/vpc-cni" "$target"/lib/python3.11/site-packages/*.dist-info/direct_url.json
# The root file system is read-only, so bytecode is made here, the standard library's too; by content, because a file's time is none of
# the image's; with the options and in the place that the image's environment names (manifests/Dockerfile).
PYTHONPYCACHEPREFIX="$target/bytecode" "$target/bin/python" -OO -X no_debug_ranges -m compileall -q -j 1 \
    --invalidation-mode unchecked-hash "$target/lib" /usr/lib/python3.11 >/dev/null
