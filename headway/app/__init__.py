"""Composition: settings, command line and one short module per kind of process."""
