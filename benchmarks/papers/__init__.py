"""Results of published papers, measured again; see `python -m benchmarks.papers`."""
