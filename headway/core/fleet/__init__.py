"""What should be loaded, and what memory each model may take."""
