import os
import subprocess
import sys

import pytest

from headway.core.kv.hashing import DIGEST_BYTES, chain, root


@pytest.mark.spec("M12")
def test_prefix_cache_02_fields_of_different_kinds_never_collide() -> None:
    assert root("m", b"", adapter="X") != root("m", b"X")
    assert root("m", b"ab", adapter="c") != root("m", b"a", adapter="bc")
    assert root("mX", b"") != root("m", b"X")


def test_prefix_cache_02_token_borders_and_parents_count() -> None:
    start = root("m", b"")
    assert chain(start, [1, 23]) != chain(start, [12, 3])
    assert chain(chain(start, [1]), [7]) != chain(chain(start, [2]), [7])
    assert len(chain(start, [1])) == DIGEST_BYTES


def test_prefix_cache_02_names_do_not_depend_on_the_process() -> None:
    probe = (
        "from headway.core.kv.hashing import chain, root; print(chain(root('m', b's'), [1]).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", probe],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {chain(root("m", b"s"), [1]).hex() + "\n"}
