"""Everything there is to run, each in an environment of its own."""

import shutil
from pathlib import Path

import nox


nox.options.sessions = ["tests", "lint", "typecheck"]
nox.options.reuse_existing_virtualenvs = True
# uv installs in seconds what pip takes minutes for.
nox.options.default_venv_backend = "uv|virtualenv"

PROJECT = nox.project.load_toml("pyproject.toml")
JAX_WORLDS = "craftax,jumanji,navix,pgx,playground,xminigrid"
ON_ALL_CORES = ("-n", "auto", "--maxprocesses=8", "--dist=loadfile")


def install(
    session: nox.Session,
    *groups: str,
    options: tuple[str, ...] = (),
    extras: str = "all",
) -> None:
    requirements = nox.project.dependency_groups(PROJECT, *groups)
    session.install(*options, "-e", f".[{extras}]", *requirements)
    keep_bytecode(session)


def keep_bytecode(session: nox.Session) -> None:
    """Keeps the bytecode of the first import, since uv compiles none."""
    session.env["PYTHONDONTWRITEBYTECODE"] = None


@nox.session
def train(session: nox.Session) -> None:
    """Trains an agent: `nox -s train -- td3 --env brax/inverted_pendulum`."""
    install(session)
    # Ctrl-C reaches the training too, which needs time to write what it reached.
    session.run(
        "python",
        "-m",
        "eqrl",
        "train",
        *(session.posargs or ["sac"]),
        interrupt_timeout=120,
    )


