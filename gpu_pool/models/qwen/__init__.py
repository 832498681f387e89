"""The Qwen family: Qwen2, Qwen3 and Qwen3 with experts. Read next: `config`."""
