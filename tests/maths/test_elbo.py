"""The evidence lower bound that the two steps raise: on every trajectory of a tiny CMDP, and for the steps as coded."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from ccpo.maths import gaussian
from ccpo.maths.estep import dual, estep
from ccpo.maths.mstep import weighted_likelihood

STATES, ACTIONS, LENGTH, DISCOUNT, ALPHA = 2, 3, 3, 0.9, 0.7


class TinyCMDP:
    """All trajectories (s₀, a₀, s₁, a₁, …) of a small CMDP, so that expectations are sums."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.start = rng.dirichlet(np.ones(STATES))
        self.moves = rng.dirichlet(np.ones(STATES), size=(STATES, ACTIONS))
        self.reward = rng.normal(size=(STATES, ACTIONS))
        steps = [range(STATES), range(ACTIONS)] * LENGTH
        self.trajectories = np.array(list(itertools.product(*steps))).reshape(-1, LENGTH, 2)
        states, actions = self.trajectories[..., 0], self.trajectories[..., 1]
        self.returns = self.reward[states, actions] @ DISCOUNT ** np.arange(LENGTH)

    def probability(self, policy):
        """p(τ) = p(s₀) Π p(s′ | s, a) π(a | s), for a policy [STATES, ACTIONS]."""
        states, actions = self.trajectories[..., 0], self.trajectories[..., 1]
        moves = self.moves[states[:, :-1], actions[:, :-1], states[:, 1:]]
        return self.start[states[:, 0]] * moves.prod(axis=1) * policy[states, actions].prod(axis=1)


def divergence(q, p):
    return np.sum(q * (np.log(q) - np.log(p)), axis=-1)


def policies(count, seed=1):
    return np.random.default_rng(seed).dirichlet(np.ones(ACTIONS), size=(count, STATES))


def test_the_bound_lies_below_the_likelihood_and_touches_it_at_the_posterior():
    """J(q, π)/α ≤ log p_π(O = 1), Eq. (5), with equality for q(τ) ∝ p_π(τ)·p(O = 1 | τ)."""
    cmdp = TinyCMDP()
    pi, *others = policies(50)
    prior = cmdp.probability(pi)
    likelihood = np.log(np.sum(prior * np.exp(cmdp.returns / ALPHA)))

    def bound(q):
        return np.sum(q * cmdp.returns) - ALPHA * divergence(q, prior)

    assert prior.sum() == pytest.approx(1.0)
    assert all(bound(cmdp.probability(q)) < ALPHA * likelihood for q in others)
    posterior = prior * np.exp(cmdp.returns / ALPHA - likelihood)
    assert bound(posterior) == pytest.approx(ALPHA * likelihood)


def test_dynamics_cancel_in_the_bound_over_actions():
    """KL(q(τ) ‖ p_π(τ)) is the sum over steps of E_{ρ_q} KL(q(· | s) ‖ π(· | s)): from Eq. (5) to Eq. (6)."""
    cmdp = TinyCMDP()
    pi, q = policies(2)
    probability = cmdp.probability(q)
    by_state = divergence(q, pi)
    over_steps = np.sum(probability[:, None] * by_state[cmdp.trajectories[..., 0]])
    assert over_steps == pytest.approx(divergence(probability, cmdp.probability(pi)))


BOX = {"kl_bound": 0.1, "multiplier_max": 100.0, "temperature_min": 1e-3}


@pytest.fixture(scope="module")
def solved():
    """A problem with an active constraint, and its E-step: Q_r and Q_c [1, S, K], ε_q [1]."""
    q_reward, q_cost = np.random.default_rng(2).normal(size=(2, 1, 6, 16)).astype(np.float32)
    q_threshold = q_cost.mean(axis=(1, 2)) - 0.15
    return q_reward, q_cost, q_threshold, estep(q_reward, q_cost, q_threshold, **BOX)


def test_the_estep_maximises_the_bound(solved):
    """q* attains max_q E_q[Q_r − λ*Q_c] − η* KL(q ‖ π) = η* E_s log E_π exp(…): the gap closes with α = η*."""
    q_reward, q_cost, q_threshold, solution = solved
    temperature, multiplier = float(solution.temperature[0]), float(solution.multiplier[0])
    assert 0 < multiplier < BOX["multiplier_max"]
    gain = (q_reward - multiplier * q_cost)[0].astype(np.float64)
    prior = np.full(gain.shape, 1 / 16)

    def bound(q):
        return np.mean(np.sum(q * gain, axis=1) - temperature * divergence(q, prior))

    best = np.asarray(solution.weights[0], np.float64)
    best /= best.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(3)
    for size in (1e-2, 0.1, 1.0):
        moved = best * np.exp(size * rng.normal(size=(100, *best.shape)))
        assert all(bound(q / q.sum(axis=1, keepdims=True)) < bound(best) for q in moved)
    g = dual(temperature, multiplier, q_reward[0], q_cost[0], q_threshold[0], kl_bound=BOX["kl_bound"])
    likelihood = float(g) - temperature * BOX["kl_bound"] - multiplier * float(q_threshold[0])
    assert bound(best) == pytest.approx(likelihood, abs=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.8), (0.0, 1.1)], ids=["mean", "scale"])
def test_what_the_mstep_raises_is_the_bound(solved, mean, std):
    """For fixed q*, J(q*, θ) changes by −α times the change of the M-step's loss, Eq. (11), mean or scale alone."""
    weights = solved[3].weights
    action = jnp.asarray(np.random.default_rng(4).normal(size=(1, 6, 16, 2)), jnp.float32)
    old, new = ((jnp.full((1, 6, 2), m), jnp.full((1, 6, 2), s)) for m, s in ((0.0, 0.8), (mean, std)))

    def bound(policy):
        density = gaussian.log_density(action, *(x[..., None, :] for x in policy))
        return -ALPHA * jnp.sum(weights * (jnp.log(weights) - density), axis=-1).mean()

    losses = [weighted_likelihood(weights, action, *policy, *old) for policy in (old, new)]
    change = float(bound(new) - bound(old))
    assert abs(change) > 1e-3
    assert change == pytest.approx(-ALPHA * float((losses[1] - losses[0])[0]), abs=1e-5)
