import pytest

from headway.core.kv.table import BlockGrid


def test_the_lent_view_is_read_only_and_shows_later_writes() -> None:
    grid = BlockGrid(2, 3)
    view = grid.view
    row = grid.take_row()
    grid.write(row, 2, 7)
    assert view[row * grid.width + 2] == 7
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_row_given_back_twice_is_a_bug_that_shows() -> None:
    grid = BlockGrid(1, 1)
    row = grid.take_row()
    grid.give_back(row)
    with pytest.raises(AssertionError, match="twice"):
        grid.give_back(row)


def test_a_cell_outside_the_row_is_a_bug_that_shows() -> None:
    grid = BlockGrid(2, 1)
    with pytest.raises(AssertionError, match="outside"):
        grid.write(grid.take_row(), 1, 0)
