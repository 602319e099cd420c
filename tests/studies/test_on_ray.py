"""The same runs on a real Ray cluster of two nodes, one of which is lost in the middle."""

import time
from dataclasses import replace
from threading import Thread

import pytest
from miniature import tiny_plan

from ccpo.studies.runner import Place, remaining, work

ray = pytest.importorskip("ray", reason="needs the extra: pip install 'ccpo[ray]'")


@pytest.fixture
def cluster():
    """A head that runs nothing and two nodes of one core each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster, nodes
    cluster.shutdown()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_a_lost_node_costs_no_run(cluster, tmp_path):
    from ccpo.studies.on_ray import run_on_ray

    members = tuple(tiny_plan(seed=5, threshold=threshold) for threshold in (20.0, 40.0))
    both = replace(
        members[0], algorithm="c_ppo_lag", thresholds=(20.0, 40.0), evaluated=(30.0,), overrides={}, members=members
    )
    unlucky = tiny_plan(seed=9, overrides={"steps": -1})
    plans = [*members, both, tiny_plan(seed=6), tiny_plan(seed=7), unlucky]
    places = [Place(plan, tmp_path / "ray") for plan in plans]
    ray_cluster, nodes = cluster

    def lose_a_node():
        while not all(place.is_claimed() for place in places[:2]):
            time.sleep(0.05)
        ray_cluster.remove_node(nodes[0], allow_graceful=False)

    saboteur = Thread(target=lose_a_node)
    saboteur.start()
    run_on_ray(places, address=ray_cluster.address, poll_seconds=0.2)
    saboteur.join()
    assert [place.plan.seed for place in places if place.error] == [9]
    assert "steps=-1 is too small" in (places[-1].error or "")
    assert not remaining(places)
    assert max(len(place.attempts()) for place in places) == 2  # the lost run was taken up again

    alone = [Place(plan, tmp_path / "alone") for plan in plans[:5]]
    work(alone, "session")
    for here, there in zip(alone, places, strict=False):
        assert (here.path / "eval.csv").read_bytes() == (there.path / "eval.csv").read_bytes()
