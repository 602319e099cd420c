import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths.returns import Horizon, gae, nstep_return


def slow_nstep(values, ended, discount, limit):
    total, last = 0.0, 0
    for i, (value, end) in enumerate(zip(values, ended, strict=True)):
        total, last = total + discount**i * value, i
        if end or i + 1 == limit:
            break
    return total, last, discount ** (last + 1)


def test_nstep_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    for steps in (1, 2, 5):
        values, ended = rng.normal(size=(steps, 50)), rng.random((steps, 50)) < 0.3
        limit = rng.integers(1, steps + 1, size=50)
        arrays = jnp.asarray(values, jnp.float32), jnp.asarray(ended)
        result = nstep_return(*arrays, 0.9, limit=jnp.asarray(limit))
        expected = np.array([slow_nstep(values[:, b], ended[:, b], 0.9, limit[b]) for b in range(50)])
        np.testing.assert_allclose(np.stack(result, axis=1), expected, rtol=1e-5, atol=1e-6)


def test_nstep_sums_each_of_several_costs_by_itself():
    rng = np.random.default_rng(1)
    values, ended = rng.normal(size=(3, 50, 2)), rng.random((3, 50)) < 0.3
    result = nstep_return(jnp.asarray(values, jnp.float32), jnp.asarray(ended), 0.9)
    for m in range(2):
        alone = nstep_return(jnp.asarray(values[..., m], jnp.float32), jnp.asarray(ended), 0.9)
        np.testing.assert_allclose(result.value[:, m], alone.value, rtol=1e-6)
    np.testing.assert_array_equal(result.last, alone.last)


@pytest.mark.parametrize("length", [20, 200])
@pytest.mark.parametrize("discount", [0.9, 0.97, 1.0])
@pytest.mark.parametrize("name", ["endless", "finite"])
def test_q_threshold_is_the_mean_value_of_an_even_cost(name, length, discount):
    """Cost c a step, T steps: the episodic cost is cT, and ε_q must equal the mean Q_c that such a policy has."""
    if name == "endless" and discount == 1.0:
        return
    cost = 0.3
    if name == "endless":
        mean_q = cost / (1 - discount)
    else:
        mean_q = np.mean([sum(cost * discount**i for i in range(h)) for h in range(1, length + 1)])
    horizon = Horizon(name, length, discount)
    assert horizon.q_threshold(cost * length) == pytest.approx(mean_q, rel=1e-6)


def slow_gae(gains, value, next_value, terminated, truncated, discount, decay):
    """Each advantage by itself: the sum of what follows in its episode, over one lane."""
    advantages = []
    for start in range(len(gains)):
        total, factor = 0.0, 1.0
        for t in range(start, len(gains)):
            bootstrap = 0.0 if terminated[t] else discount * next_value[t]
            total += factor * (gains[t] + bootstrap - value[t])
            factor *= discount * decay
            if terminated[t] or truncated[t]:
                break
        advantages.append(total)
    return advantages


def test_gae_equals_a_plain_loop():
    rng, shape = np.random.default_rng(0), (12, 5)
    arrays = [rng.normal(size=shape) for _ in range(3)]
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    result = gae(
        *(jnp.asarray(x, jnp.float32) for x in arrays),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        discount=0.9,
        decay=0.8,
    )
    lanes = [
        slow_gae(*(x[:, e] for x in arrays), terminated[:, e], truncated[:, e], discount=0.9, decay=0.8)
        for e in range(shape[1])
    ]
    np.testing.assert_allclose(result, np.stack(lanes, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_q_run_is_the_value_of_so_many_steps_of_cost_at_once(discount):
    for name in ("endless", "finite"):
        run = Horizon(name, 20, discount).q_run(jnp.arange(12.0))
        np.testing.assert_allclose(run, [sum(discount**t for t in range(n)) for n in range(12)], rtol=1e-5)


@pytest.mark.parametrize("name", ["endless", "finite"])
def test_the_rest_of_an_episode_is_in_units_of_the_mean_value(name):
    """One unit a step: its mean over the steps of an episode is 1; what never ends is always 1."""
    rest = Horizon(name, 20, 0.9).rest(jnp.arange(1.0, 21.0))
    assert float(rest.mean()) == pytest.approx(1.0, rel=1e-5)
    assert bool(jnp.all(rest == 1.0)) == (name == "endless")
