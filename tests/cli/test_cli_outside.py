"""The command line with simulators outside JAX."""

import csv
import json
import threading
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from PIL import Image

import eqrl
from eqrl._cli import main
from eqrl.envs import GymnasiumEnv, _gymnasium, _host
from tests.reporting.test_render import Constant


class Corridor(gymnasium.Env[Any, Any]):
    """Walks to the right, from `start`, until its steps are over; draws where it is."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    # Of all, as a device that is worn out.
    steps_left = 10**9

    def __init__(self, render_mode: str | None = None, start: int = 0) -> None:
        self.render_mode = render_mode
        self._start = start
        # No way to save it.
        self._lock = threading.Lock()

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self._start
        return self._observed, {"x_position": self._place}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Corridor.steps_left -= 1
        if Corridor.steps_left < 0:
            raise RuntimeError("the motor\nis on fire")
        self._place += 1
        infos = {"x_position": self._place}
        return self._observed, float(action[0]), self._place >= 9, False, infos

    @property
    def _observed(self) -> Any:
        return np.array([self._place / 10, 0], np.float32)

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return None
        image = np.zeros((16, 32, 3), np.uint8)
        image[:, self._place : self._place + 2] = 255
        return image


_ENV = "gymnasium/Corridor-v0"


@pytest.fixture(scope="module", autouse=True)
def registered() -> Any:
    make: Any = Corridor
    gymnasium.register("Corridor-v0", make, max_episode_steps=7)
    yield
    del gymnasium.registry["Corridor-v0"]


_TINY = [
    *("--hidden-sizes", "8", "--num-steps", "60", "--log-every", "20"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]


def test_a_run_is_trained_evaluated_resumed_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x"
    options = ["--env-option", "start=4", "--env-option", "state_descriptor=x"]
    train = ["train", "td3", "--env", _ENV, *options, *_TINY, "--folder", str(folder)]
    assert main([*train, "--seeds", "2"]) == 0
    # Simulators take long, so there are fewer episodes.
    assert "mean return of 64 greedy episodes" in capsys.readouterr().out
    assert len(json.loads((folder / "evaluation.json").read_text())["returns"][0]) == 64
    config = json.loads((folder / "config.json").read_text())
    assert config["env_options"] == ["start=4", "state_descriptor=x"]
    assert "episodes_resumed" not in config

    assert main(["evaluate", str(folder), "--num-episodes", "3"]) == 0
    assert main(["export", str(folder), "--output", str(tmp_path / "x.policy")]) == 0
    capsys.readouterr()

    assert main(["render", str(folder)]) == 0
    printed = Path(capsys.readouterr().out.strip())
    assert printed == folder / "episode_of_seed_0.gif"
    animation: Any
    with Image.open(printed) as animation:
        # The first state and those after each step, of which the last is at 9.
        places = []
        for index in range(animation.n_frames):
            animation.seek(index)
            white = np.asarray(animation.convert("L"))[0] > 127
            places.append(int(np.argmax(white)))
    assert places == [4, 5, 6, 7, 8, 9]
    # All simulators but those of training are gone, which go with its environment.
    assert not _host.PICTURES

    # What it has learned until a simulator fails is kept, in a longer training. The
    # seed whose simulator failed resumes as well.
    monkeypatch.setattr(Corridor, "steps_left", 10)
    resume = ["train", "--resume", str(folder), "--num-steps", "100"]
    assert main(resume) == 1
    said = capsys.readouterr().err
    assert "RuntimeError: the motor is on fire. So training stopped" in said
    assert "from its last checkpoint" in said
    assert said.count("cannot return into the middle of an episode") == 1
    config = json.loads((folder / "config.json").read_text())
    assert config["episodes_resumed"] is False
    monkeypatch.setattr(Corridor, "steps_left", 10**9)
    assert main(resume[:-2]) == 0
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    last = [(row["seed"], row["step"], float(row["nonfinite"])) for row in rows[-2:]]
    assert last == [("0", "100", 0), ("1", "100", 0)]
    assert "nan" not in capsys.readouterr().err
    # Where it has ended, no episode has to be taken up.
    assert main(resume[:-2]) == 0
    assert "cannot return" not in capsys.readouterr().err


def _render(env: eqrl.envs.AbstractEnv[Any], path: Path) -> None:
    agent = Constant()
    eqrl.render(agent, jnp.ones(1), env, path, key=jr.key(0))


def test_a_picture_that_cannot_be_made_is_refused_before_an_episode_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cart = eqrl.envs.Masked(GymnasiumEnv("InvertedPendulum-v5", max_steps=2), (0,))
    monkeypatch.setattr("eqrl._reporting.episodes._play", None)
    # As where OpenGL is missing, which a process of its own finds out.
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    _gymnasium.check_opengl.cache_clear()
    with pytest.raises(ValueError, match=r"nothing.*`MUJOCO_GL=egl` or `MUJOCO_GL=osm"):
        _render(cart, tmp_path / "x.gif")
    _gymnasium.check_opengl.cache_clear()
    corridor = GymnasiumEnv(Corridor, max_steps=3)
    is_there = lambda package: package != "imageio_ffmpeg"
    monkeypatch.setattr("eqrl._reporting.episodes.is_installed", is_there)
    with pytest.raises(ModuleNotFoundError, match=r"imageio-ffmpeg.*`pip install"):
        _render(corridor, tmp_path / "x.mp4")
    with pytest.raises(ValueError, match=r"must end in `\.gif` or `\.mp4`"):
        _render(corridor, tmp_path / "x.png")


def test_what_a_simulator_does_wrong_when_it_draws_is_said(tmp_path: Path) -> None:
    def render(self: Corridor) -> None:
        if self._place == 2:
            raise OSError("no lamp")

    blind = type("Blind", (Corridor,), {"render": lambda self: None})
    with pytest.raises(
        ValueError, match="`GymnasiumEnv` gives an array of type object"
    ):
        _render(GymnasiumEnv(blind, max_steps=3), tmp_path / "x.gif")
    broken = type("Broken", (Corridor,), {"render": render})
    with pytest.raises(eqrl.SimulatorError, match=r"after 2 steps .* OSError: no lamp"):
        _render(GymnasiumEnv(broken, max_steps=3), tmp_path / "x.gif")
    assert not _host.PICTURES
