"""Checks the types of `mylab`, statically and while its tests run."""

import nox


@nox.session
def typecheck(session: nox.Session) -> None:
    session.install("-e", ".", "pyright[nodejs]", "mypy", "pytest")
    session.run("pyright")
    session.run("mypy", "mylab")
    # Everything is traced with its types checked, of eqrl and of `mylab`.
    session.run("pytest", *session.posargs, env={"EQRL_TYPECHECK": "1"})
