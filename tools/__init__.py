"""Checks and helpers for those who work on this repository."""
