"""Pytrees of arrays as flat, named NumPy arrays and back: the form in which checkpoints hold them."""

from typing import Any

import jax
import numpy as np

from ccpo.errors import FormatError


def _name(path: tuple) -> str:
    return ".".join(str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k)))) for k in path)


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf under the name of its path; random keys as their data."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): np.asarray(jax.random.key_data(x) if _is_key(x) else x) for path, x in leaves}


def from_arrays(template: Any, arrays: dict[str, np.ndarray], *, source: str) -> Any:
    """A tree like the template with the named arrays in it; names, shapes and types must agree exactly."""
    expected = to_arrays(template)
    if set(expected) != set(arrays):
        odd = sorted(set(expected) ^ set(arrays))[0]
        raise FormatError(
            f"{source} does not fit this run: '{odd}' is missing or unknown; use the run it was written by"
        )
    for name, array in arrays.items():
        want = expected[name]
        if array.shape != want.shape or array.dtype != want.dtype:
            raise FormatError(
                f"{source} does not fit this run: '{name}' is {array.dtype}{list(array.shape)}, "
                f"expected {want.dtype}{list(want.shape)}; use the run it was written by"
            )

    def restore(path: tuple, leaf: Any) -> Any:
        array = jax.numpy.array(arrays[_name(path)])
        return jax.random.wrap_key_data(array) if _is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(restore, template)
