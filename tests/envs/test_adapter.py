"""The adapter against small environments: every way to give a cost, every way to be wrong."""

import numpy as np
import pytest
from gymnasium import Env, spaces
from gymnasium.wrappers import TimeLimit

from ccpo.envs.adapter import CostEnv
from ccpo.errors import EnvError, NumericalError
from helpers import scaled


class Fake(Env):
    """Echoes the action as reward and its absolute value as cost; the observation counts the steps."""

    def __init__(self, *, observation_space=None, action_space=None, form="info", **answers):
        self.observation_space = observation_space or spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (1,))
        self.form, self.answers = form, answers
        self.seeds, self.actions, self.buffer, self.closed = [], [], np.zeros(3), False

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.buffer[:] = 0.0
        return self.answers.get("obs", self.buffer), {}

    def step(self, action):
        self.actions.append(action)
        self.buffer += 1.0
        value = float(np.sum(action))
        obs = self.answers.get("obs", self.buffer)
        reward, cost = self.answers.get("reward", value), self.answers.get("cost", abs(value))
        terminated, truncated = self.answers.get("terminated", False), self.answers.get("truncated", False)
        match self.form:
            case "info":
                return obs, reward, terminated, truncated, {"cost": cost}
            case "six":
                return obs, reward, cost, terminated, truncated, {}
            case "none":
                return obs, reward, terminated, truncated, {}
            case "old":
                return obs, reward, terminated, {"cost": cost}

    def close(self):
        self.closed = True


def adapt(env=None, *, episode_length=10, **kwargs):
    return CostEnv(env or Fake(), "Fake", episode_length=episode_length, **kwargs)


def half(env):
    """One step with the action ½."""
    env.reset()
    return env.step(np.full(env.spec.action_size, 0.5, np.float32))


@pytest.mark.parametrize("form", ["info", "six"])
def test_cost_is_recognised_in_both_forms(form):
    obs, reward, cost, terminated, truncated = half(adapt(Fake(form=form, reward=np.float64(2.0))))
    assert obs.tolist() == [1.0, 1.0, 1.0]
    assert obs.dtype == np.float32
    assert (reward, cost, terminated, truncated) == (2.0, 0.5, False, False)
    assert [type(v) for v in (reward, cost, terminated, truncated)] == [float, float, bool, bool]


@pytest.mark.parametrize("form", ["info", "six", "none"])
def test_cost_fn_sees_the_environment_s_own_step_and_wins(form):
    seen = []

    def cost_fn(obs, action, reward, next_obs, info):
        seen.append((obs.copy(), action.copy(), reward, next_obs.copy()))
        return 7.0

    env = adapt(Fake(form=form, action_space=spaces.Box(0.0, 4.0, (1, 2))), cost_fn=cost_fn)
    assert half(env)[2] == 7.0
    env.step(np.array([-1.0, 1.0], np.float32))
    obs, action, reward, next_obs = seen[1]
    # The environment reuses its buffer: the observation before the step must still be the old one.
    assert (obs[0], next_obs[0], reward) == (1.0, 2.0, 4.0)
    assert action.tolist() == [[0.0, 4.0]]


def test_missing_cost_is_an_error_that_says_what_to_do():
    with pytest.raises(EnvError, match=r'Fake: no cost at step 1 of episode 1; put it into info\["cost"\].*cost_fn='):
        half(adapt(Fake(form="none")))


def test_negative_cost_is_an_error():
    with pytest.raises(EnvError, match=r"cost -1 at step 1 of episode 1 is negative; costs must be ≥ 0"):
        half(adapt(Fake(cost=-1.0)))


def test_old_gym_step_and_reset_are_errors():
    with pytest.raises(EnvError, match=r"step\(\) returned 4 values; it must return Gymnasium's 5"):
        half(adapt(Fake(form="old")))
    env = Fake()
    env.reset = lambda seed=None: np.zeros(3)
    with pytest.raises(EnvError, match=r"reset\(\) must return \(observation, info\), not ndarray"):
        adapt(env).reset()


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ([-1.0, -1.0], [-2.0, 0.0]),
        ([1.0, 1.0], [4.0, 1.0]),
        ([0.0, 0.0], [1.0, 0.5]),
        ([-9.0, np.inf], [-2.0, 1.0]),
    ],
)
def test_actions_are_clipped_and_scaled_like_the_spec_says(action, expected):
    fake = Fake(action_space=spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0]), dtype=np.float64))
    env = adapt(fake)
    env.reset()
    action = np.array(action, np.float32)
    env.step(action)
    assert fake.actions[-1].tolist() == expected
    np.testing.assert_allclose(fake.actions[-1], scaled(env.spec, action))


