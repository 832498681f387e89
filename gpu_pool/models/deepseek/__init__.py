"""The DeepSeek family: V2, V3 and what is built like it (Kimi K2). Read next: `model`."""
