"""Every choice of CCPO, and what its metrics mean."""

from dataclasses import dataclass

from ccpo.config import Settings, setting
from ccpo.errors import ConfigError
from ccpo.maths.returns import HORIZONS


@dataclass(frozen=True)
class Config(Settings):
    """Every choice of the method. The paper leaves most open; docs/algorithms/ccpo.md numbers the deviations."""

    versatile_critic: bool = setting(True, "VVE: Q = ψᵀz; false is the ablation, a plain critic of [s; ε; a]")
    versatile_policy: bool = setting(True, "CVI: E- and M-step for unseen thresholds too; false is the ablation")
    hidden: tuple[int, ...] = setting((128, 128), "hidden layers of actor, plain critic and ψ", low=1)
    shared_body: bool = setting(False, "the critics of reward and cost share their hidden layers; false: their own")
    normalised_critic: bool = setting(False, "layer normalisation in the hidden layers of the critics")
    std_min: float = setting(0.1, "smallest scale of the policy, in units where actions span [−1, 1]", above=0, high=10)
    std_max: float = setting(1.0, "largest scale of the policy; it starts halfway between the two", above=0, high=10)
    features: int = setting(32, "F (the paper's M): size of ψ and z", low=1)
    feature_bound: float = setting(10.0, "K_f: the bound on ‖ψ‖∞", above=0)
    embedding_hidden: int = setting(64, "hidden units of z(ε)", low=1)
    spread_embedding: bool = setting(
        False, "z(ε) starts with the kinks of its units spread over the threshold range; false: all at its lower end"
    )
    horizon: str = setting("endless", "what critics sum up and which q_threshold belongs to it", choices=HORIZONS)
    discount: float = setting(0.97, "γ of both critics, or of the reward's alone", low=0, high=1)
    cost_discount: float | None = setting(None, "γ of the cost critic; none: discount", low=0, high=1)
    nstep: int = setting(2, "steps of reward and cost before a target bootstraps", low=1, high=100)
    target_rate: float = setting(
        0.05, "τ: the share of the critics that their targets take over at each update", above=0, high=1
    )
    target_samples: int = setting(
        2,
        "actions over which a target takes the mean of Q at its last state, in antithetic pairs; 1: one sample",
        low=1,
    )
    deployed_targets: bool = setting(
        False, "critics judge the policy as deployed: targets and levels of cost take its mean; false: as it explores"
    )
    steady_critic: bool = setting(True, "the E-step reads the target critics, which are averages; false: the newest")
    batch: int = setting(256, "transitions an update for the critics", low=1)
    conditions: int = setting(4, "thresholds an update for E- and M-step", low=1)
    states: int = setting(64, "states for each of these thresholds", low=1)
    sharing: int = setting(1, "how many neighbouring thresholds share their states and action samples", low=1)
    sharing_min: float = setting(
        0.5, "effective action samples, over K, below which neighbours do not share", low=0, high=1
    )
    action_samples: int = setting(16, "K: actions for each state", low=2)
    recent_episodes: float = setting(
        10.0, "E-step states come from this many newest episode lengths of each lane", above=0
    )
    updates_per_step: float = setting(0.2, "gradient updates for each environment step", above=0)
    refresh_updates: int = setting(60, "π_old is refreshed after this many updates", low=1)
    actor_rate: float = setting(5e-4, "Adam's rate for the actor", above=0)
    critic_rate: float = setting(1e-3, "Adam's rate for the critics", above=0)
    estep_kl_bound: float = setting(0.02, "κ: trust region of the E-step", above=0)
    mstep_kl_mean_bound: float = setting(0.005, "trust region of the M-step's mean, for each threshold", above=0)
    mstep_kl_std_bound: float = setting(0.0005, "trust region of the M-step's scale, for each threshold", above=0)
    mstep_multiplier_rate: float = setting(
        0.01, "rate, in the logarithm, of the multipliers of these two bounds", above=0
    )
    knots: int = setting(
        7, "evenly spaced thresholds at which multipliers of these bounds and levels of cost are kept", low=2
    )
    multiplier_max: float = setting(100.0, "λ_max: where the E-step gives up on the reward", above=0)
    temperature_min: float = setting(1e-5, "η_min", above=0)
    pretrain_share: float = setting(0.3, "share of the run on behaviour thresholds only", low=0, high=1)
    unseen_share: float = setting(
        0.7, "fine-tuning: share of E- and M-step thresholds drawn from the whole range", low=0, high=1
    )
    relabel_share: float = setting(
        0.5, "fine-tuning: share of critic targets with a threshold drawn from the whole range", low=0, high=1
    )
    constraint: str = setting(
        "advantage",
        "what the E-step bounds: the batch's mean of Q_c (value), or its change against a running level (advantage)",
        choices=("value", "advantage"),
    )
    constraint_gain: float = setting(
        0.1, "advantage: the share of the distance to the threshold that one E-step may close", above=0
    )
    recovery_share: float = setting(
        1.0,
        "advantage: the share of the trust region's reach in Q_c that one E-step may be made to use",
        above=0,
        high=1,
    )
    level_rate: float = setting(0.02, "rate of the running level of Q_c, at each update", above=0, high=1)
    rate_decay: float = setting(
        0.0, "share of the actor's and critics' rates that is gone at the end of the run", low=0, high=1
    )
    bound_decay: float = setting(
        0.0, "share of the M-step's trust regions that is gone at the end of the run", low=0, high=0.99
    )
    feedback_rate: float = setting(
        0.0, "rate at which measured episodic costs correct q_threshold; 0 is off", low=0, high=1
    )
    feedback_reach: float = setting(1.0, "how many times ε this correction may be", low=0)
    trust_share: float = setting(
        1.0, "share of feedback_rate at which a correction grows that allows more cost", low=0, high=1
    )
    violation_margin: float = setting(0.0, "safety margin in standard deviations of measured episodic cost", low=0)
    state_price: float = setting(
        0.0,
        "how much more the E-step counts what lies beyond the cost allowed in a single state",
        low=0,
    )
    end_cost: float = setting(
        0.0, "what an early end costs for each step that it skips, in units of the highest threshold's mean", low=0
    )
    loose_share: float = setting(
        0.0, "share of the run over which the cost allowed comes down from a whole episode's to ε", low=0, high=1
    )
    beyond_share: float = setting(
        1.0,
        "share of what ε has beyond the behaviour thresholds that networks see and the E-step grants",
        low=0,
        high=1,
    )
    above_share: float | None = setting(
        None, "the same above the highest behaviour threshold; none: beyond_share", low=0, high=1
    )
    low_margin: float = setting(
        0.0,
        "margin at the lowest behaviour threshold, as a share of its distance to the lowest threshold of the range; "
        "it fades towards the next behaviour threshold",
        low=0,
        high=1,
    )
    overspend_price: float = setting(
        0.0,
        "budget-aware tasks: what each unit of cost beyond ε takes from the reward, in the reward's root mean square, "
        "instead of a constraint on the mean cost; 0 is off",
        low=0,
    )
    average_rate: float = setting(
        0.0, "rate of the averaged actor that is deployed; 0 deploys the actor itself", low=0, high=1
    )
    normalise_observations: bool = setting(False, "running normalisation of observations")

    def validate(self) -> None:
        if self.std_min >= self.std_max:
            raise ConfigError(f"std_min={self.std_min:g} must be smaller than std_max={self.std_max:g}")
        if self.horizon == "endless" and 1.0 in (self.discount, self.cost_discount):
            raise ConfigError("a discount of 1 has no endless horizon; give a smaller one, or horizon=finite")
        if self.target_samples > 1 and self.target_samples % 2:
            raise ConfigError(f"target_samples={self.target_samples} must be 1 or even: samples come in pairs")
        if self.shared_body and not self.hidden:
            raise ConfigError("shared_body shares hidden layers, and hidden is empty; give one at least, such as 128")
        if self.constraint == "value" and self.state_price > 0:
            raise ConfigError(
                f"state_price={self.state_price:g} raises Q_c, which constraint=value bounds by what it is without; "
                "give state_price=0, or constraint=advantage"
            )
        if self.conditions % self.sharing or self.states % self.sharing:
            raise ConfigError(
                f"sharing={self.sharing} must divide conditions={self.conditions} and states={self.states}"
            )


