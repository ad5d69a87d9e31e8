"""A trained policy and its picture for each task with a preset not from a paper.

`eqrl train` trains each once, without naming an agent, from a seed that no preset has
seen; the policy and an episode of it (of brax the learning curve) are written into
`docs/results/policies`, and with them a table that shows where its return lies among
those of the preset's seeds. The runs are folders in `--folder`; a finished one is kept,
and one of other settings is refused. Run it as `nox -s policies`, or `nox -s policies
-- --only gymnax/CartPole-v1` for some, whose files replace those of before.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from eqrl.presets import PRESETS, best

from .presets import check_settings, has_ended


SEED = 1000
FOLDER = Path(__file__).parents[1] / "docs" / "results" / "policies"
# GIFs are shrunk to these, so that the repository stays small.
MOST_FRAMES, MOST_PIXELS = 100, 320
# gymnax has no picture of these.
NOT_DRAWN = ("DeepSea-bsuite", "DiscountingChain-bsuite", "UmbrellaChain-bsuite")


def _eqrl(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "eqrl", *words], check=True)


def make(env: str, run: Path) -> None:
    """Trains a policy, and writes it, its picture and `NAME.json` with its return."""
    if (run / "config.json").exists():
        preset = best(env)
        assert preset is not None
        check_settings(run, preset, seed=SEED, num_seeds=1)
        if not has_ended(run):
            _eqrl("train", "--resume", str(run))
    else:
        words = ("--env", env, "--seed", str(SEED), "--log-every", "10000")
        words += ("--folder", str(run))
        _eqrl("train", *words)
    name = env.replace("/", "-")
    _eqrl("export", str(run), "--output", str(FOLDER / f"{name}.policy"))
    if env.startswith("brax/"):
        # Its GIFs need OpenGL, which this machine may lack.
        shutil.copy(run / "learning_curve.png", FOLDER / f"{name}.png")
    elif not env.endswith(NOT_DRAWN):
        _eqrl("render", str(run), "--output", str(run / "episode.gif"))
        shrink(run / "episode.gif", FOLDER / f"{name}.gif")
    returns = json.loads((run / "evaluation.json").read_text())["returns"]
    content = {
        "env": env,
        "agent": json.loads((run / "config.json").read_text())["agent"],
        "seed": SEED,
        "return": round(float(np.mean(returns)), 2),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(content) + "\n")


def shrink(source: Path, target: Path) -> None:
    """Writes a GIF with fewer and smaller images, which lasts as long."""
    with Image.open(source) as image:
        duration = image.info["duration"]
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    every = -(-len(frames) // MOST_FRAMES)
    for frame in frames:
        frame.thumbnail((MOST_PIXELS, MOST_PIXELS))
    small = [frame.quantize(64, dither=Image.Dither.NONE) for frame in frames[::every]]
    small[0].save(
        target,
        save_all=True,
        append_images=small[1:],
        duration=duration * every,
        loop=0,
        optimize=True,
    )


def write_table() -> None:
    """Writes the table of all policies, and their pictures."""
    heads = ("environment", "agent", "least", "greatest", "policy", "between")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    pictures = []
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text())
        preset = best(content["env"])
        reached, known = content["return"], ("", "", "")
        if preset is not None:
            least, greatest = min(preset.returns), max(preset.returns)
            between = "yes" if least <= reached <= greatest else "no"
            known = (f"{least:g}", f"{greatest:g}", between)
        cells = (content["env"], content["agent"], *known[:2], f"{reached:g}", known[2])
        lines.append(f"| {' | '.join(cells)} |")
        for picture in map(file.with_suffix, (".gif", ".png")):
            if picture.exists():
                pictures.append(f"![{content['env']}](policies/{picture.name})")
    (FOLDER / "table.md").write_text("\n".join(lines) + "\n")
    (FOLDER / "pictures.md").write_text("\n".join(pictures) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s policies --")
    parser.add_argument("--folder", type=Path, default=Path("runs/policies"))
    parser.add_argument("--only", nargs="*", help="names of environments")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    presets = (preset for preset in PRESETS.values() if preset.paper is None)
    envs = {preset.env for preset in presets}
    # Other libraries' versions of gymnax's tasks need no policy of their own.
    names = [env.removeprefix("gymnax/") for env in envs]
    envs -= {f"{library}/{x}" for library in ("envpool", "gymnasium") for x in names}
    for env in sorted(envs):
        if options.only is None or env in options.only:
            make(env, options.folder / env.replace("/", "-"))
    write_table()


if __name__ == "__main__":
    main()
