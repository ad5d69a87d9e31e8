from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All figures that would be written; to render them takes most of the time."""
    written: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: written.append(self))
    return written