METRICS = {
    "critic/reward_loss": "mean squared error of Q_r against its targets, in units that make Q of order one",
    "critic/cost_loss": "the same of Q_c",
    "estep/kl_over_bound": "KL(q* ‖ π_old) over κ; 1 where the trust region binds, as it nearly always does",
    "estep/temperature": "η*",
    "estep/multiplier": "λ*, mean over thresholds; 0 where the constraint is slack",
    "estep/multiplier_at_bound": "how often λ* sits at λ_max: the constraint cannot be met inside the trust region",
    "estep/effective_samples": "effective action samples a state under q*, over K",
    "estep/shared_samples": "effective action samples that a threshold has of those it shares, over K",
    "mstep/kl_mean_over_bound": "KL(π_old ‖ π) of the mean over its bound; about 1 in a healthy run",
    "mstep/kl_std_over_bound": "the same of the scale",
    "mstep/bursts": "how often KL left its bounds so far that the actor went back to π_old; 0 in a healthy run",
    "policy/std": "mean scale of the policy, in units where actions span [−1, 1]",
    "feedback/predicted_cost": "episodic cost that the critic expects, mean over behaviour thresholds",
    "feedback/cost_bias": "predicted minus measured episodic cost, as it corrects the E-step",
    "feedback/cost_spread": "standard deviation of measured episodic cost",
}
