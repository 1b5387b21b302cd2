"""The engine's core: add, cancel, plan, commit. Single-threaded, no I/O."""
