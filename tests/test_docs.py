"""The pages of the documentation hold what they promise."""

import ast
import json
import pathlib
import re
import tomllib

import pytest
import yaml

import eqrl


DOCS = pathlib.Path(__file__).parent.parent / "docs"
TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.py"))


def test_the_page_on_agents_includes_the_example() -> None:
    # A formatter that takes the marker for Python has rewritten it before.
    page = (DOCS / "your-own-agent.md").read_text()
    assert '```python\n--8<-- "docs/examples/redq.py"\n```' in page


def test_the_examples_of_agents_are_under_eighty_lines() -> None:
    for name in ("redq.py", "a2c.py", "behavior_cloning.py", "awac.py"):
        example = (DOCS / "examples" / name).read_text()
        assert len(example.splitlines()) < 80


def test_the_example_of_a_simulator_is_short_and_on_its_page() -> None:
    path = "docs/examples/own_simulator.py"
    assert len((DOCS.parent / path).read_text().splitlines()) < 40
    assert f'```python\n--8<-- "{path}"\n```' in (DOCS / "environments.md").read_text()


def test_the_citation_has_the_version_of_the_library() -> None:
    citation = yaml.safe_load((DOCS.parent / "CITATION.cff").read_text())
    assert citation["version"] == eqrl.__version__


def test_every_public_name_is_on_a_page() -> None:
    pages = "\n".join(path.read_text() for path in DOCS.rglob("*.md"))
    missing = []
    source = DOCS.parent / "eqrl"
    for file in [*source.rglob("__init__.py"), *source.glob("*s.py")]:
        path = file.parent if file.stem == "__init__" else file.with_suffix("")
        module = ".".join(path.relative_to(DOCS.parent).parts)
        if "._" in module:
            continue
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                name = f"{module}.{statement.name}"
                if statement.name[0] != "_" and name not in pages:
                    missing.append(name)
            if not isinstance(statement, ast.ImportFrom) or statement.module is None:
                continue
            for alias in statement.names:
                name = f"{module}.{alias.asname}"
                is_public = not (alias.asname or "_").startswith("_")
                if is_public and not re.search(rf"{re.escape(name)}\b", pages):
                    missing.append(name)
    assert missing == []


def test_the_same_program_makes_the_picture_of_skills_on_both_pages() -> None:
    names = {
        "point": "env",
        "skilled": "agent",
        "batches": "trainer",
        "learned": "solution",
        "skills": "evaluation",
    }
    programs = []
    for page in (DOCS.parent / "README.md", DOCS / "skills.md"):
        before, picture, _ = page.read_text().partition("images/point.png")
        assert picture
        block = re.findall(r"```python\n(.*?)```", before, flags=re.DOTALL)[-1]
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = names.get(node.id, node.id)
        lines = map(ast.unparse, tree.body)
        programs.append(
            [line for line in lines if not line.startswith(("import", "from", "print"))]
        )
    assert len(programs[0]) == 7
    assert programs[0] == programs[1]


def test_every_page_is_in_the_index_and_in_the_navigation() -> None:
    index = (DOCS / "index.md").read_text()
    config = (DOCS.parent / "mkdocs.yml").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    # What a page includes.
    included = ("table", "pictures", "presets", "policies/table", "policies/pictures")
    pages -= {"index.md", *(f"results/{name}.md" for name in included)}
    assert {page for page in pages if f"({page})" not in index} == set()
    assert {page for page in pages if f"  - {page}\n" not in config} == set()


def test_the_files_to_copy_for_type_checking_can_be_read_and_are_on_their_page() -> (
    None
):
    folder = DOCS / "examples" / "type_checking"
    page = (DOCS / "type-checking.md").read_text()
    read = {
        ".py": lambda text: [
            x.name for x in ast.parse(text).body if hasattr(x, "name")
        ],
        ".toml": lambda text: sorted(tomllib.loads(text)["tool"]),
        ".yaml": lambda text: [
            x["id"] for x in yaml.safe_load(text)["repos"][0]["hooks"]
        ],
        ".yml": lambda text: yaml.safe_load(text)["jobs"]["typecheck"]["steps"][-1],
    }
    found = {}
    for path in folder.iterdir():
        assert f'--8<-- "docs/examples/type_checking/{path.name}"' in page
        found[path.name] = read[path.suffix](path.read_text())
    assert found == {
        "conftest.py": [],
        "noxfile.py": ["typecheck"],
        "pyproject-section.toml": ["mypy", "pyright", "ruff"],
        "pre-commit-config.yaml": ["pyright", "mypy"],
        "workflow.yml": {"run": "nox -s typecheck"},
    }


def _cells_of_script(name: str) -> list[tuple[str, str]]:
    """Kind and text of each cell of a tutorial."""
    script = (DOCS / "tutorials" / f"{name}.py").read_text()
    cells = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, text = part.split("\n", 1)
        if head == " [markdown]":
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        kind = "markdown" if head == " [markdown]" else "code"
        cells.append((kind, text.strip("\n")))
    return cells


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_page_of_a_tutorial_is_what_its_script_gives(name: str) -> None:
    page = (DOCS / "tutorials" / f"{name}.md").read_text()
    cells = [
        text if kind == "markdown" else f"```python\n{text}\n```"
        for kind, text in _cells_of_script(name)
    ]
    title, link, rest = page.split("\n\n", 2)
    assert f"{title}\n\n{rest}" == "\n\n".join(cells) + "\n"
    assert f"({name}.ipynb)" in link
    pictures = re.findall(r"!\[.+\]\(\.\./(.+)\)", page)
    assert pictures and all((DOCS / picture).is_file() for picture in pictures)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_notebook_of_a_tutorial_is_what_its_script_gives(name: str) -> None:
    notebook = json.loads((DOCS / "tutorials" / f"{name}.ipynb").read_text())
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    # It shows the pictures that it has drawn in place of those of the page.
    picture = r"!\[.+\]\(\.\./images/tutorials/.+\)\n*"
    assert [cell for cell in cells if "IPython.display" not in cell[1]] == [
        (kind, re.sub(picture, "", text)) for kind, text in _cells_of_script(name)
    ]
    assert not any(cell.get("outputs") for cell in notebook["cells"])
