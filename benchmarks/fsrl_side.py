"""FSRL's side of a comparison, run by the interpreter of its own virtual environment (see `benchmarks.sides`).

Chosen in its favour: one process steps all environments (on one core the fastest of its vector environments), no
checker around them, no logging, no tests in between.
"""

import time
from typing import Any

from benchmarks.answering import report_stretch, serve, usage

COST_LIMIT = 20.0
SIZES = {"hidden_sizes": (128, 128), "thread": 1, "cost_limit": COST_LIMIT}
AGENTS = {
    "cvpo": "CVPOAgent",
    "sac_lag": "SACLagAgent",
    "ddpg_lag": "DDPGLagAgent",
    "ppo_lag": "PPOLagAgent",
    "trpo_lag": "TRPOLagAgent",
}
ON_POLICY = ("ppo_lag", "trpo_lag")


def make_envs(task: str, count: int) -> Any:
    import bullet_safety_gym  # noqa: F401 — registers the tasks
    import gymnasium
    from tianshou.env import DummyVectorEnv

    return DummyVectorEnv([lambda: gymnasium.make(task, disable_env_checker=True) for _ in range(count)])


def make_agent(method: str, task: str) -> Any:
    import bullet_safety_gym  # noqa: F401 — registers the tasks
    import fsrl.agent
    import gymnasium

    env = gymnasium.make(task, disable_env_checker=True)
    return getattr(fsrl.agent, AGENTS[method])(env, **SIZES)


def make_trainer(agent: Any, method: str, envs: Any, *, epochs: int, steps: int, episodes: int) -> Any:
    """FSRL's trainer as its agents make it, with `steps` an epoch and `episodes` a collection."""
    from fsrl.data import FastCollector
    from fsrl.trainer import OffpolicyTrainer, OnpolicyTrainer
    from tianshou.data import VectorReplayBuffer

    agent.policy.train()
    collector = FastCollector(agent.policy, envs, VectorReplayBuffer(200_000, len(envs)), exploration_noise=True)
    common = {
        "policy": agent.policy,
        "train_collector": collector,
        "max_epoch": epochs,
        "step_per_epoch": steps,
        "episode_per_collect": episodes,
        "episode_per_test": 1,
        "cost_limit": COST_LIMIT,
        "logger": agent.logger,
        "verbose": False,
        "show_progress": False,
    }
    if method in ON_POLICY:
        batch = 99_999 if method == "trpo_lag" else 256
        return OnpolicyTrainer(repeat_per_collect=4, batch_size=batch, **common)
    return OffpolicyTrainer(update_per_step=0.2, batch_size=256, **common)


def train(task: str, method: str, episodes: int, steps: int, turns: bool, test_episodes: int = 0) -> dict[str, Any]:
    """Train in collections of `episodes`; with `turns`, stop after each until asked on. Then test it."""
    agent, envs = make_agent(method, task), make_envs(task, episodes)
    each = episodes * 200
    trainer = make_trainer(agent, method, envs, epochs=-(-steps // each), steps=each, episodes=episodes)
    for _ in trainer:
        if turns:
            report_stretch(trainer.env_step)
    found = usage() | {"steps": trainer.env_step}
    if test_episodes:
        reward, _, cost = agent.evaluate(make_envs(task, 10), eval_episodes=test_episodes)
        found |= {"reward": float(reward), "cost": float(cost), "threshold": COST_LIMIT}
    return found


class _Learner:
    """A CVPO agent with some experience, made when it is first needed."""

    agent: Any = None
    buffer: Any = None

    def get(self) -> tuple[Any, Any]:
        if self.agent is None:
            self.agent = make_agent("cvpo", "SafetyBallCircle-v0")
            envs = make_envs("SafetyBallCircle-v0", 6)
            trainer = make_trainer(self.agent, "cvpo", envs, epochs=1, steps=1200, episodes=6)
            trainer.train_collector.collect(n_episode=12)
            self.agent.policy.pre_update_fn()
            self.buffer = trainer.train_collector.buffer
        return self.agent.policy, self.buffer


_learner = _Learner()


def update(count: int) -> dict[str, Any]:
    """CPU seconds of an update of CVPO."""
    policy, buffer = _learner.get()
    policy.train()
    start = time.process_time()
    for _ in range(count):
        policy.update(256, buffer)
    return {"seconds": (time.process_time() - start) / count}


def act(count: int) -> dict[str, Any]:
    """CPU seconds of the action for one observation, as its collector gets it."""
    import torch
    from tianshou.data import Batch, to_numpy

    policy, buffer = _learner.get()
    policy.eval()
    obs = buffer.obs[:1]
    start = time.process_time()
    with torch.no_grad():
        for _ in range(count):
            policy.map_action(to_numpy(policy(Batch(obs=obs, info={})).act))
    return {"seconds": (time.process_time() - start) / count}


if __name__ == "__main__":
    serve({"train": train, "update": update, "act": act})
