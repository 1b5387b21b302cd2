"""The prefix cache against a model too simple to be wrong: a list of what was computed."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.kv.manager import KvManager
from headway.core.kv.table import BlockGrid, BlockTable

SIZE, NUM_BLOCKS, ROWS, WIDTH = 2, 10, 4, 8
# Few tokens and a common beginning, so that prefixes are shared, split and evicted a lot.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class CacheMachine(RuleBasedStateMachine):
    """Opens, computes, forks and closes tables at random."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvManager(NUM_BLOCKS, SIZE, BlockGrid(ROWS, WIDTH))
        self.open: list[tuple[BlockTable, list[int]]] = []
        self.content: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end

    @precondition(lambda self: self.kv.grid.num_free_rows)
    @rule(tokens=PROMPTS)
    def compute(self, tokens: list[int]) -> None:
        table = self.kv.open(tokens, b"")
        assert table.num_cached % SIZE == 0
        assert table.num_cached < len(tokens)
        for index in range(table.num_cached // SIZE):
            assert self.content[table.blocks[index]] == tuple(tokens[: (index + 1) * SIZE])
        if self.kv.grow(table, table.num_cached, len(tokens)) is None:
            self.kv.close(table)
            return
        self._write(table, tokens, table.num_cached)
        self.open.append((table, tokens))

    @precondition(lambda self: self.open and self.kv.grid.num_free_rows)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, tokens = data.draw(st.sampled_from(self.open))
        shared = data.draw(st.integers(0, min(len(tokens), SIZE * WIDTH - 1)))
        child = self.kv.fork(parent, shared)
        longer = [*tokens[:shared], *data.draw(PROMPTS)][: SIZE * WIDTH]
        copies = self.kv.grow(child, shared, len(longer))
        if copies is None:
            self.kv.close(child)
            return
        for copy in copies:
            self.content[copy.target] = self.content[copy.source]
        self._write(child, longer, shared)
        self.open.append((child, longer))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.open) - 1))
        self.kv.close(self.open.pop(index)[0])

    @invariant()
    def nothing_leaks_and_nothing_is_overwritten(self) -> None:
        self.kv.check([table for table, _ in self.open])
        for table, tokens in self.open:
            for index, block in enumerate(table.blocks):
                end = min(len(tokens), (index + 1) * SIZE)
                assert self.content[block][:end] == tuple(tokens[:end])

    def _write(self, table: BlockTable, tokens: list[int], start: int) -> None:
        assert self.kv.is_writable(table, start, len(tokens))
        for index in range(start // SIZE, len(table.blocks)):
            self.content[table.blocks[index]] = tuple(tokens[: (index + 1) * SIZE])
        self.kv.fill(table, tokens, len(tokens))


TestPrefixCache = CacheMachine.TestCase
