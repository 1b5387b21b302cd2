"""The executor for CPUs: NumPy and Numba, never torch."""
