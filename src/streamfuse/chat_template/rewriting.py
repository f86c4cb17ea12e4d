"""Charges in a template's tree, for the work of jinja2 that passes no other place.

Every list of statements begins with a charge for its own nodes. Filters that no template can name stand around what is
written, compared, gone over or sliced.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, TemplateError, nodes

SPEND, TEXT, OPERAND, ITEMS, SLICE = "a charge", "a text", "an operand", "the items of a loop", "a slice"

_REFUSED = (
    nodes.Extends,
    nodes.Block,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.ScopedEvalContextModifier,
    nodes.EvalContextModifier,
)
_BODIES = ("body", "else_")


def rewrite(tree: nodes.Template, environment: Environment) -> nodes.Template:
    for node in tree.find_all(_REFUSED):
        raise TemplateError(f"there is no tag '{type(node).__name__.lower()}' in a chat template")
    for name in tree.find_all(nodes.Name):
        if name.name in ("self", "lipsum") and name.ctx == "load":
            raise TemplateError(f"'{name.name}' is not for chat templates")
    _charge(tree)
    tree.set_environment(environment)
    return tree


def _filtered(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _weight(node: nodes.Node) -> int:
    """The nodes that run when this one does, but for the statements inside of it."""
    weight = 1 + (len(node.data) // 64 if isinstance(node, nodes.TemplateData) else 0)
    for field, value in node.iter_fields():
        if field in _BODIES or (field == "elif_" and isinstance(node, nodes.If)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, nodes.Node):
                weight += _weight(child)
    return weight


def _charge(node: nodes.Node) -> None:
    if isinstance(node, nodes.For) and node.test is not None:
        node.test = _filtered(node.test, SPEND, nodes.Const(_weight(node.test)))
    if isinstance(node, nodes.If):
        for other in node.elif_:
            other.test = _filtered(other.test, SPEND, nodes.Const(_weight(other.test)))
    for field in _BODIES:
        body = getattr(node, field, None)
        if isinstance(body, list):
            steps = nodes.Const(sum(map(_weight, body)), lineno=node.lineno)
            for statement in body:
                _charge(statement)
            charge = _filtered(nodes.Const(None, lineno=node.lineno), SPEND, steps)
            if body:
                body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))
    if isinstance(node, nodes.If):
        for other in node.elif_:
            _charge(other)
    _wrap(node)


def _wrap(node: nodes.Node) -> None:
    """Filters around the expressions of a statement, from the inside out."""
    for field, value in list(node.iter_fields()):
        if field in _BODIES or (field == "elif_" and isinstance(node, nodes.If)):
            continue
        if isinstance(value, list):
            setattr(node, field, [_wrapped(child, node) if isinstance(child, nodes.Node) else child for child in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _wrapped(value, node))


def _wrapped(child: nodes.Node, parent: nodes.Node) -> nodes.Node:
    _wrap(child)
    if not isinstance(child, nodes.Expr):
        return child
    if isinstance(child, nodes.Getitem) and isinstance(child.arg, nodes.Slice):
        parts = [part or nodes.Const(None) for part in (child.arg.start, child.arg.stop, child.arg.step)]
        child = _filtered(child.node, SLICE, *parts)
    if isinstance(parent, nodes.Output) and not isinstance(child, nodes.TemplateData):
        return _filtered(child, TEXT)
    if isinstance(parent, nodes.Concat):
        return _filtered(child, TEXT)
    if isinstance(parent, (nodes.Compare, nodes.Operand)):
        return _filtered(child, OPERAND)
    if isinstance(parent, nodes.Pair) and child is parent.key and not isinstance(child, nodes.Const):
        return _filtered(child, OPERAND)
    if isinstance(parent, nodes.For) and child is parent.iter:
        return _filtered(child, ITEMS)
    return child
