"""Private calls about columns: the SQL text of a PySpark `Column`.

PySpark has no public way to read a Column. Without this module, conditions and columns are given as SQL text. Limit:
attributes, literals, operators, function calls, casts, CASE and `expr`; any other Column is refused by name.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import Column

from anabranch.errors import SpecError

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_INFIX = {name: name for name in ("=", "<", ">", "<=", ">=", "<=>", "+", "-", "*", "/", "%")}
_INFIX |= {"and": "AND", "or": "OR", "like": "LIKE", "rlike": "RLIKE"}
_BEFORE = {"!": "NOT", "not": "NOT", "negative": "-"}
_BEHIND = {"isNull": "IS NULL", "isNotNull": "IS NOT NULL"}


def column_text(column: Column) -> str:
    """Returns the SQL text of a column."""
    classic: Any = column
    return _text(classic._jc.node())


def _text(node: Any) -> str:
    match kind := str(node.getClass().getSimpleName()):
        case "UnresolvedAttribute" | "UnresolvedStar":
            return str(node.sql())
        case "ExpressionColumnNode" if _NAME.fullmatch(node.sql()):
            # A column of a DataFrame, such as df.ts.
            return str(node.sql())
        case "SqlExpression":
            return str(node.expression())
        case "Literal":
            value = node.value()
            return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(node.sql())
        case "Alias":
            return f"{_text(node.child())} AS {node.name().apply(0)}"
        case "Cast":
            return f"CAST({_text(node.child())} AS {node.dataType().sql()})"
        case "CaseWhenOtherwise":
            branches = [node.branches().apply(place) for place in range(node.branches().size())]
            cases = " ".join(f"WHEN {_text(each._1())} THEN {_text(each._2())}" for each in branches)
            rest = f" ELSE {_text(node.otherwise().get())}" if node.otherwise().isDefined() else ""
            return f"CASE {cases}{rest} END"
        case "UnresolvedFunction":
            return _call(node)
    raise SpecError(
        f"a column of kind '{kind}' cannot be read", detail=str(node.sql()), hint="write it as F.expr('…') in SQL"
    )


def _call(node: Any) -> str:
    name = str(node.functionName())
    nodes = [node.arguments().apply(place) for place in range(node.arguments().size())]
    texts = [_text(each) for each in nodes]
    grouped = [f"({text})" if _is_compound(each) else text for each, text in zip(nodes, texts, strict=True)]
    match name, grouped:
        case _, [left, right] if name in _INFIX:
            return f"{left} {_INFIX[name]} {right}"
        case _, [value] if name in _BEFORE:
            return f"{_BEFORE[name]} {value}"
        case _, [value] if name in _BEHIND:
            return f"{value} {_BEHIND[name]}"
        case "in", [value, *_]:
            return f"{value} IN ({', '.join(texts[1:])})"
        case "window", [_, _, _, start]:
            if start != "'0 second'":
                raise SpecError(f"a window that starts at {start} is not supported", hint="leave startTime out")
            texts = texts[:2] if texts[1] == texts[2] else texts[:3]
    return f"{name}({'DISTINCT ' if node.isDistinct() else ''}{', '.join(texts)})"


def _is_compound(node: Any) -> bool:
    """Returns True if a text needs parentheses as an operand."""
    kind = node.getClass().getSimpleName()
    return kind == "SqlExpression" or (
        kind == "UnresolvedFunction" and node.functionName() in {*_INFIX, *_BEFORE, "in"}
    )
