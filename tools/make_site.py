"""Builds the documentation as a site, without a network: `make docs`.

Usage: python tools/make_site.py [--output FOLDER] (with what `make docs` installs). The pages are
copied to a folder of their own first. There, a link to a file of the repository leads to the page
of the site that has it, or else to a copy of the file. Notebooks are executed, and the pages of the
API reference are written. Then Sphinx runs with warnings as errors. At last the result is checked:
every public name is in the reference, and no page loads anything from elsewhere.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import make_reference
import nbclient
import nbformat

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STAGED = ROOT / "build" / "site-source"

# The lab's pages lie apart from the others. This is the only place that says where.
LAB_DOCS = ROOT / "lab" / "docs"
LAB_PAGES = ("lab", "study", "simulate", "streams")

# Pages of the site that lie elsewhere in the repository.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "lab/README.md": "laboratory.md",
}
# README.md is for those who have the repository before them. Its sections are pages of the site.
README = {"": "index.md", "install": "install.md", "papers": "papers.md"}

_LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s]+)(?P<after>\))")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["'](?P<url>(?:https?:)?//[^"']*)"""
)


class SiteError(Exception):
    """A page links to what is not there, or the site lacks something."""


def placed(path: Path) -> Path:
    """Where the site's sources have a file of the repository."""
    if path.parent == LAB_DOCS and path.stem in LAB_PAGES:
        return STAGED / path.name
    for folder in (DOCS, LAB_DOCS):
        if path.is_relative_to(folder):
            return STAGED / path.relative_to(folder)
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md" and name not in PAGES:  # to be read as it is, not a page
        name += ".txt"
    return STAGED / PAGES.get(name, f"files/{name}")


def link(page: Path, target: str) -> str:
    """A link of a page, as the page's copy has it; the file that it leads to is copied if needed.

    Raises:
      SiteError: there is no such file.
    """
    name, mark, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", target):
        return target
    path = Path(os.path.normpath(page.parent / name))
    if not path.exists() or not path.is_relative_to(ROOT):
        raise SiteError(f"{page.relative_to(ROOT)} links to {target}, which is not there")
    if path == ROOT / "README.md":
        try:
            copy, mark, anchor = STAGED / README[anchor], "", ""
        except KeyError:
            raise SiteError(
                f"{page.relative_to(ROOT)} links to {target}; README in {__file__} does not say "
                "which page of the site has that section"
            ) from None
    else:
        copy = placed(path)
        if not copy.exists() and path.is_file() and copy.is_relative_to(STAGED / "files"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return os.path.relpath(copy, placed(page).parent) + mark + anchor


def linked(page: Path, text: str) -> str:
    """The Markdown of a page with its links as the copy has them; code is left alone."""
    code: list[str] = []

    def hidden(found: re.Match[str]) -> str:
        code.append(found[0])
        return f"\0{len(code) - 1}\0"

    # Sets of tabs are fences too, but hold text with links.
    text = re.sub(
        r"^(```|~~~)(?!`)(?!{tab).*?^\1$|`[^`\n]+`", hidden, text, flags=re.MULTILINE | re.DOTALL
    )
    text = _LINK.sub(
        lambda found: found["before"] + link(page, found["target"]) + found["after"], text
    )
    return re.sub("\0(\\d+)\0", lambda found: code[int(found[1])], text)


def _indexed(heading: re.Match[str]) -> str:
    """The heading of a setting with an entry of the index, which a search looks at first."""
    words = heading[1].lower().replace("_", " ")
    return f"```{{index}} ! {words}\n```\n\n{heading[0]}"


def repository() -> str:
    """The address of the repository, as pyproject.toml names it; empty if it names none."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^Repository = "(.*)"$', text, re.MULTILINE)
    return found[1] if found else ""


def stage_page(page: Path) -> None:
    """Copies a page or a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = linked(page, "".join(cell["source"]))
        text = json.dumps(notebook)
    else:
        text = linked(page, text)
    if page == DOCS / "reference" / "index.md":
        text = make_reference.linked_index(text)
    if page == DOCS / "settings.md":  # so that a search for "timeout" finds HERRING_TIMEOUT first
        text = re.sub(r"^### `HERRING_(\w+)`\n", _indexed, text, flags=re.MULTILINE)
    copy = placed(page)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text, encoding="utf-8")


