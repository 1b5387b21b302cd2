import numpy as np

from headway.compute.cpu.matrix import behind, is_quantized, quantize
from headway.compute.cpu.pack import Format
from headway.compute.cpu.quantize import quantize_reference
from headway.compute.cpu.weights import KIND


def test_only_inputs_of_quantized_matrices_are_quantized() -> None:
    x = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    want_xq, want_xs, want_xsum = quantize_reference(x)
    for format_ in Format:
        matrix = np.array([int(format_), 0, 64, 1], np.int64)
        assert matrix[KIND] == format_
        xq = np.full((4, 64), 77, np.int8)
        xs = np.full((4, 2), np.nan, np.float32)
        xsum = np.full((4, 4), 77, np.int32)
        own = behind((xq.ctypes.data, xs.ctypes.data, xsum.ctypes.data), 1, 64)
        quantize(matrix, x[1:].ctypes.data, 2, own)
        assert format_.is_quantized == is_quantized(matrix)
        done = slice(1, 3) if format_.is_quantized else slice(0, 0)
        assert np.array_equal(xq[done], want_xq[done])
        assert np.array_equal(xs[done], want_xs[done])
        assert np.array_equal(xsum[done, :3], want_xsum[done, :3])
        xs[done] = np.nan
        assert np.isnan(xs).all(), "rows of other threads are not touched"
