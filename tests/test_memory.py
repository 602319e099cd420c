"""Sizes that no machine has are refused before anything is allocated."""

import time

import jax
import jax.numpy as jnp
import pytest

from ccpo import memory
from ccpo.errors import ConfigError
from helpers import make_trainer


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"replay_steps": 10**12, "steps": 10**12}, r"the replay \(replay_steps\)"),
        ({"rollout_length": 10**12}, r"the replay \(replay_steps\)|rollouts \(rollout_length\)"),
        ({"features": 10**9}, r"networks and optimisers \(hidden, features\)"),
        ({"hidden": (10**6, 10**6)}, r"networks and optimisers \(hidden, features\)"),
    ],
)
def test_absurd_sizes_are_refused_at_once_and_by_name(settings, part, tmp_path):
    began = time.process_time()
    with pytest.raises(ConfigError, match=rf"needs .* GB at least, .* GB of it for ({part}); there are .* GB"):
        make_trainer(tmp_path, **settings)
    assert time.process_time() - began < 20


def test_an_array_inside_of_a_program_that_does_not_fit_is_refused():
    def wide(x):
        return jax.lax.scan(lambda total, _: (total + jnp.sum(jnp.outer(x, x)), None), 0.0, None, length=2)[0]

    memory.check_program(jax.jit(wide), jax.ShapeDtypeStruct((1000,), jnp.float32))
    with pytest.raises(ConfigError, match="for one array of an update"):
        memory.check_program(jax.jit(wide), jax.ShapeDtypeStruct((10**7,), jnp.float32))


def test_memory_is_that_of_the_machine_or_less_if_its_control_group_says_so(tmp_path, monkeypatch):
    whole = memory.available()
    assert whole > 10**8
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "none")))
    for text, expected in (("max\n", None), ("1000000\n", 10**6)):
        limit.write_text(text)
        assert memory.available() == (expected or memory.available())
