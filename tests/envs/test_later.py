import importlib
import sys

from eqrl.envs._gymnax import imported_later


def test_what_is_imported_later_is_run_when_it_is_used_and_seen_by_no_one_else() -> (
    None
):
    sys.modules.pop("colorsys", None)
    with imported_later("colorsys", "sys"):
        colors = importlib.import_module("colorsys")
        assert importlib.import_module("sys") is sys
    assert "colorsys" not in sys.modules
    assert colors.rgb_to_hsv(1, 1, 1) == (0, 0, 1)
    assert "colorsys" in sys.modules

    # Whoever takes something out of it at once has it at once.
    del sys.modules["colorsys"]
    with imported_later("colorsys"):
        taken = importlib.import_module("colorsys").rgb_to_hsv
        assert taken(1, 1, 1) == (0, 0, 1)
    assert sys.modules["colorsys"].rgb_to_hsv is taken
