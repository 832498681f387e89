"""The Llama family. Read next: `model`."""
