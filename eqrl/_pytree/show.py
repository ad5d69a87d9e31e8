import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import wadler_lindig


def show_values(module: object) -> str:
    """A module as text, all its fields included, with the values of its scalars.

    Equinox shows the shape of an array instead, and leaves out static fields that have
    their default.
    """
    return wadler_lindig.pformat(module, custom=_show_scalar, hide_defaults=False)


def _show_scalar(value: object) -> wadler_lindig.AbstractDoc | None:
    if isinstance(value, jax.core.Tracer):
        return None
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)) or value.ndim != 0:
        return None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return None
    # `str` has the fewest digits that tell a number from its neighbors.
    text = str(np.asarray(value)[()])
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    return wadler_lindig.TextDoc(repr(float(text)) if is_float else text)
