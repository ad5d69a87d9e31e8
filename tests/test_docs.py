"""The pages of the documentation hold what they promise."""

import pathlib


DOCS = pathlib.Path(__file__).parent.parent / "docs"


def test_the_page_on_agents_includes_the_example() -> None:
    # A formatter that takes the marker for Python has rewritten it before.
    page = (DOCS / "your-own-agent.md").read_text()
    assert '```python\n--8<-- "docs/examples/redq.py"\n```' in page


def test_the_examples_of_agents_are_under_eighty_lines() -> None:
    for name in ("redq.py", "a2c.py"):
        example = (DOCS / "examples" / name).read_text()
        assert len(example.splitlines()) < 80
