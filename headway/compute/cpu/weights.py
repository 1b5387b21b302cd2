"""From tensors of a file to what the compiled step reads: panels, norms, rotation tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.compute.arch.family import Part, TensorSpec
from headway.compute.arch.registry import tensor_specs
from headway.compute.arch.rope import inverse_frequencies, local_frequencies, rotation_scale
from headway.compute.cpu.conversion import packed_type, shared_type
from headway.compute.cpu.layers import Key, Vectors, describe_layers
from headway.compute.cpu.pack import (
    FORMAT_OF,
    Arena,
    PackedLinear,
    RawMatrix,
    num_panels,
    pack,
    panel_bytes,
    unpacked,
)
from headway.compute.cpu.rope import rotation_tables
from headway.compute.cpu.settings import Quantization
from headway.compute.formats.blocks import expand
from headway.compute.formats.opening import open_weights
from headway.core.base.errors import ModelFileError
from headway.core.base.model_card import ModelCard

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

# Matrices of a layer, in the order of `Weights.linears`; those that share their input are one.
LINEARS: tuple[tuple[Part, ...], ...] = (
    (Part.QUERY, Part.KEY, Part.VALUE),
    (Part.ATTENTION_OUTPUT,),
    (Part.GATE, Part.UP),
    (Part.DOWN,),
)
QKV, OUTPUT, GATE_UP, DOWN = range(4)
# Columns that describe one packed matrix; BIAS is the address of its bias, or 0.
KIND, ADDRESS, INPUTS, PANELS, BIAS = range(5)


class Embedding:
    """Rows of the embedding, expanded when asked for, and multiplied by `scale`."""

    def __init__(
        self, rows_of: Callable[[Ints], RawMatrix], num_bytes: int, scale: float = 1.0
    ) -> None:
        """`rows_of` gives the rows [T, bytes of a row] of [T] ids; num_bytes are its own."""
        self._rows_of = rows_of
        self._scale = np.float32(scale)
        self.num_bytes = num_bytes

    def of(self, token_ids: Ints) -> Floats:
        """[T] ids to [T, C] float32."""
        raw = self._rows_of(token_ids)
        values = expand(raw.type_name, raw.rows)
        if self._scale != 1:
            values *= self._scale
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A model's numbers, and the arrays through which compiled code finds them."""

    embedding: Embedding
    linears: Ints  # [L, 4, 5] KIND, ADDRESS, INPUTS, PANELS, BIAS of each of LINEARS
    head: Ints  # [5] the same
    layers: Ints  # [L, 6] what else there is of a layer; see layers.py
    norms: Floats  # [2 L + 1, C] of attention and MLP, layer after layer; then the output's
    cosines: Floats  # [tables, positions, rope_dim / 2]
    sines: Floats
    packed: tuple[PackedLinear, ...]  # keeps the memory behind ADDRESS alive
    vectors: Vectors  # and behind BIAS and other addresses
    num_bytes: int

    @property
    def type_names(self) -> str:
        """For people: the types of the matrices, "Q4_1, head Q8_0"."""
        *layers, head = (each.format.name for each in self.packed)
        said = " and ".join(sorted(set(layers)))
        return said if {head} == set(layers) else f"{said}, head {head}"


