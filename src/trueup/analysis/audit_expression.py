"""Formulas of a claim file as trees: names, exact numbers, + - * / and whole powers, min, max, remainder.

Python's parser reads the text; what it gives is copied node by node into the three kinds below, and anything
else is refused by name. Nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from trueup.schema import InputError

from .audit_quantity import read_quantity

LONGEST = 500  # characters of a formula
LARGEST_POWER = 8
FUNCTIONS = ("max", "min", "remainder")
Operator = Literal["+", "-", "*", "/", "**", "max", "min", "remainder"]
Comparison = Literal["<", "<=", ">", ">=", "==", "!="]
_OPERATORS: dict[type[ast.operator], Operator] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS: dict[type[ast.cmpop], Comparison] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


@dataclass(frozen=True)
class Number:
    """A number of a formula: exactly what was written."""

    value: Fraction


@dataclass(frozen=True)
class Name:
    """A figure, or what a claim says."""

    name: str


@dataclass(frozen=True)
class Operation:
    """Two operands; of a power the second is a whole number."""

    operator: Operator
    left: Expression
    right: Expression


Expression = Number | Name | Operation


def is_name(text: str) -> bool:
    """Whether a figure or claim can be called so in a formula."""
    plain = text.isidentifier() and text.isascii() and not text.startswith("_")
    return plain and not keyword.iskeyword(text) and text not in FUNCTIONS


def parse_formula(text: str) -> Expression:
    """InputError, naming what is no arithmetic."""
    return _expression(_tree(text), text)


def parse_comparison(text: str) -> tuple[Comparison, Expression, Expression]:
    """`A < B` and the like."""
    tree = _tree(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        raise InputError(f"'{text}' compares nothing: write A < B, A <= B, A > B, A >= B, A == B or A != B")
    word = _COMPARISONS.get(type(tree.ops[0]))
    if word is None:
        raise InputError(f"'{text}': compare with {', '.join(_COMPARISONS.values())}")
    return word, _expression(tree.left, text), _expression(tree.comparators[0], text)


def names_in(expression: Expression) -> Iterator[str]:
    """Every mention of a name, from left to right."""
    match expression:
        case Name(name):
            yield name
        case Operation(_, left, right):
            yield from names_in(left)
            yield from names_in(right)


def _tree(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise InputError(
            f"'{text[:40]}…': a formula has at most {LONGEST} characters; define its parts as figures"
        )
    try:
        return ast.parse(_line(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"'{text}' is no formula: write it like nodes * price * time / 3") from None


def _expression(tree: ast.expr, text: str) -> Expression:
    try:
        return _copied(tree, text)
    except RecursionError:
        raise InputError(f"'{text}' is nested too deeply; define its parts as figures") from None


def _line(text: str) -> str:
    return " ".join(text.split())


def _copied(node: ast.expr, text: str) -> Expression:
    match node:
        case ast.Name(id=name):
            return Name(name)
        case ast.Constant(value=value) if type(value) in (int, float):
            return Number(_number(node, text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Operation("-", Number(Fraction(0)), _copied(operand, text))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _copied(operand, text)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return Operation("**", _copied(left, text), Number(_exponent(right, text)))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            return Operation(_OPERATORS[type(op)], _copied(left, text), _copied(right, text))
        case ast.Call(func=ast.Name(id="max" | "min" | "remainder" as called)):
            return _call(called, node, text)
        case ast.Call(func=called):
            name = ast.unparse(called)[:40]
            raise InputError(f"'{text}': unknown function '{name}'; there are {', '.join(FUNCTIONS)}")
    raise InputError(
        f"'{text}': '{ast.unparse(node)[:40]}' is no arithmetic; a formula has names, numbers, + - * / **, "
        f"{', '.join(FUNCTIONS)}"
    )


def _call(called: Literal["max", "min", "remainder"], node: ast.Call, text: str) -> Expression:
    if len(node.args) != 2 or node.keywords:
        raise InputError(f"'{text}': {called} takes two values")
    return Operation(called, _copied(node.args[0], text), _copied(node.args[1], text))


def _number(node: ast.expr, text: str) -> Fraction:
    """From the source, since a float has rounded 0.1 already."""
    written = ast.get_source_segment(_line(text), node) or ""
    quantity = read_quantity(f"exactly {written.replace('_', '')}")
    assert quantity is not None
    if quantity.unit.text:
        raise InputError(f"'{text}': '{written}' is no plain number")
    return quantity.interval.low


def _exponent(node: ast.expr, text: str) -> Fraction:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value) is not int or value > LARGEST_POWER:
        raise InputError(f"'{text}': an exponent is a whole number of at most {LARGEST_POWER}, written out")
    return Fraction(sign * value)
