"""Where a compiled template lets itself be looked after: filters that it does not know of.

Owns where they are put; must not know what they do. Read next: `template_sandbox` (the caller).
"""

from typing import Final, cast

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

WATCH: Final = "watch loop"
JOIN: Final = "join parts"
MEASURE: Final = "measure made"
"""Filters that no template can name."""


class Watched(NodeTransformer):
    """Puts filters of ours around what loops go through, and in the place of `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """A loop."""
        self.generic_visit(node)
        node.iter = _apply(node.iter, WATCH)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        """A text that is written to a variable."""
        self.generic_visit(node)
        node.filter = _apply(node.filter, MEASURE)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Filter:
        """A list that is spelled out."""
        self.generic_visit(node)
        return _apply(node, MEASURE)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        """A tuple, unless it stands for names that are set."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _apply(node, MEASURE)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """Operands of `~`."""
        self.generic_visit(node)
        return _apply(nodes.List(node.nodes, lineno=node.lineno), JOIN)


def _apply(node: nodes.Node | None, name: str) -> nodes.Filter:
    """A filter around an expression; None stands for the block that it belongs to."""
    lineno = None if node is None else node.lineno
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=lineno)
