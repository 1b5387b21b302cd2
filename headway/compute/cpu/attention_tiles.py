"""The two inner loops of attention: query times K, and weights times V.

Both work on up to TILE_ROWS query rows at once, so that every K or V vector that is read is
used for all of them. Numbers come in pairs of bfloat16, and each output element is one chain
of their products (attention_pairs.py) in ascending order (of head_dim, of positions),
whatever the shape of the tile: a row's bits do not depend on its neighbours. How a tile is
cut to fit the machine's registers is decided here only.
"""

from typing import Any

from llvmlite import ir
from numba import types

from headway.compute.cpu.attention_pairs import HAS_WIDE
from headway.compute.cpu.pairs import emit_dot
from headway.compute.cpu.vector import (
    ADDRESS,
    FLOATS,
    INT8_POINTER,
    INT32,
    INT64,
    INTS,
    LANES,
    constant,
    emit_load,
    emit_splat,
    emit_store,
    operation,
)

TILE_ROWS = 6 if HAS_WIDE else 2
FETCHING_ROWS = 4  # tiles of so few rows wait for memory, so they ask for it early
TILE_VECTORS = 4 if HAS_WIDE else 2  # vectors of 16 positions (scores) or outputs (values)
SCORE_STRIDE = 4 * (256 + 16)  # bytes from a row's scores to the next row's; not a power of two


def _number(value: int) -> Any:
    return ir.Constant(INT64, value)


def _emit_switch(builder: Any, rows: Any, emit_case: Any) -> None:
    """Emit one case for each number of rows, 1 .. TILE_ROWS; other numbers do nothing."""
    end = builder.append_basic_block("rows_end")
    switch = builder.switch(rows, end)
    for count in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"rows_{count}")
        switch.add_case(_number(count), block)
        builder.position_at_end(block)
        emit_case(count)
        builder.branch(end)
    builder.position_at_end(end)


class _Loop:
    """A counted loop with vector accumulators carried in registers; end > first."""

    def __init__(self, builder: Any, first: Any, initial: list[Any]) -> None:
        self._builder = builder
        entry = builder.block
        self._body = builder.append_basic_block("loop")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(INT64)
        self.index.add_incoming(first, entry)
        self.carried = [builder.phi(FLOATS) for _ in initial]
        for phi, value in zip(self.carried, initial, strict=True):
            phi.add_incoming(value, entry)

    def close(self, end: Any, new: list[Any]) -> None:
        """Go round while the next index is below `end`, then fall out."""
        builder = self._builder
        following = builder.add(self.index, _number(1))
        here = builder.block
        self.index.add_incoming(following, here)
        for phi, value in zip(self.carried, new, strict=True):
            phi.add_incoming(value, here)
        out = builder.append_basic_block("loop_end")
        builder.cbranch(builder.icmp_signed("<", following, end), self._body, out)
        builder.position_at_end(out)


def _emit_prefetch(builder: Any, address: Any) -> None:
    """Fetch a line into the second cache; any address will do."""
    kind = ir.FunctionType(ir.VoidType(), [INT8_POINTER, INT32, INT32, INT32])
    function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
    read, second, data = (ir.Constant(INT32, value) for value in (0, 2, 1))
    builder.call(function, [builder.inttoptr(address, INT8_POINTER), read, second, data])


@operation(types.void, ADDRESS)
def prefetch(builder: Any, address: Any) -> None:
    """Fetch a line into the second cache; any address will do."""
    _emit_prefetch(builder, address)


