#!/usr/bin/env bash
# Writes requirements/serve.lock and requirements/dev.lock anew from pyproject.toml.
#
# The locks hold for every Python from 3.11 on and every platform (markers). torch is pinned
# without what it pulls in for CUDA, so that a CPU build and a CUDA build both satisfy the
# lock: pip resolves the rest of torch from the build that it takes.
#
#   tools/lock.sh              keep the pins that still fit, add and drop what changed
#   tools/lock.sh --upgrade    take the newest versions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=$(command -v .venv/bin/uv || command -v uv) || {
    .venv/bin/python -m pip install -q uv
    uv=.venv/bin/uv
}

compile() { # LOCK SOURCE_OR_OPTION...
    local lock=$1 work
    shift
    work=$(mktemp -d)
    [ ! -e "$lock" ] || cp "$lock" "$work/lock"
    "$uv" pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
        --constraint requirements/constraints.in --output-file "$work/lock" \
        pyproject.toml requirements/build.in "$@"
    {
        echo "# Made by tools/lock.sh from pyproject.toml; do not edit."
        sed -E '/^(nvidia|cuda|triton)([-=]|$)/d; s/^(torch==[0-9.]+)\+[a-z0-9]+/\1/' "$work/lock" \
            | grep -v '^ *#'
    } > "$lock"
    rm -r "$work"
}

upgrade=("$@")
compile requirements/serve.lock "${upgrade[@]}"
compile requirements/dev.lock --extra torch --extra dev \
    --constraint requirements/serve.lock "${upgrade[@]}"
