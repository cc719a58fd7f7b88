"""Writes the pages of the API reference from the docstrings of every public name.

Usage: python tools/make_reference.py FOLDER. The sources are parsed, not imported: no framework has
to be installed. A module's public names are those of its ``__all__``. A name that several modules
have is described at the first one in the list below, and the others refer to it.

What many functions share is written once and shown with each of them. The sections ``Args:`` and
``Raises:`` in the docstring of a module or package hold for every function below it that takes such
an argument; errors hold for functions that take one of SHARING (of ``f_async`` only
InvalidArgumentError). What the function ``f`` says of an
argument also holds for ``f_``, ``f_async`` and ``grouped_f``. What stands nearest counts.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import griffe
from sphinx.ext.napoleon import Config, GoogleDocstring

ROOT = Path(__file__).resolve().parent.parent
# Where the packages lie, by name.
PACKAGES = {"herring": ROOT / "python", "herring_lab": ROOT / "lab" / "python"}

# Pages, and the public modules on each of them in the order in which they are described.
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "herring": ("herring: collectives on arrays", ("herring", "herring.planned")),
    "elastic": ("herring.elastic: training that goes on without workers", ("herring.elastic",)),
    "partial": ("herring.partial: rounds that do not wait for everybody", ("herring.partial",)),
    "torch": (
        "herring.torch: PyTorch",
        (
            "herring.torch",
            "herring.torch.functional",
            "herring.torch.backend",
            "herring.torch.torchft",
        ),
    ),
    "jax": ("herring.jax: JAX", ("herring.jax",)),
    "tensorflow": ("herring.tensorflow: TensorFlow", ("herring.tensorflow",)),
    "keras": ("herring.keras: Keras 3", ("herring.keras", "herring.keras.callbacks")),
    "ray": ("herring.ray: Ray Train", ("herring.ray",)),
    "horovod": (
        "herring.horovod: Horovod's API",
        (
            "herring.horovod",
            "herring.horovod.torch",
            "herring.horovod.tensorflow",
            "herring.horovod.tensorflow.keras",
            "herring.horovod.keras",
            "herring.horovod.keras.callbacks",
        ),
    ),
    "models": ("herring.models: cost models", ("herring.models",)),
    "lab": (
        "herring_lab: the laboratory",
        ("herring_lab.emulate", "herring_lab.simulate.job", "herring_lab.simulate.coarse"),
    ),
}
MODULES = tuple(module for _, modules in PAGES.values() for module in modules)

_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Example|Examples|Note|Notes|Raises|Returns|Warns|Yields):$"
)
_OWN = ("self", "cls", "_")  # arguments that are not described
_NAMED = ("Args:", "Raises:")  # sections with an entry for each name
# Who takes one of these arguments takes part in a collective.
SHARING = {"group", "process_set"}
# These do not: they only look at this rank, make something, or have errors of their own.
ALONE = {"add_process_set", "distributed_gradients", "partial_statistics", "remove_process_set"}
# What has no docstring of its own.
_OTHERS = {"__version__": "The version of Herring, as a text."}
_PAGE = re.compile(r"(?<![`\w/])docs/([\w-]+)\.md\b(?!`)")
_NAPOLEON = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)


class Reference:
    """All public names of the package, by module."""

    def __init__(self) -> None:
        """Parses the packages."""
        loader = griffe.GriffeLoader(search_paths=list(PACKAGES.values()))
        self._packages = {name: loader.load(name) for name in PACKAGES}
        loader.resolve_aliases(implicit=True, external=False)
        self._described: dict[str, str] = {}  # where an object is defined -> its public name

    def names(self, module: str) -> list[str]:
        """The names in a module's ``__all__``, sorted."""
        return sorted({*public_names(module)}, key=lambda name: (name.lower(), name))

    def module(self, module: str) -> Iterator[str]:
        """The lines that describe a module."""
        page = self._module(module)
        yield from (module, "-" * len(module), "", f".. py:module:: {module}", "")
        if page.docstring:
            yield from _overview(page.docstring.value)
        repeated: dict[str, list[str]] = {}
        for name in self.names(module):
            other = self._other(module, name)
            if other:
                repeated.setdefault(other.rpartition(".")[0], []).append(name)
            else:
                yield from self._member(module, name)
        for other, names in repeated.items():
            yield from (f".. rubric:: Names that are the same as in {other}", "")
            for name in names:
                kind = self._kind(self._find(module, name))
                yield from _directive(kind, name, f"See :py:obj:`{other}.{name}`.")

    def _module(self, name: str) -> griffe.Object:
        package, _, rest = name.partition(".")
        return self._packages[package][rest] if rest else self._packages[package]

    def _other(self, module: str, name: str) -> str:
        """The public name under which an object was described already; empty if it was not."""
        found, full = self._find(module, name), f"{module}.{name}"
        if found is None:
            return ""
        first = self._described.setdefault(found.path, full)
        return first if first != full and first.rpartition(".")[2] == name else ""

    def _kind(self, found: griffe.Object | None) -> str:
        if found is None:
            return "data"
        if found.is_class:
            error = any(str(base).endswith(("Error", "Exception")) for base in found.bases)
            return "exception" if error else "class"
        return "function" if found.is_function else "data"

    def _member(self, module: str, name: str) -> Iterator[str]:
        found, full = self._find(module, name), f"{module}.{name}"
        if full in MODULES:  # described below, or on another page
            yield from (f"* The module :py:mod:`{full}`", "")
        elif _source(full).is_file():
            yield from _directive("data", name, f"The module ``{full}``.")
        elif found is None:
            yield from _directive("data", name, _OTHERS.get(name, ""))
        elif found.is_class:
            yield from self._class(found, name)
        elif found.is_function:
            text = _text(self._completed(found, module))
            yield from _directive("function", name + _signature(found), text)
        else:
            yield from _directive("data", name, _docstring(found) or _OTHERS.get(name, ""))

    def _class(self, found: griffe.Class, title: str) -> Iterator[str]:
        made = found.members.get("__init__")
        signature = _signature(made, skip=1) if made is not None and made.is_function else ""
        if not signature and "dataclass" in found.labels:
            signature = "(" + ", ".join(str(parameter) for parameter in found.parameters) + ")"
        module = found.module.path
        text = _docstring(found)
        if made is not None and made.is_function:
            text = _text(self._completed(made, module, found))
            if made.docstring:
                text = _docstring(found) + "\n\n" + _text(self._completed(made, module))
        yield from _directive(self._kind(found), title + signature, text)
        for name, member in found.members.items():
            if name.startswith("_") or member.is_alias or not member.docstring:
                continue
            if member.is_function:
                kind = "property" if "property" in member.labels else "method"
                line = name if kind == "property" else name + _signature(member, skip=1)
                inside = list(_directive(kind, line, _text(self._completed(member, module))))
            elif "property" in member.labels:
                inside = list(_directive("property", name, _docstring(member)))
            else:
                continue
            yield from (f"   {line}".rstrip() for line in inside)

    def _completed(
        self, function: griffe.Function, module: str, of: griffe.Class | None = None
    ) -> str:
        """The docstring of a function, or of the class that it makes, with what it shares."""
        docstring = (of or function).docstring
        sections = _sections(docstring.value if docstring else "")
        if of is not None and "Args:" not in sections:
            return docstring.value if docstring else ""
        plain = function.parent is not None and function.parent.is_module
        takes = [parameter.name for parameter in function.parameters]
        where = [function.module.path, module]
        shared = self._siblings(function) if plain else []
        while where[0]:
            shared += [_sections(self._docstring_of(each)) for each in where]
            where = [each.rpartition(".")[0] for each in where]
        described, errors = sections.get("Args:", {}), sections.get("Raises:", {})
        for other in shared:
            for name, text in other.get("Args:", {}).items():
                if name in takes:
                    described.setdefault(name, text)
        makes = function.name[0].isupper()  # an object, such as an optimizer
        if plain and SHARING & {*takes} and not makes and function.name not in ALONE:
            late = function.name.rstrip("_").endswith("_async")  # `wait` raises what comes later
            common = next((one["Raises:"] for one in shared if "Raises:" in one), {})
            for name, text in common.items():
                if not late or name == "InvalidArgumentError":
                    errors.setdefault(name, text)
        said = {name.lstrip("*") for name in described} or {*takes}
        if missing := [name for name in takes if name not in said and name not in _OWN]:
            raise ValueError(f"{function.path}: nothing describes {', '.join(missing)}")
        order = [name for name in takes if name in described]
        order += [name for name in described if name not in order]
        sections["Args:"] = {name: described[name] for name in order}
        sections["Raises:"] = errors
        return _joined(sections)

    def _siblings(self, function: griffe.Function) -> list[dict[str, dict[str, str]]]:
        """The sections of the functions of which this one is another form."""
        found, name = [], function.name
        while (shorter := re.sub(r"(_async|_)$|^grouped_(?!.*(_async|_)$)", "", name)) != name:
            name = shorter
            other = function.parent.members.get(name) if function.parent else None
            if other is not None and not other.is_alias and other.is_function and other.docstring:
                found.append({"Args:": _sections(other.docstring.value).get("Args:", {})})
        return found

    def _docstring_of(self, module: str) -> str:
        try:
            page = self._module(module)
        except KeyError:
            return ""
        return page.docstring.value if page.docstring else ""

    def _find(self, module: str, name: str) -> griffe.Object | None:
        """The object behind a name, where the package defines it."""
        current = module
        for _ in range(20):
            here = self._module(current)
            if name not in here.members:
                current = _where(current, name)
                if not current:
                    return None
                continue
            member = here.members[name]
            try:
                return member.final_target if member.is_alias else member
            except (griffe.AliasResolutionError, griffe.CyclicAliasError):
                return None
        return None


