"""What metrics tell of reloads."""

from pathlib import Path

from headway.app.reload_state import ReloadState, hash_of


def told(state: ReloadState) -> dict[str, float]:
    """All samples by name and outcome."""
    return {
        f"{each.metric.name.removeprefix('headway_config_')}{each.labels.get('outcome', '')}": (
            each.value
        )
        for each in state.samples()
    }


def test_a_start_counts_as_taken_and_a_refusal_leaves_time_and_hash(tmp_path: Path) -> None:
    file = tmp_path / "headway.yaml"
    file.write_text("port: 1")
    now = [100.0]
    state = ReloadState(str(file), lambda: now[0])
    began = told(state)
    assert began["last_reload_successful"] == 1.0
    assert began["last_reload_success_timestamp_seconds"] == 100.0
    assert began["hash"] == hash_of(str(file)) > 0
    now[0] = 200.0
    state.refused()
    refused = told(state)
    assert refused == began | {"reloads_totalrefused": 1, "last_reload_successful": 0.0}
    state.taken(7)
    assert told(state) == began | {
        "reloads_totalrefused": 1,
        "reloads_totalok": 1,
        "last_reload_success_timestamp_seconds": 200.0,
        "hash": 7,
    }


def test_the_hash_depends_on_the_bytes_alone(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_bytes(b"a")
    same.write_bytes(b"a")
    other.write_bytes(b"b")
    assert hash_of(str(one)) == hash_of(str(same)) != hash_of(str(other))
    assert hash_of(str(one)) < 2**48, "a float holds it exactly"
    assert hash_of(str(tmp_path / "none")) == 0
