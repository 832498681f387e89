"""The gpt-oss family. Read next: `model`."""
