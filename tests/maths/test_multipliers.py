import jax.numpy as jnp
import numpy as np

from ccpo.maths.multipliers import PID


def run(pid, costs, threshold=10.0):
    state, multipliers = pid.init(1), []
    for cost in costs:
        state, multiplier = pid.update(state, jnp.array([cost]), jnp.array([threshold]))
        multipliers.append(float(multiplier[0]))
    return np.array(multipliers)


def test_pid_follows_a_sequence_worked_by_hand():
    """Errors 10, 20, −5, −60, 4: integral 10, 30, 25, 0, 4; rises 0, 10, 0, 0, 64."""
    expected = [1.0 + 0.1, 2.0 + 0.3 + 2.0, -0.5 + 0.25, 0.0, 0.4 + 0.04 + 12.8]
    expected[2] = 0.0  # −0.25 would reward cost
    np.testing.assert_allclose(run(PID((0.1, 0.01, 0.2)), [20, 30, 5, -50, 14]), expected, rtol=1e-6)


def test_long_safe_or_unsafe_times_do_not_wind_up():
    pid = PID((0.0, 0.1, 0.0), multiplier_max=2.0)
    np.testing.assert_allclose(run(pid, [0.0] * 50 + [13.0]), [0.0] * 50 + [0.3], rtol=1e-6)
    np.testing.assert_allclose(run(pid, [110.0] * 50 + [5.0]), [2.0] * 50 + [1.5], rtol=1e-6)


def test_each_threshold_has_its_own_multiplier_and_waits_for_its_own_episodes():
    pid, threshold = PID((0.1, 0.0, 0.0)), jnp.array([20.0, 40.0])
    state, multiplier = pid.update(pid.init(2), jnp.array([30.0, 50.0]), threshold)
    np.testing.assert_allclose(multiplier, [1.0, 1.0], rtol=1e-6)
    known = jnp.array([True, False])
    following, multiplier = pid.update(state, jnp.array([40.0, 0.0]), threshold, known=known)
    np.testing.assert_allclose(multiplier, [2.0, 1.0], rtol=1e-6)
    assert following.error[1] == state.error[1]
