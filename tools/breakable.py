"""Finds the places at which tools/break_it.py may break the product, and draws some by a seed.

A place is one edit of one file. Python is read with `ast`. C++ is read with a scanner that knows
comments, texts and brackets; a breakage that does not compile is drawn again, so it may err.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["KINDS", "Place", "choose", "places"]

KINDS = (
    "comparison turned",
    "bound moved by one",
    "condition negated",
    "statement left out",
    "error swallowed",
    "lock not taken",
    "constant changed",
)
TREES = {"python/herring": (".py",), "src": (".cc", ".h")}
# Their frameworks are not in .venv, so nothing that runs there executes them.
NOT_INSTALLED = re.compile(
    r"python/herring/(horovod/)?(tensorflow|keras|jax)/|python/herring/ray\.py"
)


@dataclasses.dataclass(frozen=True)
class Place:
    """An edit that breaks the product.

    Attributes:
        path: The file, relative to the root.
        kind: One of `KINDS`.
        start: The first character that is replaced.
        end: The character after the last one.
        new: What stands there instead.
        line: The number of the first changed line.
        was: That line, without the blanks around it.
        number: Counts equal edits of equal lines in a file, from 0.
    """

    path: str
    kind: str
    start: int
    end: int
    new: str
    line: int
    was: str
    number: int = 0

    def broken(self, text: str) -> str:
        """Returns the file's text with the breakage."""
        return text[: self.start] + self.new + text[self.end :]

    def difference(self, text: str) -> tuple[str, str]:
        """Returns the first line that the breakage changes, as it was and as it is."""
        ends = text.index("\n", self.end) if "\n" in text[self.end :] else len(text)
        begins = text.rfind("\n", 0, self.start) + 1
        old = text[begins:ends].split("\n")
        new = (text[begins : self.start] + self.new + text[self.end : ends]).split("\n")
        both = zip(old, new + [""] * len(old))
        before, after = next(((a, b) for a, b in both if a != b), (old[0], new[0]))
        return before.strip(), after.strip()

    def draw(self, seed: int) -> str:
        """Returns the number that this place draws: places of other files do not change it."""
        what = (seed, self.path, self.kind, self.was, self.new, self.number)
        return hashlib.sha256(repr(what).encode()).hexdigest()


def places(path: str, text: str) -> list[Place]:
    """Returns all places of a file. `path` says which language it is."""
    edits = _python_edits(text) if path.endswith(".py") else _cc_edits(text, path.endswith(".h"))
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    lines = text.split("\n")
    found: dict[tuple[str, int, int, str], Place] = {}
    equal: dict[tuple[str, str, str], int] = {}
    for kind, start, end, new in sorted(edits):
        if kind == "statement left out" and text.count("\n", start, end) >= _MOST_LINES:
            continue
        line = bisect.bisect_right(begins, start)
        was = lines[line - 1].strip()
        number = equal.get((kind, was, new), 0)
        if (kind, start, end, new) not in found:
            equal[kind, was, new] = number + 1
            found[kind, start, end, new] = Place(path, kind, start, end, new, line, was, number)
    return list(found.values())