def _overview(docstring: str) -> Iterator[str]:
    """A module's docstring, with a list of what its functions share."""
    sections = _sections(docstring)
    shared = {"Args:": "Arguments", "Raises:": "Errors"}
    yield from (
        *_text(_joined({**sections, **{section: {} for section in shared}})).splitlines(),
        "",
    )
    for section, what in shared.items():
        if section in sections:
            yield from (f".. rubric:: {what} that functions share", "")
            for text in sections[section].values():
                name, _, meaning = " ".join(text.split()).partition(": ")
                yield from (f"* ``{name}``: {meaning}", "")


def _sections(docstring: str) -> dict[str, dict[str, str]]:
    """The text of a docstring (""), and its sections in their order: entries by name."""
    sections: dict[str, dict[str, str]] = {"": {"": ""}}
    section = name = ""
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.match(line):
            section, name = line, ""
            sections[section] = {}
        elif section and line and not line.startswith(" "):
            raise ValueError(f"{line!r} follows the section {section}")
        else:
            entry = re.match(r"  ([*\w][\w, *]*): ", f"{line} ") if section in _NAMED else None
            name = entry[1] if entry else name
            before = sections[section].get(name)
            sections[section][name] = line if before is None else f"{before}\n{line}"
    return sections


def _joined(sections: dict[str, dict[str, str]]) -> str:
    """The docstring that has these sections, in the usual order."""
    order = [section for section in sections if section not in _NAMED and section != "Returns:"]
    parts = []
    for section in [*order[:1], "Args:", "Returns:", "Raises:", *order[1:]]:
        entries = [text.rstrip() for text in sections.get(section, {}).values()]
        if any(entries):
            parts.append("\n".join([*([section] if section else []), *entries]).strip("\n"))
    return "\n\n".join(parts)


