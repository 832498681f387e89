"""The Gemma family: Gemma 2 and the text part of Gemma 3. Read next: `model`."""
