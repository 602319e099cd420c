"""A plan names its folder, and says all that decides the result."""

from dataclasses import replace

from miniature import tiny_plan

from ccpo.studies.plan import with_members


def test_the_folder_names_thresholds_that_are_not_the_tasks_own():
    plan = tiny_plan(seed=3, threshold=20.0)
    assert plan.name == "ppo_lag/StaticBudget-T20-C5/tuned-20/seed-3"
    assert replace(plan, thresholds=(20.0, 40.0, 60.0)).name == "ppo_lag/StaticBudget-T20-C5/tuned/seed-3"


def test_the_identity_has_the_presets_values_and_what_overrides_them():
    identity = tiny_plan().identity()
    assert identity["warmup_steps"] == 0  # of the preset
    assert identity["lanes_per_threshold"] == 1  # the preset says 20
    assert (identity["behaviour_thresholds"], identity["evaluated"]) == ([20.0], [20.0])


def test_members_come_first_and_once():
    low, high = tiny_plan(threshold=20.0), tiny_plan(threshold=40.0)
    both = replace(low, algorithm="c_ppo_lag", thresholds=(20.0, 40.0), members=(low, high))
    assert with_members([both, low]) == [low, high, both]
