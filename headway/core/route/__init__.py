"""Decisions in front of the engines: whom to admit and where to send them."""