def choose(root: Path, tree: str, seed: int, count: int) -> list[Iterator[Place]]:
    """Draws `count` places of a tree, the kinds in turns.

    Each item yields a place, and then others of the same kind in case that one cannot be compiled.
    Every place has its own number, drawn from the seed, and the lowest come first. So what is drawn
    in a file depends on no other file, except that its number must be low enough.
    """
    files = sorted(path for end in TREES[tree] for path in (root / tree).rglob(f"*{end}"))
    names = [path.relative_to(root).as_posix() for path in files]
    every = [
        place
        for name in names
        if not NOT_INSTALLED.match(name)
        for place in places(name, (root / name).read_text(encoding="utf-8"))
    ]
    of_kind = {
        kind: sorted((place for place in every if place.kind == kind), key=lambda p: p.draw(seed))
        for kind in KINDS
    }
    turns = -(-count // len(KINDS))
    return [
        iter(of_kind[KINDS[index % len(KINDS)]][index // len(KINDS) :: turns])
        for index in range(count)
    ]


Edit = tuple[str, int, int, str]  # kind, start, end, what stands there instead

# Both languages: operators turned around, and moved by one.
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
_TURNED |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
# No two moments are equal, so nobody can see such a bound move.
_MOMENT = re.compile(r"\b(now|deadline|left|since|rtt)\b|monotonic|[sS]econds?\b|Nanos")
_MOST_LINES = 8  # of a statement that is left out


def _changed(number: str) -> str:
    """Returns another number: the next one, or twice a large one."""
    if re.fullmatch(r"\d+", number):
        return str(int(number) + 1 if int(number) < 10 else 2 * int(number))
    value = float(number)
    return repr(2 * value if value else 1.0)


# --- Python


_PYTHON_OPERATORS = {
    ast.Lt: "<",
    ast.Gt: ">",
    ast.LtE: "<=",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_LOCK = re.compile(r"lock|changed|mutex|condition", re.IGNORECASE)
# What is only told to people, and what only type checkers read.
_TOLD = re.compile(r"(_?logg?(er|ing)?|warnings|console|sys\.stderr)\.\w+|print|_?log|_?warn|_?say")
_TYPES = re.compile(r"(typing\.)?(cast|TypeVar|ParamSpec|overload|NewType|Literal)")


class _Reader(ast.NodeVisitor):
    """Collects the edits of a module."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line) + 1)
        self._text = text
        self.edits: list[Edit] = []

    def _at(self, line: int, column: int) -> int:
        """Returns the place of a line and a column, which `ast` counts in bytes."""
        characters = self._lines[line - 1].encode()[:column].decode()
        return self._begins[line - 1] + len(characters)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        return start, self._at(node.end_lineno, node.end_col_offset)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self.edits.append((kind, *self._span(node), new))

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        if "TYPE_CHECKING" in test or "version_info" in test or "__name__" in test:
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        start, end = self._span(test)
        self._replace("condition negated", test, f"not ({self._text[start:end]})")

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators):
            word = _PYTHON_OPERATORS[type(operator)]
            between = self._span(left)[1], self._span(right)[0]
            found = re.search(rf"(?<!\S){word}(?!\S)", self._text[slice(*between)])
            if found:
                edit = between[0] + found.start(), between[0] + found.end()
                self.edits.append(("comparison turned", *edit, _TURNED[word]))
                if word in _MOVED and not _MOMENT.search(self._lines[node.lineno - 1]):
                    self.edits.append(("bound moved by one", *edit, _MOVED[word]))
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        one = isinstance(node.right, ast.Constant) and type(node.right.value) is int
        if one and node.right.value == 1 and isinstance(node.op, (ast.Add, ast.Sub)):
            start, end = self._span(node.left)[1], self._span(node)[1]
            if self._text[start:end].lstrip()[:1] in "+-":  # and not a bracket of the left side
                self.edits.append(("bound moved by one", start, end, ""))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("constant changed", node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            start, end = self._span(node)
            if re.fullmatch(r"[\d.]+(e-?\d+)?", self._text[start:end]):
                self._replace("constant changed", node, _changed(self._text[start:end]))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        call = node.value
        if isinstance(call, ast.Call) and _TOLD.fullmatch(ast.unparse(call.func)):
            return
        if isinstance(call, ast.Call):
            self._replace("statement left out", node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if not _TYPES.fullmatch(ast.unparse(node.func)):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets):
            self._replace("statement left out", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("statement left out", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("statement left out", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("statement left out", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        name = ast.unparse(node.exc) if node.exc is not None else ""
        if not name.startswith(("NotImplementedError", "AttributeError", "AssertionError")):
            self._replace("error swallowed", node, "pass")

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            name = item.context_expr
            if isinstance(name, (ast.Name, ast.Attribute)) and _LOCK.search(ast.unparse(name)):
                self._replace("lock not taken", name, '__import__("contextlib").nullcontext()')
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any("overload" in ast.unparse(one) for one in node.decorator_list):
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass


def _python_edits(text: str) -> list[Edit]:
    reader = _Reader(text)
    reader.visit(ast.parse(text))
    return reader.edits


# --- C++

# Comments, texts and preprocessor lines: blanked out, so that places keep their numbers.
_NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|R\"(?P<mark>[^(\n]*)\(.*?\)(?P=mark)\""
    r'|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_OPENING, _CLOSING = "([{", ")]}"
# A statement begins after one of these; `)` and `else` before it would make it part of another.
_STATEMENT = re.compile(r"(?<=[;{}])\s*(?=[A-Za-z_+*-])")
_TARGET = r"(?:[\w.*]|->|::|\[[^\]\n]*\])+"
_CALL = re.compile(r"(?:[\w.]|->|::|\[[^\]\n]*\]|\(\))+\(.*\);", re.DOTALL)
_ASSIGNMENT = re.compile(rf"{_TARGET} (?:[-+*/|&^%]|<<|>>)?= .*;", re.DOTALL)
_STEP = re.compile(rf"(?:\+\+|--){_TARGET};|{_TARGET}(?:\+\+|--);|(?:continue|break|return);")
_NO_STATEMENT = re.compile(
    r"(?:static_assert|if|for|while|switch|log|assert|operator|sizeof|decltype|alignas|friend"
    r"|HERRING_ASSIGN_OR_RETURN)\b"
)
_LOCKED = re.compile(r"std::(lock_guard|scoped_lock|unique_lock)\b[^;{}()]* \w+\(([^;]*)\);")
_RETURN_IF = re.compile(r"HERRING_RETURN_IF_ERROR(?=\()")
_NOT_OK = re.compile(r"\bif \((?:[^;{}\n]*; )?![^;{}\n]*\bok\(\)\) return\b[^;{}]*;")
_ERROR = re.compile(r"(?<=\breturn )(?:Status\(|\{)Code::k\w+,[^;]*(?=;)")
_IF = re.compile(r"\bif (?=\()")
_OPERATOR = re.compile(r"(?<= )(?:==|!=|<=|>=|<|>)(?= )")
_ONE_MORE = re.compile(r"(?<=[\w)\]]) [+-] 1\b(?!\.)")
_NUMBER = re.compile(r"(?<![\w.'])(?:\d+\.\d+|\d+)(?![\w.'])|\b(?:true|false)\b")
# In these, a change does not break the product, or cannot be compiled.
_UNTOUCHED = re.compile(
    r"(?:^|(?<=[;{}]))\s*(?:static_assert|(?:return )?log)\(|\)(?: const)?(?: noexcept)? = 0;"
    r"|\btemplate <|\boperator\W+\(|\bcase \w+:|\bconcept\b"
)


def _closed(code: str, start: int) -> int:
    """Returns the place after the bracket that closes the one at `start`, or the text's end."""
    depth = 0
    for place in range(start, len(code)):
        depth += (code[place] in _OPENING) - (code[place] in _CLOSING)
        if depth == 0:
            return place + 1
    return len(code)


def _statement_end(code: str, start: int) -> int | None:
    """Returns the place after the statement at `start`; None: it has a block of its own."""
    place = start
    while place < len(code):
        if code[place] == ";":
            return place + 1
        if code[place] in "{}":
            return None
        place = _closed(code, place) if code[place] in "([" else place + 1
    return None


def _cc_edits(text: str, header: bool) -> list[Edit]:
    code = _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    untouched = [
        range(
            match.start(), _statement_end(code, match.start() + 1) or code.find("\n", match.end())
        )
        for match in _UNTOUCHED.finditer(code)
    ]
    edits: list[Edit] = []

    def add(kind: str, start: int, end: int, new: str) -> None:
        if not any(start in one for one in untouched):
            edits.append((kind, start, end, new))

    for match in _OPERATOR.finditer(code):
        add("comparison turned", *match.span(), _TURNED[match[0]])
        line = code[code.rfind("\n", 0, match.start()) + 1 : code.find("\n", match.end())]
        if match[0] in _MOVED and not _MOMENT.search(line):
            add("bound moved by one", *match.span(), _MOVED[match[0]])
    for match in _ONE_MORE.finditer(code):
        add("bound moved by one", *match.span(), "")
    for match in _NUMBER.finditer(code):
        other = {"true": "false", "false": "true"}.get(match[0]) or _changed(match[0])
        add("constant changed", *match.span(), other)
    for match in _IF.finditer(code):
        start, end = match.end() + 1, _closed(code, match.end()) - 1
        start = code.rfind(";", start, end) + 1 or start
        start += len(code[start:end]) - len(code[start:end].lstrip())
        if not re.search(r"[^=!<>]=[^=]", code[start:end]):
            add("condition negated", start, end, f"!({text[start:end]})")
    for match in _LOCKED.finditer(code):
        later = match[1] == "unique_lock"
        new = text[match.start() : match.end(2)] + ", std::defer_lock);" if later else ";"
        add("lock not taken", *match.span(), new)
    for match in _RETURN_IF.finditer(code):
        add("error swallowed", *match.span(), "(void)")
    for match in _NOT_OK.finditer(code):
        add("error swallowed", *match.span(), ";")
    for match in _ERROR.finditer(code):
        add("error swallowed", *match.span(), "{}")
    for match in _STATEMENT.finditer(code):
        start = match.end()
        end = _statement_end(code, start)
        body = code[start:end]
        if end is None or _NO_STATEMENT.match(body) or body.startswith("HERRING_"):
            continue
        constructor = header and re.match(r"[A-Z]\w*\(", body)
        shapes = (_CALL, _ASSIGNMENT, _STEP)
        if not constructor and any(shape.fullmatch(body) for shape in shapes):
            add("statement left out", start, end, ";")
    return edits
