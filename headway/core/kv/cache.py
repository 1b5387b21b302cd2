"""The prefix cache over both tiers: what falls to the host tier, what comes back, what goes.

Swapping out a sequence and keeping a prefix that nobody uses are one mechanism here. A named
block that has to leave the device is copied to the host tier, unless it has a copy there
already: content never changes, so a copy stays good. A pinned node keeps its host copy.
"""

from collections.abc import Sequence

from headway.core.base.units import Seconds
from headway.core.kv.blocks import BlockPool
from headway.core.kv.misses import MissMemory
from headway.core.kv.prefix import NOWHERE, Node, PrefixTree
from headway.core.kv.tiers import HostLedger, Moves

# Blocks that are looked at to find those to copy ahead of need: more are not evicted in a step.
LOOK_AHEAD = 32


class PrefixCache:
    """Named blocks and the tiers they lie in; the pool and the ledger count the blocks."""

    def __init__(self, pool: BlockPool, ledger: HostLedger) -> None:
        self.tree = PrefixTree()
        self.misses = MissMemory()
        self._pool = pool
        self._ledger = ledger
        self._loading: dict[int, Node] = {}  # device block -> node that the next plan loads
        self._doomed: list[Node] = []  # nobody will match them, but the next plan loads them
        self._num_hosted = 0  # nodes with a host copy
        self._num_pinned = 0  # nodes that are pinned

    @property
    def num_host_available(self) -> int:
        """Host blocks that could be saved into now, or after dropping what they hold."""
        pinned = self._num_pinned
        loading = sum(not node.pins for node in self._loading.values())
        return self._ledger.num_free + self._num_hosted - pinned - loading

    def num_host_available_beside(self, nodes: Sequence[Node]) -> int:
        """The same if these nodes kept the copies that they have."""
        return self.num_host_available - sum(self._may_be_dropped(node) for node in nodes)

    def insert(self, name: bytes, parent: bytes | None, block: int) -> bool:
        """Keep a block that was computed; False when it is there already, or cannot be reached."""
        if not self.tree.insert(name, parent, block):
            return False
        self._pool.retain(block)
        self.misses.found_again(name)
        return True

    def evict(self) -> bool:
        """Make one device block free; False when nobody but tables holds what is there."""
        for _ in range(self.tree.num_candidates):
            node = self.tree.oldest_on_device()
            if node is None:
                return False
            if not node.is_on_device or node.num_device_children:
                continue  # offered again when that changes
            if not self._pool.is_idle(node.block):
                self.tree.use(node)  # held, so in use: to the end of the line
                continue
            if not node.is_on_host and self._make_host_free():
                self._save(node)
            if node.is_on_host or not node.num_children:
                self._leave_device(node)
                return True
            self.tree.use(node)  # its children on the host are being read
        return False

    def save_idle(self, most: int) -> int:
        """Copy up to `most` of the blocks to the host that would be evicted next; how many.

        They stay where they are. When one has to go, nothing needs to be copied any more.
        """
        found: list[Node] = []
        leaves: list[Node] = []
        for _ in range(LOOK_AHEAD):
            leaf = self.tree.oldest_on_device() if len(found) < LOOK_AHEAD else None
            if leaf is None:
                break
            if not leaf.is_on_device or leaf.num_device_children:
                continue  # offered again when that changes
            if not self._pool.is_idle(leaf.block):
                self.tree.use(leaf)  # held, so in use: to the end of the line
                continue
            leaves.append(leaf)
            found += self._idle_path(leaf)
        for leaf in leaves:
            self.tree.offer(leaf)
        return self.save_some(found, most)

    def save_some(self, nodes: Sequence[Node], most: int) -> int:
        """Copy up to `most` of these blocks to the host, where there is room; how many."""
        num_saved = 0
        for node in nodes:
            if not node.is_on_host:
                if num_saved == most or not self._make_host_free(for_later=True):
                    break
                self._save(node)
                num_saved += 1
        return num_saved

    def load(self, nodes: Sequence[Node]) -> list[int]:
        """Bring back a path's host-only nodes, the leading ones that there is room for.

        Returns their blocks, with one reference each.
        """
        self.pin(nodes)  # or making room for the first might drop the last
        while self._pool.num_free < len(nodes) and self.evict():
            pass
        loaded = self._place(nodes, min(len(nodes), self._pool.num_free))
        self.unpin(nodes)
        return loaded

    def abandon(self, blocks: Sequence[int]) -> None:
        """A table let go of its blocks, root first: loads that nobody waits for are cancelled."""
        for block in reversed(blocks):
            if not (self._ledger.is_load_target(block) and self._pool.is_idle(block)):
                continue
            node = self._loading.get(block)
            if node is None or node.block != block:
                self._cancel_load(block)
            elif not node.num_device_children:
                self._leave_device(node)

    def pin(self, nodes: Sequence[Node]) -> None:
        """Neither place of the nodes may be lost until `unpin`; their host copies stay."""
        for node in nodes:
            self._num_pinned += not node.pins
            node.pins += 1

    def unpin(self, nodes: Sequence[Node]) -> None:
        """Undo one `pin`."""
        for node in nodes:
            node.pins -= 1
            self._num_pinned -= not node.pins
            self.tree.offer(node)

    def keep(self, nodes: Sequence[Node]) -> bool:
        """Pin a whole path, saving what has no host copy; False, and nothing done, if too much."""
        self.pin(nodes)
        missing = [node for node in nodes if not node.is_on_host]
        # Pinned ones that have no copy yet were taken off what is available.
        if self.num_host_available < 0:
            self.unpin(nodes)
            return False
        for node in missing:
            is_free = self._make_host_free()
            assert is_free, "the host tier has less room than was counted"
            self._save(node)
        return True

    def discard(self, leaf: Node) -> None:
        """Drop a path that nobody will ever match, from its leaf up; tables keep its blocks.

        It stays as far as somebody comes back for it (a fork that was swapped out too). What the
        next plan loads goes when that plan is out: until then only the host has its content.
        """
        node: Node | None = leaf
        while node is not None and not node.pins and not node.num_children:
            if node.is_on_host and self._ledger.is_loading(node.host):
                self._doomed.append(node)
                return
            if node.is_on_device:
                self._pool.forget(self.tree.displace(node))
            self._drop_host_copy(node)
            self.tree.remove(node)
            node = node.parent

    def expire(self, before: Seconds) -> None:
        """Drop what nobody has used since `before`, on both tiers."""
        while (node := self.tree.oldest_on_host()) is not None:
            if node.used_at >= before:
                self.tree.offer(node)
                break
            if self._may_leave_host(node):
                self._leave_host(node)
        kept: list[Node] = []
        while (node := self.tree.oldest_on_device()) is not None:
            if node.used_at >= before:
                kept.append(node)
                break
            if not node.is_on_device or node.num_device_children:
                continue
            if not self._pool.is_idle(node.block):
                self.tree.use(node)
            elif node.num_children:
                kept.append(node)  # what it has on the host was used later, or is pinned
            else:
                self._leave_device(node)
        for node in kept:
            self.tree.offer(node)

    def take_moves(self) -> Moves:
        """The next plan carries out these moves."""
        loading, self._loading = self._loading, {}
        doomed, self._doomed = self._doomed, []
        moves = self._ledger.take_moves()
        for node in loading.values():
            self.tree.offer(node)
        for node in doomed:
            if self.tree.get(node.name) is node:
                self.discard(node)
        return moves

    def check(self) -> None:
        """Conservation on the host tier, and what pins promise."""
        self.tree.check()
        hosted = [node.host for node in self.tree if node.is_on_host]
        assert len(set(hosted)) == len(hosted) == self._num_hosted, "two nodes share a host block"
        self._ledger.check(set(hosted))
        pinned = [node for node in self.tree if node.pins]
        assert len(pinned) == self._num_pinned, "pins are miscounted"
        assert all(node.is_on_host for node in pinned), "a pinned node has no host copy"
        for node in self._loading.values():
            assert self._ledger.is_loading(node.host), "a node is loaded from where it is not"

    def _place(self, nodes: Sequence[Node], count: int) -> list[int]:
        taken = self._pool.take(count)
        loaded: list[int] = []
        for node, block in zip(nodes, taken, strict=False):
            if not self._ledger.may_load_into(block) or self._ledger.is_loading(node.host):
                break
            self._pool.retain(block)
            self._ledger.load(block, node.host)
            self._loading[block] = node
            self.tree.place(node, block)
            loaded.append(block)
        self._pool.release(taken[len(loaded) :])
        return loaded

    def _idle_path(self, leaf: Node) -> list[Node]:
        """It and those above it that nobody holds, in the order in which they can go."""
        path: list[Node] = []
        node: Node | None = leaf
        while node is not None and self._pool.is_idle(node.block) and len(path) < LOOK_AHEAD:
            path.append(node)
            node = node.parent
        return path

    def _make_host_free(self, *, for_later: bool = False) -> bool:
        """One host block is free to be saved into; the least recently used makes room.

        For a copy that is not needed yet nobody's only place is kept, but no other such copy
        is given up: or they would take each other's place for ever.
        """
        while not self._ledger.num_free:
            node = self.tree.oldest_on_host()
            if node is None:
                return False
            if not self._may_leave_host(node):
                continue
            if for_later and node.is_on_device:
                self.tree.offer(node)
                return False
            self._leave_host(node)
        return True

    def _may_leave_host(self, node: Node) -> bool:
        """Offered again when what is tested here changes."""
        return self._may_be_dropped(node) and (node.is_on_device or not node.num_children)

    def _may_be_dropped(self, node: Node) -> bool:
        """Its host block is available, at the latest once its children have gone."""
        return node.is_on_host and not node.pins and not self._ledger.is_loading(node.host)

    def _save(self, node: Node) -> None:
        assert not self._ledger.is_load_target(node.block), "a block is saved before it is loaded"
        node.host = self._ledger.save(node.block)
        self._num_hosted += 1
        self.tree.offer(node)

    def _leave_device(self, node: Node) -> None:
        """The device block is free; the node stays if it has a host copy."""
        block = self.tree.displace(node)
        self._cancel_load(block)
        self._pool.forget(block)
        if not node.is_on_host:
            self._lose(node)

    def _cancel_load(self, block: int) -> None:
        self._ledger.cancel_load(block)
        if not self._ledger.is_load_target(block):  # else somebody's copy reads it
            node = self._loading.pop(block, None)
            if node is not None:
                self.tree.offer(node)

    def _leave_host(self, node: Node) -> None:
        """The host block is free; the node stays if it is on the device."""
        self._drop_host_copy(node)
        if not node.is_on_device:
            self._lose(node)

    def _drop_host_copy(self, node: Node) -> None:
        if node.is_on_host:
            self._ledger.give_back(node.host)
            node.host = NOWHERE
            self._num_hosted -= 1

    def _lose(self, node: Node) -> None:
        self.tree.remove(node)
        self.misses.lost(node.name)