def _make_scores(vectors: int) -> Any:
    @operation(types.void, types.intp, ADDRESS, types.intp, ADDRESS, types.intp, ADDRESS, ADDRESS)
    def scores(
        builder: Any,
        rows: Any,
        query: Any,
        head_dim: Any,
        key_groups: Any,
        key_stride: Any,
        value_groups: Any,
        out: Any,
    ) -> None:
        """Dot products of `rows` queries with the positions of some groups of 16.

        query         pairs of bfloat16 [head_dim / 2, rows]
        key_groups    addresses of the groups' K, pairs of bfloat16 [head_dim / 2, 16] with
                      key_stride bytes from one pair of dimensions to the next
        value_groups  addresses of the same groups' V, which is fetched ahead
        out           float32 rows of SCORE_STRIDE bytes, [rows, 16 * groups]
        """

        def emit_case(count: int) -> None:
            def address(source: Any, j: int) -> Any:
                return emit_load(builder, _at(builder, source, 8 * j), INT64, 8)

            keys = [address(key_groups, j) for j in range(vectors)]
            soon = [address(value_groups, j) for j in range(vectors)]
            loop = _Loop(builder, _number(0), [constant(0.0)] * (count * vectors))
            shift = builder.mul(loop.index, key_stride)
            if count <= FETCHING_ROWS:
                for j in range(vectors):
                    place = builder.add(soon[j], builder.shl(loop.index, _number(6)))
                    _emit_prefetch(builder, place)
            columns = [emit_load(builder, builder.add(key, shift), INTS, 4) for key in keys]
            base = builder.add(query, builder.mul(loop.index, _number(4 * count)))
            new = []
            for i in range(count):
                value = emit_load(builder, _at(builder, base, 4 * i), INT32, 4)
                pair = emit_splat(builder, value, INTS)
                for j in range(vectors):
                    old = loop.carried[i * vectors + j]
                    new.append(emit_dot(builder, old, columns[j], pair))
            loop.close(builder.lshr(head_dim, _number(1)), new)
            for i in range(count):
                for j in range(vectors):
                    place = _at(builder, out, i * SCORE_STRIDE + 4 * LANES * j)
                    emit_store(builder, place, new[i * vectors + j], 4)

        _emit_switch(builder, rows, emit_case)

    return scores


def _make_values(vectors: int) -> Any:
    @operation(
        types.void,
        types.intp,
        ADDRESS,
        types.intp,
        types.intp,
        ADDRESS,
        ADDRESS,
        types.intp,
        types.intp,
        ADDRESS,
        types.intp,
    )
    def values(
        builder: Any,
        rows: Any,
        weights: Any,
        first: Any,
        end: Any,
        groups: Any,
        fetch: Any,
        column_bytes: Any,
        value_stride: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        """Add the weighted V of pairs first .. end - 1 (end > first) to `rows` outputs.

        weights     bfloat16 in rows of SCORE_STRIDE bytes
        groups      addresses of the V of each 16 positions, pairs of bfloat16 with value_stride
                    bytes from one pair of positions to the next; the columns start
                    column_bytes into each
        fetch       as many addresses, laid out alike, of what is needed next
        out         float32 [rows, 16 * vectors] with out_stride bytes from row to row
        """

        def emit_case(count: int) -> None:
            bases = [builder.add(out, builder.mul(out_stride, _number(i))) for i in range(count)]
            places = [_at(builder, base, 4 * LANES * j) for base in bases for j in range(vectors)]
            loop = _Loop(builder, first, [emit_load(builder, p, FLOATS, 4) for p in places])
            group = builder.shl(builder.lshr(loop.index, _number(3)), _number(3))
            row = builder.mul(builder.and_(loop.index, _number(LANES // 2 - 1)), value_stride)
            shift = builder.add(column_bytes, row)
            start = emit_load(builder, builder.add(groups, group), INT64, 8)
            start = builder.add(start, shift)
            if count <= FETCHING_ROWS:
                ahead = emit_load(builder, builder.add(fetch, group), INT64, 8)
                for offset in range(0, 4 * LANES * vectors, 64):
                    _emit_prefetch(builder, _at(builder, builder.add(ahead, shift), offset))
            columns = [
                emit_load(builder, _at(builder, start, 4 * LANES * j), INTS, 4)
                for j in range(vectors)
            ]
            base = builder.add(weights, builder.shl(loop.index, _number(2)))
            new = []
            for i in range(count):
                weight = emit_load(builder, _at(builder, base, i * SCORE_STRIDE), INT32, 4)
                pair = emit_splat(builder, weight, INTS)
                for j in range(vectors):
                    old = loop.carried[i * vectors + j]
                    new.append(emit_dot(builder, old, columns[j], pair))
            loop.close(end, new)
            for place, value in zip(places, new, strict=True):
                emit_store(builder, place, value, 4)

        _emit_switch(builder, rows, emit_case)

    return values


def _at(builder: Any, address: Any, offset: int) -> Any:
    return builder.add(address, _number(offset))


scores_wide = _make_scores(TILE_VECTORS)
scores_single = _make_scores(1)
values_wide = _make_values(TILE_VECTORS)
values_pair = _make_values(2)
