"""Root mean square normalisation."""
