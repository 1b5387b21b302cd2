"""Databases and shared counters behind protocols; with an embedded default for each."""
