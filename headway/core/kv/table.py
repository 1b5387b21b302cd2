"""Block tables: one sequence's blocks in order, and the grid that the executor reads."""

from array import array

from headway.core.messages.path import CacheMiss

UNUSED = 0  # content of grid cells past a sequence's end; never read


class BlockGrid:
    """Block tables of all running sequences as one flat grid of 32-bit ints.

    Row r, cell c is the block that holds positions c * block_size and following of the
    sequence in row r. Lent to the executor as a read-only buffer, so that a plan needs no
    copy of the tables.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self.width = width
        self._cells = array("i", bytes(4 * num_rows * width))
        self._free_rows = list(range(num_rows - 1, -1, -1))

    @property
    def view(self) -> memoryview:
        """The grid, read-only, row after row."""
        return memoryview(self._cells).toreadonly()

    @property
    def num_free_rows(self) -> int:
        """Rows that no sequence has."""
        return len(self._free_rows)

    def take_row(self) -> int:
        """A row for a sequence; whatever stood there before is never read."""
        return self._free_rows.pop()

    def give_back(self, row: int) -> None:
        """The row's sequence no longer runs."""
        assert row not in self._free_rows, f"row {row} is given back twice"
        self._free_rows.append(row)

    def write(self, row: int, cell: int, block: int) -> None:
        """Put `block` at `cell` of `row`."""
        assert 0 <= cell < self.width, f"cell {cell} is outside a row of {self.width}"
        self._cells[row * self.width + cell] = block

    def read(self, row: int, count: int) -> list[int]:
        """The first `count` cells of a row."""
        start = row * self.width
        return self._cells[start : start + count].tolist()


class BlockTable:
    """Blocks of one running sequence, and the names of those that are full.

    Only KvManager changes it.
    """

    __slots__ = (
        "blocks",
        "hashes",
        "miss",
        "num_cached",
        "num_cached_host",
        "num_named",
        "root",
        "row",
    )

    def __init__(self, row: int, root: bytes) -> None:
        self.row = row
        self.root = root  # start of the hash chain
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []  # names of leading full blocks, also of some to come
        self.num_named = 0  # leading blocks that are full and were offered to the prefix tree
        self.num_cached = 0  # leading tokens that came out of the prefix cache
        self.num_cached_host = 0  # those of them that the next plan brings from the host tier
        self.miss = CacheMiss.NONE  # why they are not more
