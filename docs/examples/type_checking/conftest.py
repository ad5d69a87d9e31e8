"""Checks `mylab` while its tests run: before anything of it is imported."""

import eqrl


eqrl.typecheck("mylab", strict=True)
