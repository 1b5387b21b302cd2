"""Where nobody chose a place, only one that can be trusted is taken."""

from pathlib import Path

import pytest

from headway.service.store.default_place import file_system_of, unfit

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /home rw,relatime - nfs4 server:/home rw
24 23 0:6 / /home/local\040disk rw - xfs /dev/sdb rw
25 23 0:7 / /home/other rw - ext4 /dev/sdc rw
26 25 0:8 / /home/other rw - cifs //server/x rw
broken line
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/homes", "ext4"),
        ("/home/me/.local/share", "nfs4"),
        ("/home/local disk/me", "xfs"),
        ("/home/other/me", "cifs"),
    ],
)
def test_the_innermost_and_uppermost_mount_counts(mounts: Path, path: str, kind: str) -> None:
    assert file_system_of(Path(path), mounts) == kind


def test_a_system_that_does_not_tell_is_trusted(tmp_path: Path) -> None:
    assert file_system_of(tmp_path, tmp_path / "none") == ""
    assert unfit(tmp_path / "headway", tmp_path / "none") is None


def test_a_folder_is_made_for_its_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "share" / "headway"
    assert unfit(folder) is None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_network_file_system_a_missing_home_and_a_file_in_the_way_are_told(
    tmp_path: Path,
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:5 / {tmp_path} rw - nfs4 server:/home rw\n")
    assert "nfs4" in (unfit(tmp_path / "headway", mounts) or "")
    assert "home" in (unfit(Path("~/.local/share/headway")) or "")
    (tmp_path / "file").touch()
    assert unfit(tmp_path / "file" / "headway")
    assert unfit(Path("/proc/headway"))
