"""The layout of an observation space, by which a policy flattens observations without Gymnasium."""

import numpy as np
from gymnasium import spaces

from ccpo.observations import Layout


def layout_of(space: spaces.Space) -> Layout:
    """In the order in which Gymnasium flattens the space."""
    match space:
        case spaces.Dict():
            return {"dict": [[name, layout_of(part)] for name, part in space.spaces.items()]}
        case spaces.Tuple():
            return {"tuple": [layout_of(part) for part in space.spaces]}
        case spaces.Discrete():
            return {"one_hot": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            starts = getattr(space, "start", np.zeros_like(space.nvec))  # new in Gymnasium 1.0
            return {"one_hots": np.ravel(space.nvec).tolist(), "starts": np.ravel(starts).tolist()}
    return {"box": list(space.shape or ())}
