"""The studies are those of the paper, and all of their settings exist."""

import pytest

from ccpo import agent, config
from ccpo.algorithms import find_algorithm
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError
from ccpo.report.paper import PAPER_ABLATION, PAPER_EFFICIENCY, PAPER_RESULTS, display_name
from ccpo.studies.catalogue import SCALES, STUDIES, find_study
from ccpo.studies.comparison import table_2
from ccpo.studies.plan import with_members
from ccpo.training import LoopConfig


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_run_has_valid_settings_and_a_folder_of_its_own(study, scale):
    plans = study.plans(scale)
    assert len({plan.name for plan in plans}) == len(plans)
    checked = set()
    for plan in with_members(plans):
        kind = (plan.algorithm, plan.task, plan.preset, plan.thresholds)
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


def test_a_method_runs_only_on_the_tasks_on_which_it_differs():
    study, tasks = find_study("deviations"), ("BallCircle", "DroneRun")
    ball, drone = ({plan.label for plan in study.plans("quick", tasks=[task], seeds=[0])} for task in tasks)
    for one, other, task in ((ball, drone, "BallCircle"), (drone, ball, "DroneRun")):
        assert one - other == {method.label for method in study.methods if method.only == (task,)} != set()
    assert "CCPO" in ball & drone
    with pytest.raises(ConfigError, match="no run on DroneRun: 'D10 a body for each critic' is only for BallCircle"):
        study.plans("quick", tasks=["DroneRun"], methods=["D10 a body for each critic"])


def test_a_smoke_run_is_too_short_for_a_final():
    (plan, *_) = find_study("main").plans("smoke", tasks=["DroneRun"], methods=["CCPO"])
    assert (plan.settings()["turn_dial"], plan.settings()["choice_share"]) == (False, 0.0)
