"""From a plan's columns to arrays that every executor starts from."""
