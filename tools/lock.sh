#!/usr/bin/env bash
# Write manifests/image/requirements.lock (what the daemon imports) and build.lock (what makes the wheel) anew, with the hash of every
# file of every release that is named, so for amd64 and arm64 alike. `tools/setup.sh lock` installs pip-tools for it.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # INPUT OUTPUT OPTION...
    build/heavy/venv/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header --no-annotate --no-emit-find-links \
        --no-emit-index-url --no-emit-options --upgrade --output-file "$2" "${@:3}" "$1"
}
compile setup.cfg manifests/image/requirements.lock
compile manifests/image/build.in manifests/image/build.lock --allow-unsafe
