#!/usr/bin/env python3
"""GEMM rates of torch on this CPU: M=512, N=K=1536, and M=1 (a decode step's shape).

The int8 rows: torch._int_mm (s8 x s8 -> s32), and the dynamically quantized
linear layer (oneDNN or FBGEMM under torch.ao), activations quantized included.
The best of several timed batches counts. Needs: torch.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

K = N = 1536
THREADS = 2


def seconds(function: Callable[[], object]) -> float:
    """Seconds a call, of the fastest of seven batches."""
    for _ in range(5):
        function()
    best = float("inf")
    for _ in range(7):
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < 0.25:
            function()
            calls += 1
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def main() -> None:
    """Print a line for each shape and type."""
    torch.set_num_threads(THREADS)
    print(
        "torch",
        torch.__version__,
        "threads",
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
    )
    for m in (512, 16, 1):
        flops = 2 * m * N * K
        for dtype in (torch.float32, torch.bfloat16):
            x, w = torch.randn(m, K, dtype=dtype), torch.randn(N, K, dtype=dtype)
            took = seconds(partial(torch.nn.functional.linear, x, w))
            print(f"M={m:<4} {dtype!s:<16} {took * 1e6:9.1f} us {flops / took / 1e9:8.1f} GFLOP/s")
        a = torch.randint(-128, 127, (m, K), dtype=torch.int8)
        b = torch.randint(-128, 127, (N, K), dtype=torch.int8).t()
        try:
            took = seconds(partial(torch._int_mm, a, b))
            print(f"M={m:<4} int8 _int_mm     {took * 1e6:9.1f} us {flops / took / 1e9:8.1f} GOP/s")
        except RuntimeError as error:
            print(f"M={m:<4} int8 _int_mm     not available: {str(error)[:80]}")
        for engine in torch.backends.quantized.supported_engines:
            if engine == "none":
                continue
            torch.backends.quantized.engine = engine
            layer = torch.ao.quantization.quantize_dynamic(
                torch.nn.Sequential(torch.nn.Linear(K, N, bias=False)), dtype=torch.qint8
            )
            x = torch.randn(m, K)
            try:
                took = seconds(partial(layer, x))
                rate = flops / took / 1e9
                print(f"M={m:<4} int8 {engine:<11} {took * 1e6:9.1f} us {rate:8.1f} GOP/s")
            except RuntimeError as error:
                print(f"M={m:<4} int8 {engine:<11} not available: {str(error)[:80]}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