def _source(module: str) -> Path:
    path = PACKAGES[module.partition(".")[0]] / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(module: str) -> list[str]:
    """What a module's ``__all__`` holds, names of other modules' ``__all__`` included.

    Raises:
      ValueError: it is not a list of names and of other lists.
    """
    tree = ast.parse(_source(module).read_text(encoding="utf-8"))
    lists: dict[str, list[str]] = {}

    def values(node: ast.expr) -> list[str]:
        if isinstance(node, (ast.List, ast.Tuple)):
            return [name for element in node.elts for name in values(element)]
        if isinstance(node, ast.Dict):
            return [name for key in node.keys if key is not None for name in values(key)]
        if isinstance(node, ast.Starred):
            return values(node.value)
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        if isinstance(node, ast.Name):
            return lists[node.id]
        raise ValueError(f"{module}: __all__ has {ast.unparse(node)}")

    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "__all__":
                    lists[alias.asname or alias.name] = public_names(node.module or "")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                lists[node.targets[0].id] = values(node.value)
            except (ValueError, KeyError):
                if node.targets[0].id == "__all__":
                    raise
    return lists.get("__all__", [])


def _where(module: str, name: str) -> str:
    """The module from which a name comes that is not written out: a star, or a lazy import."""
    for node in ast.walk(ast.parse(_source(module).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] in PACKAGES
        ):
            for alias in node.names:
                if alias.name == name or (alias.name == "*" and name in public_names(node.module)):
                    return node.module
    for each in _source(module).parent.glob("*.py"):  # a table of lazy imports
        if each.stem != "__init__" and name in public_names(f"{module}.{each.stem}"):
            return f"{module}.{each.stem}"
    return ""


