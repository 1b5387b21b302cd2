from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.kv.blocks import BlockPool, OutOfBlocks

NUM_BLOCKS = 12


class PoolMachine(RuleBasedStateMachine):
    """Random takes, shares, retains and releases, checked against a plain list of owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.owners: list[tuple[int, ...]] = []
        self.retained: set[int] = set()

    @rule(count=st.integers(0, 14))
    def take(self, count: int) -> None:
        free_before = self.pool.num_free
        try:
            self.owners.append(self.pool.take(count))
        except OutOfBlocks:
            assert count > free_before
            assert self.pool.num_free == free_before

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.pool.share(owner)
        self.owners.append(owner)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        for block in set(owner) - self.retained:
            self.pool.retain(block)
            self.retained.add(block)

    @precondition(lambda self: self.retained)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.retained)))
        self.pool.forget(block)
        self.retained.remove(block)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.owners) - 1))
        self.pool.release(self.owners.pop(index))

    @invariant()
    def counts_agree_with_owners(self) -> None:
        self.pool.check()
        held = {block for owner in self.owners for block in owner}
        assert self.pool.num_cached == len(self.retained - held)
        assert self.pool.num_free == NUM_BLOCKS - len(held | self.retained)


TestBlockPool = PoolMachine.TestCase