def test_actions_of_a_unit_box_are_clipped_and_not_shared():
    fake = Fake()
    env = adapt(fake)
    env.reset()
    mine = np.array([3.0], np.float32)
    env.step(mine)
    env.step(np.array([-3.0], np.float32))
    assert [a.tolist() for a in fake.actions] == [[1.0], [-1.0]]
    assert mine.tolist() == [3.0]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1.0, np.inf, (2,)),
        spaces.Box(0, 3, (2,), np.int64),
        spaces.MultiBinary(2),
    ],
)
def test_action_spaces_that_are_no_finite_box_are_errors(space):
    with pytest.raises(
        EnvError, match=r"Fake: (actions must be a Box of real numbers|the action Box must have finite)"
    ):
        adapt(Fake(action_space=space))


@pytest.mark.parametrize(
    ("space", "sample", "flat"),
    [
        (spaces.Box(-9.0, 9.0, (2, 2)), np.array([[1.0, 2.0], [3.0, 4.0]]), [1.0, 2.0, 3.0, 4.0]),
        (spaces.Box(-9.0, 9.0, ()), np.array(5.0), [5.0]),
        (spaces.Discrete(3), 1, [0.0, 1.0, 0.0]),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(-9.0, 9.0, (2,)), spaces.MultiBinary(1)])),
            {"a": 1, "b": (np.array([3.0, 4.0]), np.array([1]))},
            [0.0, 1.0, 3.0, 4.0, 1.0],
        ),
    ],
)
def test_observations_are_flattened(space, sample, flat):
    env = adapt(Fake(observation_space=space, obs=sample), cost_fn=lambda *_: 0.0)
    first = env.reset()
    assert env.spec.observation_size == len(flat)
    for obs in (first, half(env)[0]):
        assert obs.tolist() == flat
        assert obs.dtype == np.float32


def test_observations_that_cannot_be_flattened_are_errors():
    graph = spaces.Dict(a=spaces.Graph(spaces.Box(0, 1, (1,)), None))
    with pytest.raises(EnvError, match=r"observations must be a Box, a Discrete space, or a Dict or Tuple of them"):
        adapt(Fake(observation_space=graph))


def test_an_observation_that_does_not_fit_its_space_is_an_error():
    with pytest.raises(EnvError, match=r"observation at step 0 of episode 1 has 2 numbers, its observation_space 3"):
        adapt(Fake(obs=np.zeros(2))).reset()


@pytest.mark.parametrize("obs", [5.0, np.zeros(1), np.zeros(2), np.zeros((3, 2)), np.zeros(0)], ids=np.shape)
def test_no_observation_of_a_step_is_broadcast(obs):
    fake = Fake()
    env = adapt(fake)
    env.reset()
    fake.answers["obs"] = obs
    with pytest.raises(
        EnvError, match=rf"observation at step 1 of episode 1 has {np.size(obs)} numbers, its observation_space 3"
    ):
        env.step(np.zeros(1, np.float32))


@pytest.mark.parametrize("obs", ["text", {"a": 1}, [[1.0], [1.0, 2.0]], object()], ids=type)
def test_an_observation_that_is_no_array_of_numbers_is_an_error(obs):
    with pytest.raises(EnvError, match=r"the observation at step 0 of episode 1 is no member of Box"):
        adapt(Fake(obs=obs)).reset()


@pytest.mark.parametrize("value", [None, np.zeros(1), np.zeros((1, 1)), [1.0], "1", 1j, {"speed": 1.0}], ids=repr)
@pytest.mark.parametrize("quantity", ["reward", "cost"])
def test_a_reward_or_cost_that_is_not_one_number_is_an_error(quantity, value):
    expected = "no cost at step 1" if quantity == "cost" and value is None else f"the {quantity} at step 1 of episode 1"
    with pytest.raises(EnvError, match=expected):
        half(adapt(Fake(**{quantity: value})))


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.int64(1), np.array(1.0)], ids=repr)
def test_numbers_of_any_kind_are_taken(value):
    assert half(adapt(Fake(reward=value, cost=value)))[1:3] == (1.0, 1.0)


