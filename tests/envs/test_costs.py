import numpy as np
import pytest

from ccpo.envs.costs import CheckedCost
from ccpo.errors import ConfigError, EnvError

STEP = (np.zeros(2), np.zeros(1), 0.0, np.ones(2), {})


@pytest.mark.parametrize("value", [0, 1, 2.5, True, np.float32(0.5), np.array([0.25]), np.array(3)])
def test_one_number_in_any_form_is_a_cost(value):
    cost = CheckedCost(lambda obs, action, reward, next_obs, info: value)(*STEP)
    assert cost == pytest.approx(float(np.asarray(value).item()))
    assert type(cost) is float


@pytest.mark.parametrize("function", [lambda obs, action: 0.0, lambda: 0.0, lambda *, obs: 0.0])
def test_the_wrong_arguments_are_refused_at_once_with_the_right_ones(function):
    with pytest.raises(ConfigError, match=r"must take five arguments, such as: def cost_fn\(obs, action, reward, next"):
        CheckedCost(function)


def test_any_callable_with_five_arguments_will_do():
    CheckedCost(lambda *step: 0.0)
    CheckedCost(lambda obs, action, reward, next_obs, info, scale=2.0: 0.0)
    with pytest.raises(ConfigError, match="is no function"):
        CheckedCost(3.0)


@pytest.mark.parametrize("value", [None, "dear", np.zeros(2), {"cost": 1.0}])
def test_a_result_that_is_no_number_is_refused_with_the_right_form(value):
    def priced(*step):
        return value

    with pytest.raises(EnvError, match=r"cost_fn priced returned .*, and must return one number ≥ 0 at every step"):
        CheckedCost(priced)(*STEP)
