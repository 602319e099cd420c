import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ccpo
from ccpo import agent, config, training
from ccpo.algorithms import find_algorithm, ppo_lag
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError
from ccpo.maths import onpolicy
from ccpo.runs import Run
from ccpo.runtime import PolicyNet
from ccpo.schedule import LoopConfig
from ccpo.training import Trainer
from ccpo.types import Experience

TASK = "BalanceBudget-T20"
ALGORITHMS = ["ppo_lag", "trpo_lag"]
SETTINGS = {
    "behaviour_thresholds": (8.0,),
    "steps": 400,
    "lanes_per_threshold": 2,
    "checkpoint_every": 160,
    "hidden": (8,),
    "batch": 16,
    "repeats": 2,
    "initial_std": 0.3,
    "normalise_observations": True,
}


def learner_of(state) -> onpolicy.Learner:
    return getattr(state, "learner", state)


def train(out, algorithm, **settings):
    return ccpo.train(TASK, algorithm, out=out, **{**SETTINGS, **settings})


def make_trainer(path, algorithm) -> Trainer:
    factory, module = resolve(TASK), find_algorithm(algorithm)
    layers = agent.task_settings(factory), config.load_preset(algorithm, "tuned", TASK), SETTINGS
    loop, algorithm_config = config.build((LoopConfig, module.Config), *layers)
    run = Run.create(path, algorithm=algorithm, task=factory.name, seed=loop.seed, config={})
    return Trainer(run, module, factory, loop=loop, config=algorithm_config)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_ratio_uses_the_policy_that_acted(algorithm, tmp_path, monkeypatch):
    """Under the policy that acted, and under no other, actions are mean + scale · the lanes' own noise."""
    trainer, seen = make_trainer(tmp_path, algorithm), []
    learn = training.compiled_learn(trainer.algorithm, trainer.config, trainer.problem)

    def spy(state, replay, rollout, statistics, progress):
        learner = learner_of(state)
        noise = [np.random.default_rng([0, lane, len(seen)]).standard_normal((20, 2), np.float32) for lane in range(2)]
        noise = np.stack(noise, axis=1)

        def distance(actor, normaliser):
            mean, std = onpolicy.policy(actor, normaliser(jnp.asarray(rollout.obs)))
            return float(np.abs((rollout.action - mean) / std - noise).max())

        seen.append((distance(learner.acted, learner.acted_normaliser), distance(learner.actor, learner.normaliser)))
        if len(seen) == 4:
            experience = Experience(rollout, statistics, None, progress)
            _, batch, _ = onpolicy.observe(trainer.config, trainer.problem, learner, experience)
            log_std = np.asarray(learner.acted["log_std"])
            log_density = -0.5 * np.sum(noise**2 + 2 * log_std + np.log(2 * np.pi), axis=-1)
            np.testing.assert_allclose(batch.log_acted, log_density.ravel(), atol=1e-3)
        return learn(state, replay, rollout, statistics, progress)

    spy.trace = learn.trace  # what is asked before the first call, whether it fits into memory
    monkeypatch.setattr(training, "compiled_learn", lambda *_: spy)
    trainer.train()
    acted, current = np.array(seen).T
    assert len(acted) == 10
    np.testing.assert_allclose(acted, 0.0, atol=1e-4)
    assert current[0] < 1e-4 < current[1:].min()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_act_is_what_the_deployed_net_computes(algorithm, tmp_path):
    trainer, obs = make_trainer(tmp_path, algorithm), np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    module, state = trainer.algorithm, trainer.state
    seen = obs, np.full((5, 1), 8.0, np.float32), np.ones(5, np.float32)
    acting = module.acting(trainer.config, trainer.problem, state)
    net = PolicyNet(acting.deploy, acting.net)
    mean = module.act(trainer.config, trainer.problem, state, *seen)
    np.testing.assert_allclose(mean, net.mean(*seen), atol=1e-5)
    sample = module.act(trainer.config, trainer.problem, state, *seen, jax.random.key(0))
    assert np.std(sample - mean) == pytest.approx(0.3, rel=0.6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_does_not_fit_on_policy_learning_is_refused(algorithm, tmp_path):
    with pytest.raises(ConfigError, match=r"one threshold; give one of them \(--behaviour-thresholds 8\)"):
        train(tmp_path, algorithm, behaviour_thresholds=(4.0, 8.0))
    with pytest.raises(ConfigError, match="set deployed_lanes=0"):
        train(tmp_path, algorithm, deployed_lanes=1)
    with pytest.raises(ConfigError, match="set warmup_steps=0"):
        train(tmp_path, algorithm, warmup_steps=80)
    with pytest.raises(ConfigError, match="must be three numbers"):
        train(tmp_path, algorithm, multiplier_gains=(1.0,))


def test_minibatches_hold_each_sample_at_most_once_a_repeat(key):
    indices = np.asarray(ppo_lag.minibatches(key, 10, 4, repeats=3))
    assert indices.shape == (6, 4)
    for repeat in indices.reshape(3, 8):
        assert len(set(repeat)) == 8
    assert ppo_lag.minibatches(key, 3, 4, repeats=1).shape == (1, 3)
