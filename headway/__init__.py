"""Headway: an LLM inference service; one command from a laptop up to a fleet."""

__version__ = "0.1.0"