@nox.session
def tests(session: nox.Session) -> None:
    """Runs the tests, on all cores; `nox -s tests -- -n 0 -k NAME` in one process."""
    install(session, "tests")
    # The tests of a file share what they compile, so they stay together.
    session.run("pytest", *ON_ALL_CORES, *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def tests_versions(session: nox.Session) -> None:
    """Runs the tests with each Python: `nox -s tests_versions-3.13` with one."""
    install(session, "tests")
    session.run("pytest", *ON_ALL_CORES, *session.posargs)


@nox.session(python="3.11", venv_backend="uv")
def tests_min(session: nox.Session) -> None:
    """Runs the tests with the lowest versions that `pyproject.toml` allows."""
    install(session, "tests", options=("--resolution", "lowest-direct"))
    # Old packages trigger deprecation warnings of their newer dependencies.
    quiet = ("-W", "ignore::DeprecationWarning")
    session.run("pytest", *quiet, *ON_ALL_CORES, *session.posargs)


@nox.session
def bare(session: nox.Session) -> None:
    """Trains where none of brax, gymnax and matplotlib is installed, from a wheel."""
    session.install(".")
    keep_bytecode(session)
    # Without the source tree on the path.
    session.run("python", "-P", "tests/bare.py")


@nox.session
def tests_long(session: nox.Session) -> None:
    """Runs the long tests: several processes, kill loops, soak tests, whole learning.

    The session `tests` leaves them out. With `EQRL_TESTS_OPTIMIZED=1` they compile as
    users do, which takes longer.
    """
    install(session, "tests")
    session.run("pytest", "-m", "long", *ON_ALL_CORES, *session.posargs)


@nox.session
def worlds(session: nox.Session) -> None:
    """Runs the tests of EnvPool, which takes 741 MB, and of other libraries in JAX."""
    install(session, "tests", extras=f"all,envpool,{JAX_WORLDS}")
    files = ("tests/worlds", "tests/cli/test_presets.py")
    session.run("pytest", "-m", "worlds", *files, "-n", "0", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Breaks the library on purpose and checks that a test fails for each fault."""
    install(session, "tests")
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Kills, interrupts and damages real runs: `nox -s faults -- kills --number 20`.

    `nox -s faults -- short` does a little of each kind that takes seconds.
    """
    install(session, "tests")
    name, *arguments = session.posargs or ["all"]
    if name == "short":
        for line in (
            "kills --number 2 --kinds sac",
            "corruption --number 50",
            "fuzz --number 500",
            "command_lines --number 30",
        ):
            module, *given = line.split()
            session.run("python", "-m", f"tests.faults.{module}", *given)
        return
    every = [
        "kills",
        "signals",
        "long_rows",
        "processes",
        "corruption",
        "divergence",
        "fuzz",
        "command_lines",
    ]
    for module in every if name == "all" else [name]:
        given = arguments if name != "all" else []
        session.run("python", "-m", f"tests.faults.{module}", *given)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Checks types of the library, the tests and the snippets of the documentation.

    All that is public has a type that is known; see `tests/typing` for what is inferred
    and for which errors are found.
    """
    install(session, "typecheck")
    snippets = session.create_tmp()
    session.run("python", "docs/snippets.py", snippets)
    session.run("pyright", *session.posargs)
    session.run("pyright", "--verifytypes", "eqrl", "--ignoreexternal")
    for folder in ("tests/typing", snippets):
        session.run("pyright", "--project", folder)
        session.run("mypy", "--config-file", "tests/typing/mypy.ini", folder)
    user = f"{snippets}-of-a-user"
    session.run("python", "-m", "tests.typing.copied", user)
    Path(f"{user}/mylab").mkdir(parents=True, exist_ok=True)
    # The examples are held to the settings that are recommended to users.
    for example in Path("docs/examples").glob("*.py"):
        shutil.copy(example, f"{user}/mylab")
    session.run("pyright", "--project", user)


@nox.session
def wrong_programs(session: nox.Session) -> None:
    """Runs programs with one mistake each, and looks at how they end."""
    install(session, "tests")
    session.run("python", "-m", "tests.typing.runtime", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks the style; `nox -s lint -- --fix` mends what can be mended."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", *session.posargs)
    fix = "--fix" in session.posargs
    session.run("ruff", "format", *([] if fix else ["--check"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation into `site` and checks it; `-- serve` shows it."""
    install(session, "docs")
    session.run(
        "mkdocs",
        *(session.posargs or ["build", "--strict"]),
        env={"NO_MKDOCS_2_WARNING": "1"},
    )
    if not session.posargs:
        session.run("python", "docs/check_site.py")


@nox.session
def pages(session: nox.Session) -> None:
    """Runs every block of the documentation with what is built for a release."""
    session.install(".[all]")
    keep_bytecode(session)
    session.run("python", "docs/run_pages.py", *session.posargs)


@nox.session
def tutorials(session: nox.Session) -> None:
    """Runs the tutorials, and writes their pictures, notebooks and pages."""
    install(session, "tutorials")
    session.run("python", "docs/make_tutorials.py", *session.posargs)


@nox.session
def stranger(session: nox.Session) -> None:
    """Does what a stranger does first, in an empty environment, from a wheel."""
    session.run("python", "tests/stranger.py")


@nox.session
def results(session: nox.Session) -> None:
    """Trains every agent where it fits, and writes `docs/results`; takes hours."""
    install(session)
    session.run("python", "-m", "benchmarks.results", *session.posargs)


@nox.session
def presets(session: nox.Session) -> None:
    """Trains presets with all of their seeds and writes their returns; takes hours.

    Finished runs in `runs/presets` are skipped, and interrupted ones resumed.
    """
    install(session, extras="all,envpool")
    session.run("python", "-m", "benchmarks.presets", *session.posargs)


@nox.session
def policies(session: nox.Session) -> None:
    """Trains and draws a policy by the best preset of each environment."""
    install(session, extras="all,envpool")
    session.run("python", "-m", "benchmarks.policies", *session.posargs)


@nox.session
def papers(session: nox.Session) -> None:
    """Measures results of papers again: `nox -s papers -- sac --seeds 3`; takes hours.

    Finished runs are skipped, and `--resume` resumes interrupted ones.
    """
    install(session, extras="all,envpool")
    session.run("python", "-m", "benchmarks.papers", *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Measures speed in minutes; `nox -s benchmarks -- speed` another benchmark.

    `-- --check FILE` compares with an earlier run, `-- --peers` measures other
    libraries too, and `-- all` runs every other benchmark, which takes hours.
    """
    if not session.posargs or session.posargs[0].startswith("-"):
        install(session)
        session.run("python", "-m", "benchmarks", *session.posargs)
        return
    name, *arguments = session.posargs
    more = {name: f",{JAX_WORLDS}" for name in ("all", "jax_worlds")}
    more |= {name: ",envpool" for name in ("host_cost", "worlds", "goal_choices")}
    more["playground"] = ",playground"
    # The agents of `bits` are those of the tests.
    groups = ("benchmarks", "tests") if name == "bits" else ("benchmarks",)
    install(session, *groups, extras=f"all{more.get(name, '')}")
    every = [
        "learning",
        "tasks",
        "exploration",
        "recall",
        "pbt",
        "skills",
        "disk",
        "brax_ppo",
        "ppo_speed",
        "ppo_population",
        "speed",
        "taac_speed",
        "skill_speed",
        "incremental_speed",
        "population_speed",
        "population_updates",
        "matmul_limit",
        "products",
        "insert",
        "environments",
        "checkpoint_cost",
        "evaluation_cost",
        "host_cost",
        "worlds",
        "jax_worlds",
        "point_skills",
        "opening",
        "skill_methods",
        "skill_choices",
        "reward_cost",
        "first_update",
        "imports",
    ]
    for module in every if name == "all" else [name]:
        session.run("python", "-m", f"benchmarks.{module}", *arguments)
