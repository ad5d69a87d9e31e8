"""Faults that the tests should see; see `CONTRIBUTING.md`."""
