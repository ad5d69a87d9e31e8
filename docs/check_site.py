"""Checks the built site: that its reference can be read and lacks nothing.

It prints what it counts, and ends with an error if a figure is not what it must be.
"""

import ast
import html.parser
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import sys
import typing


ROOT = pathlib.Path(__file__).parent.parent
MODULES = ("eqrl", "eqrl.envs", "eqrl.nn", "eqrl.losses", "eqrl.spaces", "eqrl.presets")
MOST_CHARACTERS = 60_000

# How the docstrings of Python's own types and methods begin.
BUILTINS = (
    "Convert a string or number to a floating",
    "Convert a number or string to an integer",
    "Returns True when the argument is true",
    "bool(object)",
    "bool(x) -> bool",
    "int([x]) -> integer",
    "Built-in immutable sequence",
    "str(object='') -> str",
    "dict() -> new empty dictionary",
    "Initialize self. See help(type(self))",
)


HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


class Page(html.parser.HTMLParser):
    """The text of a page's article and of its entries, and what links can point to."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.pieces: list[str] = []
        self.ids: set[str] = set()
        # The entry of the reference that is being read, and all with what they say.
        self.entry: str | None = None
        self.entries: dict[str, str] = {}
        # The open tag of a signature or the like, which is no text.
        self.silent: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        kinds = (given.get("class") or "").split()
        self.inside = self.inside or tag == "article"
        self.ids.update(value for name, value in attrs if name == "id" and value)
        if "doc-object" in kinds or tag in HEADINGS:
            self.entry = given.get("id") if "doc-heading" in kinds else None
        if self.entry is not None:
            self.entries.setdefault(self.entry, "")
        if tag in {*HEADINGS, "pre"} or "doc-class-bases" in kinds:
            self.silent = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "article"
        self.silent = None if tag == self.silent else self.silent

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.pieces.append(data)
        if self.inside and self.entry is not None and self.silent is None:
            self.entries[self.entry] += data.strip()

    @property
    def text(self) -> str:
        # An address or a passage may be broken by the markup of its words.
        return re.sub(r"\s+", " ", "".join(self.pieces))


def public_names() -> set[str]:
    """The public classes, functions and types of the library, by their public path."""
    names: set[str] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                names.add(f"{name}.{statement.name}")
            # A module that only uses a name imports it without `as`.
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                for each in statement.names:
                    public = f"{name}.{each.asname}"
                    found = getattr(module, each.asname or each.name)
                    # Of a module that is public whole, what it defines.
                    names |= defined(public, found) or {public}
    return {name for name in names if not re.search(r"\.(_|None$)", name)}


def defined(name: str, module: object) -> set[str]:
    """The classes and functions of a module; empty for anything else."""
    if not inspect.ismodule(module):
        return set()
    statements = ast.parse(inspect.getsource(module)).body
    return {
        f"{name}.{each.name}"
        for each in statements
        if isinstance(each, ast.FunctionDef | ast.ClassDef)
    }


def members(name: str) -> set[str]:
    """The fields and methods of a public class, its own and what it inherits."""
    found = pkgutil.resolve_name(name)
    if not isinstance(found, type):
        return set()
    return {
        f"{name}.{member}"
        for base in found.__mro__
        if base.__module__.startswith("eqrl")
        for member in {*vars(base), *vars(base).get("__annotations__", {})}
        if not member.startswith("_")
    }


def main() -> None:
    site = pathlib.Path(sys.argv[1]) if sys.argv[1:] else ROOT / "site"
    pages: dict[str, Page] = {}
    for path in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(path.read_text())
        pages[path.relative_to(site).as_posix()] = page
    reference = {name: each for name, each in pages.items() if "reference" in name}
    text = " ".join(each.text for each in reference.values())
    builtins = sum(text.count(start) for start in BUILTINS)
    addresses = len(re.findall(r"object at 0x[0-9a-f]+", text))
    ids = set().union(*(each.ids for each in reference.values()))
    # Aliases of types have a line of a table in place of an entry.
    table = " ".join(each.text for name, each in reference.items() if "tools" in name)
    missing = sorted(
        name
        for name in public_names()
        if name not in ids and not re.search(rf"{re.escape(name)}\b", table)
    )
    # Those of a class without an entry, such as a type for annotations, need none.
    all_members = set[str]().union(*map(members, public_names() & ids))
    unlisted = sorted(all_members - ids)
    bare = [
        name
        for each in reference.values()
        for name, said in each.entries.items()
        if not said
    ]
    longest = max(pages, key=lambda name: len(pages[name].text))
    entries: list[dict[str, typing.Any]] = json.loads(
        (site / "search" / "search_index.json").read_text()
    )["docs"]
    skill_extras = sum("SkillExtras" in entry["title"] for entry in entries)
    figures = {
        "passages of Python's built-ins": builtins,
        "addresses of objects": addresses,
        "public names without an entry": len(missing),
        f"of {len(all_members)} fields and methods without an entry": len(unlisted),
        "entries without a text": len(bare),
        f"pages over {MOST_CHARACTERS:,} characters": sum(
            len(each.text) > MOST_CHARACTERS for each in pages.values()
        ),
        "titles that a search for `SkillExtras` misses": int(skill_extras == 0),
    }
    print(f"{len(reference)} pages of reference, {len(ids)} targets of links.")
    print(f"The longest page: {longest}, {len(pages[longest].text):,} characters.")
    for name, number in figures.items():
        print(f"{number} {name}")
    if missing or unlisted:
        print(f"Missing: {', '.join([*missing, *unlisted])}")
    if bare:
        print(f"Without a text: {', '.join(bare)}")
    if any(figures.values()):
        sys.exit("The site is not what it must be.")


if __name__ == "__main__":
    main()
