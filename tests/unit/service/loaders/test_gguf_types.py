import gguf

from headway.service.loaders.gguf_types import TENSOR_TYPES


def test_the_types_are_those_of_the_gguf_library() -> None:
    sizes = gguf.constants.GGML_QUANT_SIZES
    found = {
        number: (t.name, (t.block_values, t.block_bytes)) for number, t in TENSOR_TYPES.items()
    }
    assert found == {int(kind): (kind.name, sizes[kind]) for kind in sizes}
