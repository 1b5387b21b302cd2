#!/bin/sh
# Makes .venv and installs into it what a lock names, and the package itself (editable).
#
#   tools/setup.sh serve    what serving needs
#   tools/setup.sh dev      that, and what the tests need
#
# Called by make, which calls it only when a lock or pyproject.toml is newer than the stamp
# .venv/.serve or .venv/.dev that this script writes last. PYTHON names another interpreter.
set -eu
cd "$(dirname "$0")/.."

part=$1
lock=requirements/$part.lock
[ -f "$lock" ] || { echo "setup: there is no $lock; use 'serve' or 'dev'" >&2; exit 2; }

NEW_ENOUGH='import sys; sys.exit(sys.version_info < (3, 11))'
VERSION='import sys; print("%d.%d" % sys.version_info[:2])'

# fail LINE...: says what is missing and the line that installs it, and ends.
fail() {
    for line in "$@"; do echo "setup: $line" >&2; done
    exit 2
}

# apt PACKAGE...: the line that installs the packages, as this user has to type it.
apt() {
    if [ "$(id -u)" = 0 ]; then echo "apt-get update && apt-get install -y $*"
    else echo "sudo apt-get update && sudo apt-get install -y $*"; fi
}

# Prints the first interpreter that is new enough, or nothing.
find_python() {
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c "$NEW_ENOUGH" > /dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
}

# Ubuntu 22.04 calls its newer Python python3.11; elsewhere it is python3 itself.
newer_python_packages() {
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2> /dev/null || true)
    if [ "$codename" = jammy ]; then echo "python3.11 python3.11-venv"
    else echo "python3 python3-venv"; fi
}

no_python() {
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python of version 3.11 or newer"
    elif command -v python3 > /dev/null 2>&1; then
        fail "python3 is $(python3 -c "$VERSION" 2> /dev/null || echo broken); 3.11 or newer is needed:" \
            "  $(apt "$(newer_python_packages)")" \
            "or name one: make serve PYTHON=/path/to/python3.11" \
            "(Debian 12, Ubuntu 24.04 and later have it as python3, Ubuntu 22.04 as python3.11)"
    else
        fail "python3 is missing; 3.11 or newer is needed:" "  $(apt "$(newer_python_packages)")"
    fi
}

make_venv() {
    python=$(find_python)
    [ -n "$python" ] || no_python
    version=$("$python" -c "$VERSION")
    # Debian ships the venv module apart; without it `import venv` works, but ensurepip does not.
    "$python" -c 'import venv, ensurepip' > /dev/null 2>&1 || fail \
        "$python ($version) has no venv module with pip:" "  $(apt "python$version-venv")"
    echo "setup: making .venv with $python ($version)"
    "$python" -m venv --clear .venv || fail "making .venv with $python failed (see above)"
}

# A .venv that was cut short, moved or made by an old Python is made anew.
usable() {
    .venv/bin/python -c "$NEW_ENOUGH" > /dev/null 2>&1 \
        && .venv/bin/python -m pip --version > /dev/null 2>&1
}

usable || make_venv
echo "setup: installing $lock (the first time this takes a minute or more)"
quiet=-q
[ ! -t 1 ] || quiet=
.venv/bin/python -m pip install $quiet --disable-pip-version-check -r "$lock" || fail \
    "installing $lock failed (see above); without network, point pip at your own index or folder:" \
    "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS are honoured"
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
touch ".venv/.$part"
