"""The studies are those of the paper, and all of their settings exist."""

import pytest

from ccpo import agent, config
from ccpo.algorithms import find_algorithm
from ccpo.envs import registry
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError
from ccpo.report.paper import PAPER_ABLATION, PAPER_EFFICIENCY, PAPER_RESULTS, display_name
from ccpo.schedule import LoopConfig
from ccpo.studies.catalogue import DEVIATIONS, SCALES, STUDIES, find_study
from ccpo.studies.comparison import table_2
from ccpo.studies.plan import with_members


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_run_has_valid_settings_and_a_folder_of_its_own(study, scale):
    plans = study.plans(scale)
    assert len({plan.name for plan in plans}) == len(plans)
    checked = set()
    for plan in with_members(plans):
        kind = (plan.algorithm, plan.task, plan.preset, plan.arm, plan.thresholds)
        if not plan.members and kind not in checked:
            checked.add(kind)
            own = agent.task_settings(resolve(plan.task))
            config.build((LoopConfig, find_algorithm(plan.algorithm).Config), own, plan.settings())


def test_main_is_the_papers_first_table():
    plans = STUDIES["main"].plans("paper")
    assert {(display_name(p.task), p.label) for p in plans} == {(t, m) for t in PAPER_RESULTS for m in PAPER_RESULTS[t]}
    assert len(plans) == 5 * 5 * 5
    assert {p.evaluated for p in plans} == {tuple(range(10, 71, 5))}
    assert {p.thresholds for p in plans} == {(20.0, 40.0, 60.0)}


def test_ablation_is_the_papers_third_table():
    plans = STUDIES["ablation"].plans("paper")
    assert {(p.label, display_name(p.task)) for p in plans} == {
        (m, t) for m in PAPER_ABLATION for t in PAPER_ABLATION[m]
    }
    settings = {p.label: p.settings() for p in plans}
    assert settings["CCPO w/o VVE"] == {**settings["CCPO"], "versatile_critic": False}
    assert settings["CCPO w/o CVI"] == {**settings["CCPO"], "versatile_policy": False}


def test_efficiency_is_the_papers_second_table():
    plans = STUDIES["efficiency"].plans("paper", seeds=[20])
    assert {display_name(p.task) for p in plans} | {"Averaged Score"} == set(PAPER_EFFICIENCY["CCPO with {20, 40, 60}"])
    assert all(table_2.paper(plan.task, plan.label) for plan in plans)
    six = next(p for p in plans if p.label == "C-TRPO-Lag (six)")
    assert six.thresholds == (20, 30, 40, 50, 60, 70) == tuple(member.thresholds[0] for member in six.members)


def test_the_reference_is_one_agent_for_each_of_seven_thresholds():
    plans = STUDIES["q-check"].plans("paper", seeds=[20])
    assert {plan.task for plan in plans} == {"CarCircle"}
    cvpo = [plan for plan in plans if plan.label == "CVPO"]
    assert [plan.thresholds for plan in cvpo] == [plan.evaluated for plan in cvpo] == [(t,) for t in range(10, 71, 10)]


@pytest.mark.parametrize("scale", SCALES)
def test_studies_share_their_runs(scale):
    identities = {}
    for study in STUDIES.values():
        for plan in with_members(study.plans(scale)):
            assert identities.setdefault(plan.name, plan.identity()) == plan.identity()
    of_ccpo = [{p.name for p in s.plans(scale, methods=["CCPO"])} for s in STUDIES.values()]
    assert of_ccpo[1] == of_ccpo[0] >= of_ccpo[2]  # ablation, main, efficiency


def test_what_is_chosen_replaces_the_scales_choice():
    plans = STUDIES["main"].plans("quick", tasks=["ant-run"], methods=["v-sac-lag", "ccpo"], seeds=[1, 2])
    assert [(p.task, p.label, p.seed) for p in plans] == [
        ("AntRun", "V-SAC-Lag", 1),
        ("AntRun", "V-SAC-Lag", 2),
        ("AntRun", "CCPO", 1),
        ("AntRun", "CCPO", 2),
    ]


def test_unknown_names_are_errors_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"no method 'V-SAC'; did you mean 'V-SAC-Lag'\?"):
        STUDIES["main"].plans("smoke", methods=["V-SAC"])
    with pytest.raises(ConfigError, match=r"unknown study 'mian'; did you mean 'main'\?"):
        find_study("mian")


@pytest.mark.parametrize("name", ["q-check", "bound"])
def test_studies_of_critics_are_of_the_open_loop(name):
    (plan, *_) = STUDIES[name].plans("paper", methods=["CCPO"])
    assert plan.settings()["loop"] == "open"


@pytest.mark.parametrize(("number", "settings"), DEVIATIONS)
def test_a_deviation_is_taken_back_by_settings_that_say_something(number, settings):
    plans = {plan.label: plan for plan in STUDIES["deviations"].plans("quick", seeds=[0])}
    full = plans["CCPO"].settings()
    (arm,) = (plan for label, plan in plans.items() if label.startswith(f"D{number}: "))
    assert arm.settings() == {**full, **settings}
    built = [
        config.as_dict(*config.build((LoopConfig, find_algorithm("ccpo").Config), given))
        for given in (full, arm.settings())
    ]
    changed = {name for name in built[0] if built[0][name] != built[1][name]}
    assert changed == set(settings) != set()


def test_all_arms_of_the_deviations_take_the_same_steps():
    plans = STUDIES["deviations"].plans("paper", seeds=[0])
    assert {plan.settings()["steps"] for plan in plans} == {120_000}
    assert {plan.settings().get("loop", "closed") for plan in plans} == {"closed", "open"}


def test_a_scale_overrides_an_arm():
    plans = STUDIES["deviations"].plans("smoke", seeds=[0])
    assert {plan.settings()["steps"] for plan in plans} == {480}


def test_a_study_of_a_task_with_steps_of_its_own_has_them(monkeypatch):
    monkeypatch.setattr(registry, "TASKS", dict(registry.TASKS))
    registry.register_task(
        *("Own", registry.TASKS["StaticBudget"].make),
        behaviour_thresholds=(20, 40),
        threshold_range=(10, 50),
        episode_length=100,
        steps=7000,
    )
    plans = STUDIES["main"].plans("quick", tasks=["own"], methods=["CCPO", "V-SAC-Lag"])
    assert {plan.settings()["steps"] for plan in plans} == {7000}
    assert {plan.thresholds for plan in plans} == {(20.0, 40.0)}
    assert plans[0].evaluated[0] == 10.0
    assert plans[0].evaluated[-1] == 50.0


def test_a_study_takes_tasks_of_one_cost():
    with pytest.raises(ConfigError, match="NestedBudget: studies compare tasks of one cost"):
        STUDIES["main"].plans("quick", tasks=["StaticBudget", "NestedBudget"])
