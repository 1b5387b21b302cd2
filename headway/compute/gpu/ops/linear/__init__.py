"""Matrices applied to rows."""
