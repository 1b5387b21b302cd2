"""The prefix tree: which full blocks of computed tokens are there to be shared, and where.

A radix tree over token ids whose edges are whole blocks: a node is a block, named by the
chained hash of all tokens up to its end, so a path from the root spells a prefix. A node's
content lies on the device, in host memory, or on both. What lies on the device is closed
upwards: whoever reads a node there finds all that comes before it there too.
Source: Zheng et al. 2024 (SGLang, RadixAttention), section 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headway.core.base.units import Seconds
from headway.core.kv.recency import Recency

NOWHERE = -1  # instead of a block's number


@dataclass(slots=True, eq=False)
class Node:
    """One named block. Only PrefixTree changes its links, only PrefixCache its places."""

    name: bytes
    parent: "Node | None" = field(repr=False)  # None: a child of the root
    block: int = NOWHERE  # on the device
    host: int = NOWHERE  # in the host tier
    num_children: int = 0
    num_device_children: int = 0
    pins: int = 0  # while pinned it has a host copy, which stays
    last_used: int = 0  # ticks of the tree's own counter, not time
    used_at: float = 0.0  # seconds, on the tree's clock

    @property
    def is_on_device(self) -> bool:
        """Its content can be read by the next step."""
        return self.block != NOWHERE

    @property
    def is_on_host(self) -> bool:
        """It has a copy in the host tier, or one is planned."""
        return self.host != NOWHERE


class PrefixTree:
    """Maps chains of names to nodes. It holds no references: the pool does that."""

    def __init__(self) -> None:
        self.now = Seconds(0.0)  # time of the plan being made, for `used_at`
        self._nodes: dict[bytes, Node] = {}
        self._ticks = 0
        self._on_device = Recency()  # may be evicted from the device
        self._on_host = Recency()  # may lose their host copy

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    @property
    def num_candidates(self) -> int:
        """Entries kept to find what to evict from the device; bounded by the nodes."""
        return len(self._on_device)

    def get(self, name: bytes) -> Node | None:
        """The node of that name."""
        return self._nodes.get(name)

    def match(self, names: Sequence[bytes]) -> list[Node]:
        """Nodes of the longest known prefix of the chain `names`, root first."""
        found: list[Node] = []
        for name in names:
            node = self._nodes.get(name)
            if node is None:
                break
            found.append(node)
        return found

    def insert(self, name: bytes, parent: bytes | None, block: int) -> bool:
        """`block` holds the content of `name`, which comes after `parent`; False if not needed.

        That is when the name is on the device already (another sequence computed the same
        tokens), or when the parent is not.
        """
        above = None if parent is None else self._nodes.get(parent)
        if parent is not None and (above is None or not above.is_on_device):
            return False
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node(name, above)
            self._use(node)
            if above is not None:
                above.num_children += 1
        elif node.is_on_device:
            return False
        self.place(node, block)
        return True

    def place(self, node: Node, block: int) -> None:
        """The node's content is, or will be before the next step, in `block` of the device."""
        assert not node.is_on_device, "a node has two blocks"
        node.block = block
        if node.parent is not None:
            assert node.parent.is_on_device, "a node is on the device without its parent"
            node.parent.num_device_children += 1
        self.offer(node)

    def displace(self, node: Node) -> int:
        """The node leaves the device; returns its block there."""
        assert node.num_device_children == 0, "a node leaves the device before its children"
        block, node.block = node.block, NOWHERE
        if node.parent is not None:
            node.parent.num_device_children -= 1
            self.offer(node.parent)
        self.offer(node)
        return block

    def remove(self, node: Node) -> None:
        """The node has no content any more."""
        assert not node.num_children, "a node goes before its children"
        assert not node.is_on_device, "a node goes while it has a block"
        assert not node.is_on_host, "a node goes while it has a host copy"
        del self._nodes[node.name]
        if node.parent is not None:
            node.parent.num_children -= 1
            self.offer(node.parent)

    def touch(self, names: Sequence[bytes]) -> None:
        """Mark a path, root first, as just used; its deepest block is the first to go."""
        for name in reversed(names):
            node = self._nodes.get(name)
            if node is not None:
                self.use(node)

    def use(self, node: Node) -> None:
        """Mark one node as just used."""
        self._use(node)
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Something changed that may make the node evictable, on the device or on the host.

        Whoever takes a candidate tests whether it really is; if not, it is forgotten until it
        is offered again. Entries go stale with the node's next use.
        """
        if node.is_on_device and not node.num_device_children:
            self._on_device.push(node.last_used, node.name, self._nodes)
        if node.is_on_host:
            self._on_host.push(node.last_used, node.name, self._nodes)

    def oldest_on_device(self) -> Node | None:
        """The least recently used candidate for eviction; it is one no longer."""
        return self._on_device.pop(self._nodes)

    def oldest_on_host(self) -> Node | None:
        """The same among the host copies."""
        return self._on_host.pop(self._nodes)

    def check(self) -> None:
        """Children are counted right, every parent is there, and on the device where needed."""
        children = dict.fromkeys(self._nodes, 0)
        on_device = dict.fromkeys(self._nodes, 0)
        for node in self:
            assert node.is_on_device or node.is_on_host, "a node has no content"
            if node.parent is not None:
                assert self._nodes.get(node.parent.name) is node.parent, (
                    "a node outlived its parent"
                )
                assert node.parent.is_on_device or not node.is_on_device, "not closed upwards"
                children[node.parent.name] += 1
                on_device[node.parent.name] += node.is_on_device
        for node in self:
            assert node.num_children == children[node.name], "children are miscounted"
            assert node.num_device_children == on_device[node.name], "children are miscounted"
        blocks = [node.block for node in self if node.is_on_device]
        assert len(set(blocks)) == len(blocks), "two nodes share a block"

    def _use(self, node: Node) -> None:
        self._ticks += 1
        node.last_used = self._ticks
        node.used_at = self.now