class WeightReader:
    """Reads one file once."""

    def __init__(self, card: ModelCard, quantization: Quantization = Quantization.NONE) -> None:
        """Open and check the file; raises ModelFileError before memory is taken.

        quantization  what becomes of matrices; InvalidSetting where the file forbids it
        """
        specs = tensor_specs(card)
        self._card = card
        self._quantization = quantization
        self._file = open_weights(card, specs)
        held = [spec for spec in specs if spec in self._file]
        self._specs: dict[Key, TensorSpec] = {(s.layer, s.part): s for s in held if not s.is_bias}
        self._biases: dict[Key, TensorSpec] = {(s.layer, s.part): s for s in held if s.is_bias}
        self._vectors = Vectors()
        # A matrix that the file's types forbid is found before memory is taken.
        for spec in self._specs.values():
            if len(spec.shape) > 1:
                self._packed_type(spec)
        self._total = sum(self._file.num_bytes(spec) for spec in held)
        self._done = 0

    def read(self, num_positions: int, progress: Callable[[int, int], None]) -> Weights:
        """Everything; `progress` is told bytes read and bytes in all."""
        card = self._card
        progress(0, self._total)
        head_part = Part.HEAD if (None, Part.HEAD) in self._specs else Part.EMBEDDING
        wanted = [(layer, parts) for layer in range(card.num_layers) for parts in LINEARS]
        # One piece of memory: the system gives large pages to large pieces only, and a step
        # reads all of it once, in this order.
        arena = Arena(sum(self._size(*key) for key in [*wanted, (None, (head_part,))]))
        layers = []
        for layer in range(card.num_layers):
            layers.append([self._packed(layer, parts, arena) for parts in LINEARS])
            progress(self._done, self._total)
        head = self._packed(None, (head_part,), arena)
        embedding = self._embedding(head if head_part is Part.EMBEDDING else None)
        cosines, sines = self._rotation_tables(num_positions)
        norms = self._norms()
        table = describe_layers(card, self._norm, self._vectors)
        biases = [[self._bias(layer, parts) for parts in LINEARS] for layer in range(len(layers))]
        described = [list(map(_described, *each)) for each in zip(layers, biases, strict=True)]
        packed = (*(each for layer in layers for each in layer), head)
        progress(self._total, self._total)
        return Weights(
            embedding=embedding,
            linears=np.array(described, np.int64),
            head=np.array(_described(head, 0), np.int64),
            layers=table,
            norms=norms,
            cosines=cosines,
            sines=sines,
            packed=packed,
            vectors=self._vectors,
            num_bytes=sum(each.data.nbytes for each in packed)
            + embedding.num_bytes
            + self._vectors.num_bytes
            + norms.nbytes
            + cosines.nbytes
            + sines.nbytes,
        )

    def _embedding(self, head: PackedLinear | None) -> Embedding:
        """Out of the tied head, so that it is in memory once; else out of the file's rows.

        A head that got another type on the way has not the file's numbers any more. The rows
        are copied: nothing may keep the file mapped, whose pages would count as this process's
        memory and which could be cut short under it.
        """
        spec, scale = self._specs[None, Part.EMBEDDING], self._card.embedding_scale
        if head is not None and head.format is FORMAT_OF.get(self._file.type_name(spec)):
            return Embedding(lambda token_ids: unpacked(head, token_ids), 0, scale)
        type_name, rows = self._file.type_name(spec), self._file.read_blocks(spec).copy()
        return Embedding(
            lambda token_ids: RawMatrix(type_name, rows[token_ids]), rows.nbytes, scale
        )

    def _packed_type(self, spec: TensorSpec) -> str:
        """The type that a matrix is to have, by itself."""
        is_head = spec.part in (Part.HEAD, Part.EMBEDDING)
        return packed_type(
            self._file.type_name(spec),
            spec.name,
            spec.shape[-1],
            self._quantization,
            is_head=is_head,
        )

    def _type_of(self, specs: Sequence[TensorSpec]) -> str:
        """The type of matrices that share their input."""
        return shared_type(map(self._packed_type, specs), self._quantization)

    def _size(self, layer: int | None, parts: Sequence[Part]) -> int:
        """Bytes that `_packed` will take."""
        specs = [self._specs[layer, part] for part in parts]
        outputs = sum(spec.shape[0] for spec in specs)
        kind = FORMAT_OF[self._type_of(specs)]
        return num_panels(outputs) * panel_bytes(kind, specs[0].shape[1])

    def _packed(self, layer: int | None, parts: Sequence[Part], arena: Arena) -> PackedLinear:
        """One matrix of several that share their input."""
        specs = [self._specs[layer, part] for part in parts]
        common = self._type_of(specs)
        matrices = [
            RawMatrix(self._file.type_name(spec), self._blocks(spec), common) for spec in specs
        ]
        try:
            (packed,) = pack(matrices, arena)
        except ValueError as error:
            names = ", ".join(spec.name for spec in specs)
            raise ModelFileError(self._card.path, f"tensors {names}: {error}") from error
        return packed

    def _norms(self) -> Floats:
        card = self._card
        wanted: list[tuple[int | None, Part]] = []
        for layer in range(card.num_layers):
            wanted += [(layer, Part.ATTENTION_NORM), (layer, Part.MLP_NORM)]
        wanted.append((None, Part.OUTPUT_NORM))
        return np.stack([self._floats(self._specs[key]) for key in wanted])

    def _norm(self, key: Key) -> Floats | None:
        """One that not every layer has."""
        spec = self._specs.get(key)
        return None if spec is None else self._floats(spec)

    def _bias(self, layer: int, parts: Sequence[Part]) -> int:
        """Its address; 0 where none of the matrices has one."""
        pairs = [(self._biases.get((layer, part)), self._specs[layer, part]) for part in parts]
        return self._vectors.add_bias(
            [
                (None if bias is None else self._floats(bias), matrix.shape[0])
                for bias, matrix in pairs
            ]
        )

    def _rotation_tables(self, num_positions: int) -> tuple[Floats, Floats]:
        """Of the layers that see everything, and then of those that turn by themselves."""
        card, factors = self._card, self._norm((None, Part.ROPE_FACTORS))
        frequencies, local = inverse_frequencies(card, factors), local_frequencies(card)
        tables = [rotation_tables(frequencies, num_positions, rotation_scale(card))]
        if local is not None:
            tables.append(rotation_tables(local, num_positions))
        cosines, sines = zip(*tables, strict=True)
        return np.stack(cosines), np.stack(sines)

    def _blocks(self, spec: TensorSpec) -> npt.NDArray[np.uint8]:
        self._done += self._file.num_bytes(spec)
        return self._file.read_blocks(spec)

    def _floats(self, spec: TensorSpec) -> Floats:
        self._done += self._file.num_bytes(spec)
        return self._file.read(spec)


def _described(packed: PackedLinear, bias: int) -> tuple[int, int, int, int, int]:
    return int(packed.format), packed.address, packed.num_inputs, packed.num_panels, bias
