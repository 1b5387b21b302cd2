"""Weights on disk: reading, checking and expanding them to float32, without torch."""
