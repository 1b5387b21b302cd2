import struct
from pathlib import Path

from headway.service.store.slots import FIRST_SLOTS, Progress, Slots, read_progress


def test_what_is_stored_is_in_the_file_at_once(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot = slots.take()
    slots.give(slot, 5)
    assert read_progress((tmp_path / "slots").read_bytes(), slot) == Progress(0, 5)
    slots.gave(slot, 5)
    assert read_progress((tmp_path / "slots").read_bytes(), slot) == Progress(5, 5)
    slots.close()


def test_a_slot_that_is_used_again_begins_at_zero(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot = slots.take()
    slots.give(slot, 5)
    slots.gave(slot, 5)
    slots.free(slot)
    assert slots.take() == slot
    assert read_progress((tmp_path / "slots").read_bytes(), slot) == Progress(0, 0)
    slots.close()


def test_more_requests_than_slots_make_the_file_grow_and_keep_what_it_had(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    taken = [slots.take() for _ in range(FIRST_SLOTS)]
    slots.gave(taken[7], 77)
    taken += [slots.take() for _ in range(FIRST_SLOTS)]
    slots.gave(taken[-1], 88)
    slots.sync()
    data = (tmp_path / "slots").read_bytes()
    assert len(set(taken)) == 2 * FIRST_SLOTS
    assert read_progress(data, taken[7]).sure == 77
    assert read_progress(data, taken[-1]).sure == 88
    slots.close()


def test_a_file_that_is_too_short_says_that_nothing_was_sent() -> None:
    assert read_progress(b"", 3) == Progress(0, 0)
    assert read_progress(bytes(16 * 3 + 8), 3) == Progress(0, 0)


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    Slots(tmp_path / "slots").close()
    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o600


def test_a_slot_that_no_request_can_have_written_says_that_nothing_was_sent() -> None:
    damaged = struct.pack("=4Q", 3, 2**63 + 3, 3, 4)
    assert read_progress(damaged, 0) == Progress(0, 0)
    assert read_progress(damaged, 1) == Progress(3, 4)