def _signature(function: griffe.Function, skip: int = 0) -> str:
    """The parameters as they are written, without self."""
    shown, star = [], False
    parameters = list(function.parameters)
    if skip and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    for parameter in parameters:
        text = parameter.name
        if parameter.kind is griffe.ParameterKind.var_positional:
            text, star = f"*{text}", True
        elif parameter.kind is griffe.ParameterKind.var_keyword:
            text = f"**{text}"
        elif parameter.kind is griffe.ParameterKind.keyword_only and not star:
            shown.append("*")
            star = True
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not text.startswith("*"):
            text += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
        shown.append(text)
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"({', '.join(shown)}){returns}"


def _text(docstring: str) -> str:
    """A docstring as reStructuredText; indented paragraphs are code."""
    parts: list[str] = []
    paragraphs = re.split(r"\n(?:[ ]*\n)+", inspect.cleandoc(docstring))
    for index, paragraph in enumerate(paragraphs):
        lines = paragraph.splitlines()
        if _SECTION.match(lines[0]):  # napoleon knows the rest
            parts += paragraphs[index:]
            break
        indented = [line.startswith("    ") for line in lines]
        follows_text = not parts or not re.match(r"[ *-]|\.\. ", parts[-1])
        if (
            any(indented)
            and not re.match(r"[*-] |\d+\. ", lines[0].lstrip())
            and (not indented[0] or (all(indented) and follows_text))
        ):
            code = textwrap.indent(textwrap.dedent(paragraph), "    ")
            paragraph = f".. code-block:: python\n\n{code}"
        elif all(indented) and parts and parts[-1].startswith(".. code-block"):
            paragraph = textwrap.indent(textwrap.dedent(paragraph), "    ")
            parts[-1] += f"\n\n{paragraph}"
            continue
        parts.append(paragraph)
    text = _PAGE.sub(r":doc:`/\1`", "\n\n".join(parts))
    return str(GoogleDocstring(text, _NAPOLEON))


def _docstring(found: griffe.Object) -> str:
    return _text(found.docstring.value) if found.docstring else ""


def _directive(kind: str, title: str, text: str) -> Iterator[str]:
    yield from ("", f".. py:{kind}:: {title}", "")
    yield from (f"   {line}".rstrip() for line in text.splitlines())
    yield ""


def linked_index(text: str) -> str:
    """The index of the reference, whose table names modules, with links to their pages."""

    def link(found: re.Match[str]) -> str:
        last = found[1].rpartition(".")[2]
        return f"| [`{found[1]}`]({'lab' if last == 'herring_lab' else last}.rst) |"

    return re.sub(r"^\| `(herring[\w.]*)` \|", link, text, flags=re.MULTILINE)


def write(folder: Path) -> list[str]:
    """Writes one page for each entry of PAGES; returns the full names that they describe."""
    reference = Reference()
    described = []
    for page, (title, modules) in PAGES.items():
        lines = [title, "=" * len(title), ""]
        for module in modules:
            lines += [*reference.module(module), ""]
            described += [f"{module}.{name}" for name in reference.names(module)]
        (folder / f"{page}.rst").write_text("\n".join(lines), encoding="utf-8")
    return described


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pages into a folder."""
    parser = argparse.ArgumentParser(description="Writes the pages of the API reference.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"{len(write(options.folder))} names")
    return 0


if __name__ == "__main__":
    sys.exit(main())