def environment() -> dict[str, str]:
    """This environment with its Python's programs first, and without settings of this shell."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HERRING_")}
    return {**clean, "PATH": f"{Path(sys.executable).parent}:{clean['PATH']}"}


def execute(copy: Path) -> None:
    """Executes the copy of a notebook, in a folder of its own, and keeps the outputs in it.

    Raises:
      SiteError: a cell has failed.
    """
    notebook = nbformat.read(copy, as_version=4)
    with tempfile.TemporaryDirectory(prefix="herring-notebook-") as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=120,  # seconds that a cell may take
            kernel_name="python3",
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=environment(), stderr=subprocess.DEVNULL)
        except (nbclient.exceptions.CellExecutionError, nbclient.exceptions.CellTimeoutError) as e:
            raise SiteError(f"{copy.relative_to(STAGED)}: {e}") from None
    nbformat.write(notebook, copy)


def sources() -> Iterator[Path]:
    """All pages of the site that lie in the repository."""
    for folder, _, names in os.walk(DOCS):
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in (".md", ".ipynb") and ".ipynb_checkpoints" not in path.parts:
                yield path
    if LAB_DOCS != DOCS:
        yield from (LAB_DOCS / f"{name}.md" for name in LAB_PAGES)
    yield from (ROOT / name for name in PAGES)


def stage() -> list[str]:
    """Makes the folder that Sphinx reads; returns the names that the reference describes."""
    shutil.rmtree(STAGED, ignore_errors=True)
    STAGED.mkdir(parents=True)
    for folder in {DOCS, LAB_DOCS}:
        for name in ("pictures", "_static"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, STAGED / name, dirs_exist_ok=True)
    shutil.copyfile(DOCS / "conf.py", STAGED / "conf.py")
    for page in sources():
        stage_page(page)
    (STAGED / "reference").mkdir(exist_ok=True)
    return make_reference.write(STAGED / "reference")


def check(site: Path, names: Sequence[str]) -> None:
    """Looks whether the site is whole.

    Raises:
      SiteError: a public name is missing, a search does not find a setting, or a page loads
        something from elsewhere.
    """
    if '"timeout":[[' not in (site / "searchindex.js").read_text(encoding="utf-8"):
        raise SiteError("the index has no entry 'timeout' for HERRING_TIMEOUT")
    # Four lines of text, then one for each name: the name, its kind, and where it is described.
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = zlib.decompress(inventory).decode().splitlines()
    known = {name for name, kind, *_ in map(str.split, entries) if kind.startswith("py:")}
    if missing := sorted({*names} - known):
        raise SiteError(f"the reference lacks {', '.join(missing)}")
    for page in site.rglob("*.html"):
        for found in _LOADED.finditer(page.read_text(encoding="utf-8")):
            raise SiteError(f"{page.relative_to(site)} loads {found['url']}")


def build(site: Path) -> None:
    """Builds and checks the site.

    Raises:
      SiteError: a link leads nowhere, Sphinx has warned, or the site is not whole.
    """
    names = stage()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(execute, sorted(STAGED.rglob("*.ipynb"))))
    from herring import __version__

    # myst-nb puts a folder of its own beside the site.
    made = STAGED.parent / "site-made"
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(STAGED.parent / "site-trees"), str(STAGED), str(made / "html")],
        env={**environment(), "SITE_VERSION": __version__, "SITE_REPOSITORY": repository()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SiteError("Sphinx has warned; its messages name files in build/site-source")
    check(made / "html", names)
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(made / "html", site)
    shutil.rmtree(made)


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the site."""
    parser = argparse.ArgumentParser(description="Builds the documentation as a site.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    options = parser.parse_args(arguments)
    try:
        build(options.output.resolve())
    except SiteError as error:
        print(f"make_site.py: {error}", file=sys.stderr)
        return 1
    pages = len(list(options.output.rglob("*.html")))
    print(f"site: {pages} pages in {os.path.relpath(options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
