#!/bin/bash
# Creates the private Python environment out/env/NAME with the packages that a requirements file pins.
# usage: tools/make_env.sh NAME REQUIREMENTS
set -euo pipefail
name=$1 requirements=$2
python=${PYTHON:-python3}
dir=$PWD/out/env/$name

# Debian's Python installs pip into a `venv` only if the package python3-venv is installed.
create() {
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$dir"
    elif "$python" -m virtualenv --version >/dev/null 2>&1; then
        "$python" -m virtualenv --quiet "$dir"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m pip install --quiet --target out/env/.virtualenv virtualenv
        PYTHONPATH=$PWD/out/env/.virtualenv "$python" -m virtualenv --quiet "$dir"
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "python3 has neither venv nor pip: installing Debian's python3-venv"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
        "$python" -m venv "$dir"
    else
        echo "error: $python has neither venv nor pip; install them first: apt-get install python3-venv" >&2
        exit 1
    fi
}

rm -rf "$dir"
create
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
touch "$dir/complete"
echo "ready: $(paste -sd' ' "$requirements")"
