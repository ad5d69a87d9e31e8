"""Faults in policies that act with NumPy alone."""

from ..fault import Fault


_FILE = "eqrl/numpy_policy.py"
_PROGRAMS = "eqrl/_interaction/numpy_programs.py"
_TESTS = "tests/interaction/test_numpy_policy.py"
_OPERATIONS = (f"{_TESTS} -k operations_are",)
_ACTS = (f"{_TESTS} -k 'PQN or TAAC-options'",)

FAULTS = (
    Fault(
        "interaction:numpy-policy-forgets-within-an-episode",
        _FILE,
        "action, *self._memory = self._act(",
        "action, *_ = self._act(",
        _ACTS,
    ),
    Fault(
        "interaction:numpy-policy-steps-are-not-counted",
        _FILE,
        "        self._num_steps += 1\n",
        "",
        (f"{_TESTS} -k sphere",),
    ),
    Fault(
        "interaction:numpy-policy-no-cap-of-observations",
        _FILE,
        "if given.shape != self._shape",
        "if False",
        (f"{_TESTS} -k do_not_fit",),
    ),
    Fault(
        "interaction:numpy-policy-integers-are-divided-downwards",
        _FILE,
        "return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))",
        "return x // y",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-large-floats-wrap-as-integers",
        _FILE,
        "return np.where(is_high, highest, np.where(is_low, lowest, inside))",
        "return inside",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-sorts-by-the-last-key-first",
        _FILE,
        "operands[:num_keys][::-1]",
        "operands[:num_keys]",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-sums-backwards-from-the-front",
        _FILE,
        "        if reverse:\n",
        "        if False:\n",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-gathers-beyond-the-end",
        _FILE,
        'if mode == "FILL_OR_DROP":\n        gathered',
        "if False:\n        gathered",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-scatters-beyond-the-end",
        _FILE,
        'within | (mode != "FILL_OR_DROP")',
        "within | True",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-other-random-bits",
        _FILE,
        "for number in range(5):",
        "for number in range(4):",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-scans-forwards-only",
        _FILE,
        "range(length)[::-1] if reverse else range(length)",
        "range(length)",
        _OPERATIONS,
    ),
    Fault(
        "interaction:numpy-policy-keeps-what-no-action-needs",
        _PROGRAMS,
        "if live.intersection(step.results):",
        "if True:",
        (f"{_TESTS} -k is_named_with_its_place",),
    ),
    Fault(
        "interaction:numpy-policy-imports-more-than-numpy",
        _FILE,
        "import numpy as np\n",
        "import jax\nimport numpy as np\n",
        (f"{_TESTS} -k copy_of_one_module",),
    ),
)
