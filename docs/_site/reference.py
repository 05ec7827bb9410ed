"""References to names outside the public ones, which have no page of their own."""

from __future__ import annotations

from docutils import nodes


def unresolved(app: object, env: object, node: nodes.Element, content: nodes.Node) -> nodes.Node | None:
    """Show types of other packages and internal classes as plain text; leave everything else to be reported."""
    target = node.get("reftarget", "")
    kind = node.get("reftype", "")
    if node.get("refdomain") == "py" and kind in ("class", "obj", "exc", "data") and not target.startswith("neotta."):
        return content
    if target.startswith("neotta.") and kind in ("class", "obj"):  # annotations by internal types
        return content
    return None
