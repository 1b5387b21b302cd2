"""Every tensor: models, attention, sampling and the bytes of KV."""