@pytest.mark.parametrize("value", [None, np.zeros(2, bool), "no", [True]], ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_an_end_that_is_not_true_or_false_is_an_error(name, value):
    with pytest.raises(EnvError, match=rf"'{name}' at step 1 of episode 1 is .*; it must be true or false"):
        half(adapt(Fake(**{name: value})))


@pytest.mark.parametrize("info", [None, [], "cost"], ids=repr)
def test_an_info_that_is_no_dict_has_no_cost(info):
    fake = Fake()
    fake.step = lambda action: (np.zeros(3), 0.0, False, False, info)
    with pytest.raises(EnvError, match=r"no cost at step 1 of episode 1"):
        half(adapt(fake))


def test_a_step_that_returns_nothing_is_an_error():
    fake = Fake()
    fake.step = lambda action: None
    with pytest.raises(EnvError, match=r"step\(\) returned NoneType; it must return Gymnasium's 5"):
        half(adapt(fake))


@pytest.mark.parametrize(("method", "step"), [("reset", 0), ("step", 1)])
def test_what_an_environment_raises_is_told_in_one_line_with_its_place(method, step):
    fake = Fake()
    setattr(fake, method, lambda *_, **__: 1 / 0)
    place = rf"Fake: {method}\(\) failed at step {step} of episode 1 with ZeroDivisionError: division by zero"
    with pytest.raises(EnvError, match=rf"{place} \(test_adapter.py, line \d+\)") as caught:
        half(adapt(fake))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_cost_function_that_fails_is_told_and_gets_a_number_as_reward():
    with pytest.raises(EnvError, match=r"cost_fn failed at step 1 of episode 1 with KeyError"):
        half(adapt(cost_fn=lambda obs, action, reward, next_obs, info: info["speed"]))
    with pytest.raises(EnvError, match=r"the reward at step 1 of episode 1 is None"):
        half(adapt(Fake(reward=None), cost_fn=lambda *_: 0.0))


def test_observations_are_copies_of_a_reused_buffer():
    env = adapt(Fake(observation_space=spaces.Box(-9.0, 9.0, (3,))))
    env.env.buffer = np.zeros(3, np.float32)
    first = env.reset()
    env.step(np.zeros(1, np.float32))
    assert first.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quantity", ["observation", "reward", "cost"])
def test_values_that_are_not_finite_are_located(quantity, bad):
    fake = Fake()
    env = adapt(fake)
    env.reset()
    env.reset()
    env.step(np.zeros(1, np.float32))
    if quantity == "observation":
        fake.buffer[1] = bad
    else:
        fake.answers[quantity] = bad
    place = r"observation\[1\]" if quantity == "observation" else quantity
    with pytest.raises(NumericalError, match=rf"^Fake: {place} is {bad} at step 2 of episode 2; values must be finite"):
        env.step(np.zeros(1, np.float32))


def test_infinities_that_would_cancel_are_found_and_large_values_are_not_mistaken():
    with pytest.raises(NumericalError, match=r"observation\[0\] is inf at step 0 of episode 1"):
        adapt(Fake(obs=np.array([np.inf, -np.inf, 0.0]))).reset()
    obs = half(adapt(Fake(obs=np.array([9e11, 9e11, -9e11]))))[0]
    assert np.isfinite(obs).all()


@pytest.mark.parametrize("quantity", ["observation", "reward", "cost"])
@pytest.mark.parametrize("size", [2e12, 1e30, 1e39])
def test_values_that_learning_cannot_square_are_refused_before_they_spoil_it(quantity, size):
    """1e30 overflows the variance of observations, 1e39 overflows float32 itself."""
    value = np.array([0.0, -size, size]) if quantity == "observation" else size
    fake = Fake()
    env = adapt(fake)
    env.reset()
    fake.answers["obs" if quantity == "observation" else quantity] = value
    with (
        np.errstate(over="ignore"),
        pytest.raises(NumericalError, match=rf"{quantity}.* at step 1 of episode 1; .*at most 1e\+12 in size"),
    ):
        env.step(np.zeros(1, np.float32))


@pytest.mark.parametrize(("low", "high", "message"), [(-1e39, 1.0, "finite bounds"), (1.0, 1.0, "is empty")])
def test_action_boxes_that_nothing_can_act_in_are_errors(low, high, message):
    with np.errstate(over="ignore"):
        space = spaces.Box(np.array([low]), np.array([high]), dtype=np.float64)
    with pytest.raises(EnvError, match=message):
        adapt(Fake(action_space=space))


def test_length_from_argument_spec_time_limit_or_attribute():
    with_attribute = Fake()
    with_attribute.episode_length = 5
    with_spec = Fake()
    with_spec.spec = type("Spec", (), {"max_episode_steps": 6})()
    assert adapt(Fake(), episode_length=4).spec.episode_length == 4
    assert adapt(with_attribute, episode_length=None).spec.episode_length == 5
    assert adapt(with_spec, episode_length=None).spec.episode_length == 6
    assert adapt(TimeLimit(Fake(), 7), episode_length=None).spec.episode_length == 7
    assert adapt(TimeLimit(TimeLimit(Fake(), 8), 9), episode_length=None).spec.episode_length == 8
    assert adapt(TimeLimit(Fake(), 7), episode_length=3).spec.episode_length == 3


@pytest.mark.parametrize(
    ("env", "length", "message"),
    [
        (Fake(), None, r"Fake: the episode length is unknown; give episode_length="),
        (Fake(), 0, r"episode_length=0 is not allowed; give a whole number of steps ≥ 1"),
        (Fake(), 2.5, r"episode_length=2.5 is not allowed"),
        (TimeLimit(Fake(), 5), 6, r"episode_length=6 is beyond the environment's own limit of 5 steps"),
    ],
)
def test_impossible_lengths_are_errors(env, length, message):
    with pytest.raises(EnvError, match=message):
        adapt(env, episode_length=length)


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 3), lambda env: TimeLimit(env, 5)])
def test_episodes_are_truncated_at_their_length_with_or_without_an_inner_limit(wrap):
    env = adapt(wrap(Fake()), episode_length=3)
    for _ in range(2):
        env.reset()
        ends = [env.step(np.zeros(1, np.float32))[3:] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]


