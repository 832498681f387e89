"""Models that engines of others compute, over HTTP: vLLM, SGLang, any OpenAI-compatible server.

The wire's requests become theirs and their answers the wire's events; what a gateway sees is a node
like any other. Read next: `upstream_model`, `relay`, `docs/adr/0031-*.md`.
"""
