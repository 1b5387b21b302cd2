#!/usr/bin/env bash
# Runs the tests of some folders, those of them that exist, and says what was left out.
#
#   tools/run_tests.sh "tests/unit tests/conformance" [PYTEST_OPTION...]
#
# Tests marked bench never run here. Tests marked gpu run where there is a CUDA device, and are
# otherwise deselected, which pytest counts in its closing line. Tests marked soak read
# HEADWAY_TEST_SOAK=1 (make soak) to run whole, and else run at a twentieth. MARKS narrows further.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folders=()
for folder in $1; do
    if [ -n "$(find "$folder" -name 'test_*.py' -print -quit 2> /dev/null)" ]; then
        folders+=("$folder")
    fi
done
if [ ${#folders[@]} = 0 ]; then
    echo "no tests in: $1"
    exit 0
fi
shift

marks="not bench${MARKS:+ and ($MARKS)}"
if ! nvidia-smi -L > /dev/null 2>&1; then
    marks+=" and not gpu"
fi
exec "${PY:-.venv/bin/python}" -m pytest -q -m "$marks" "$@" "${folders[@]}"
