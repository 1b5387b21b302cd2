"""KV accounting: blocks, block tables, prefix tree. Decides; holds no bytes of KV."""
