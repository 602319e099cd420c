"""Every choice of CCPO, and what its metrics mean."""

from dataclasses import dataclass

from ccpo.config import Settings, setting
from ccpo.errors import ConfigError
from ccpo.maths.returns import HORIZONS

CONSTRAINTS = ("closed", "open", "paper")
"""The names of the constraints; one file for each in `constraints`."""


@dataclass(frozen=True)
class Config(Settings):
    """Every choice of the method, one recipe for every environment; docs/algorithms/ccpo.md numbers the deviations."""

    versatile_critic: bool = setting(True, "VVE: Q = ψᵀz; false is the ablation, a plain critic of [s; ε; a]")
    versatile_policy: bool = setting(True, "CVI: E- and M-step for unseen conditions too; false is the ablation")
    constraint: str | None = setting(
        None, "what the E-step keeps; none: closed in a closed loop, open in an open one", choices=CONSTRAINTS
    )
    hidden: tuple[int, ...] = setting((128, 128), "hidden layers of actor, plain critic and ψ", low=1)
    features: int = setting(32, "F (the paper's M): size of ψ and z", low=1)
    std_min: float = setting(
        0.12, "smallest scale of the policy, in units where actions span [−1, 1]", above=0, high=10
    )
    std_max: float = setting(0.6, "largest scale of the policy; it starts halfway between the two", above=0, high=10)
    horizon: str = setting(
        "finite", "whether critics know the time to go and end with the episode; a closed loop does", choices=HORIZONS
    )
    discount: float | None = setting(
        None,
        "γ; none: for episodes of T steps, 1 − 4/T in an open loop, from 1 − 5/T to 1 − 3/T in a closed one",
        low=0,
        high=1,
    )
    nstep: int = setting(3, "steps of reward and cost before a target bootstraps", low=1, high=100)
    target_rate: float = setting(
        0.05, "τ: the share of the critics that their targets take over at each update", above=0, high=1
    )
    batch: int = setting(256, "transitions per update for the critics", low=1)
    states: int = setting(256, "pairs of a state and a condition per update for E- and M-step", low=1)
    conditions: int = setting(4, "open loop: how many thresholds these pairs belong to", low=1)
    action_samples: int = setting(8, "K: actions for each state", low=2)
    recent_episodes: float = setting(
        15.0, "E-step states come from this many newest episode lengths of each environment", above=0
    )
    updates_per_step: float = setting(0.25, "gradient updates for each environment step", above=0)
    refresh_updates: int = setting(60, "π_old is refreshed after this many updates", low=1)
    actor_rate: float = setting(5e-4, "Adam's rate for the actor", above=0)
    critic_rate: float = setting(1e-3, "Adam's rate for the critics", above=0)
    estep_kl_bound: float = setting(0.02, "κ: trust region of the E-step", above=0)
    mstep_kl_mean_bound: float = setting(0.007, "trust region of the M-step's mean", above=0)
    mstep_kl_std_bound: float = setting(0.0003, "trust region of the M-step's scale", above=0)
    pretrain_share: float = setting(0.0, "share of the run on the conditions of the data only", low=0, high=1)
    relabel_share: float = setting(
        0.5,
        "after that, the share of critic targets and pairs with a condition drawn from the whole range",
        low=0,
        high=1,
    )
    decay: float = setting(
        0.8, "share of the rates and of the M-step's trust regions that is gone at the end of the run", low=0, high=0.99
    )
    average_rate: float = setting(
        0.003, "rate of the averaged actor, which is deployed; 1 deploys the actor itself", above=0, high=1
    )

    def validate(self) -> None:
        if self.std_min >= self.std_max:
            raise ConfigError(f"std_min={self.std_min:g} must be smaller than std_max={self.std_max:g}")
        if self.horizon == "endless" and self.discount == 1.0:
            raise ConfigError("a discount of 1 has no endless horizon; give a smaller one, or horizon=finite")
        if self.states % self.conditions:
            raise ConfigError(f"conditions={self.conditions} must divide states={self.states}")


METRICS = {
    "critic/reward_loss": "mean squared error of Q_r against its targets, in units that make Q of order one",
    "critic/cost_loss": "the same of the cost critics",
    "estep/kl_over_bound": "KL(q* ‖ π_old) over κ; 1 where the trust region binds, as it nearly always does",
    "estep/temperature": "η*",
    "estep/multiplier": "λ*, mean over states (closed loop) or thresholds (open loop); 0 where the constraint is slack",
    "estep/multiplier_at_bound": "how often λ* sits at λ_max: the constraint cannot be met inside the trust region",
    "estep/effective_samples": "effective action samples per state under q*, over K",
    "estep/predicted_cost": "mean of what the E-step bounds under π_old, in the environment's unit of cost",
    "mstep/kl_mean_over_bound": "KL(π_old ‖ π) of the mean over its bound; about 1 in a healthy run",
    "mstep/kl_std_over_bound": "the same of the scale",
    "mstep/bursts": "how often KL left its bounds so far that the actor went back to π_old; 0 in a healthy run",
    "policy/std": "mean scale of the policy, in units where actions span [−1, 1]",
}