def test_an_end_is_terminated_or_truncated_and_never_both():
    assert half(adapt(Fake(terminated=np.True_), episode_length=1))[3:] == (True, False)
    assert half(adapt(Fake(terminated=True, truncated=True)))[3:] == (True, False)
    assert half(adapt(Fake(truncated=True)))[3:] == (False, True)


def test_what_an_early_end_means_is_a_failure_or_a_success():
    assert adapt().spec.early_end == "failure"
    assert adapt(early_end="success").spec.early_end == "success"
    with pytest.raises(EnvError, match="early_end='disaster' is not allowed; give one of failure, success"):
        adapt(early_end="disaster")


NAMES = ("speed", "edge")


def test_several_costs_are_in_the_order_of_their_names():
    env = adapt(Fake(cost={"edge": 2, "speed": np.float64(0.25)}), costs=NAMES)
    assert env.spec.costs == NAMES
    obs, reward, cost, *ends = half(env)
    assert (cost.dtype, cost.tolist()) == (np.float32, [0.25, 2.0])
    assert (obs.tolist(), reward, ends) == ([1.0] * 3, 0.5, [False, False])
    six = adapt(Fake(form="six", cost={"speed": 1.0, "edge": 0.0}), costs=NAMES)
    assert half(six)[2].tolist() == [1.0, 0.0]
    by_function = adapt(Fake(form="none"), costs=NAMES, cost_fn=lambda *_: {"edge": 3.0, "speed": 4.0})
    assert half(by_function)[2].tolist() == [4.0, 3.0]


def test_several_costs_may_stand_beside_one():
    class Both(Fake):
        def step(self, action):
            *outcome, info = super().step(action)
            return *outcome, {**info, "costs": {"speed": 1.0, "edge": 2.0}}

    assert half(adapt(Both(), costs=NAMES))[2].tolist() == [1.0, 2.0]
    assert half(adapt(Both()))[2] == 0.5


@pytest.mark.parametrize(
    ("cost", "names", "error", "message"),
    [
        (
            {"speed": 1.0},
            NAMES,
            EnvError,
            "Fake: the cost at step 1 of episode 1 has the names speed; every step must na",
        ),
        ({"speed": 1.0, "egde": 1.0}, NAMES, EnvError, "has the names speed, egde; every step must name speed, edge"),
        (1.0, NAMES, EnvError, r"has no names: 1.0; every step must name speed, edge"),
        (
            {"speed": 1.0, "edge": np.nan},
            NAMES,
            NumericalError,
            "cost 'edge' is nan at step 1 of episode 1; values must",
        ),
        ({"speed": -1.0, "edge": 0.0}, NAMES, EnvError, "cost 'speed' -1 at step 1 of episode 1 is negative"),
        (
            {"speed": 1.0, "edge": 1.0},
            ("cost",),
            EnvError,
            r"is \{'speed': 1.0, 'edge': 1.0\}; it must be one number: give a cost_fn that makes one, or name",
        ),
        (
            [1.0, 2.0],
            ("cost",),
            EnvError,
            r"the cost at step 1 of episode 1 is \[1.0, 2.0\]; it must be one number: return a float",
        ),
    ],
)
def test_costs_whose_names_or_values_are_wrong_are_errors(cost, names, error, message):
    with pytest.raises(error, match=message):
        half(adapt(Fake(cost=cost), costs=names))


def test_seeds_are_passed_on_and_close_reaches_the_environment():
    env = adapt()
    env.reset(seed=5)
    env.reset()
    assert env.env.seeds == [5, None]
    env.close()
    assert env.env.closed


def test_what_is_no_environment_is_an_error():
    with pytest.raises(EnvError, match=r"Fake: a gymnasium.Env is needed, not list; return one from the factory"):
        adapt([1])
