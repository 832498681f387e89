"""Answers that have to match a grammar: from a JSON Schema or a choice of tools to token masks.

Owns what can be enforced, at which cost, and the matchers themselves; must not know torch, the
scheduler or text formats. Schemas come from clients: they are checked, then tried in a process that
can be killed, before an engine core sees them.
Read next: `schema_check`, `grammar_text`, `grammar_trial`, `matcher`.
"""
