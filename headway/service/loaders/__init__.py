"""Model files: headers, metadata, tokenizers, chat templates and the built-in model."""
