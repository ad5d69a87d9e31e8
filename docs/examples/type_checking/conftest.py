"""Checks `mylab` while its tests run: before any of it is imported."""

import eqrl


eqrl.typecheck("mylab", strict=True)
