"""The same runs and files on many machines, with Ray: every node sees the study's folder under the same path."""

from collections.abc import Callable, Sequence
from typing import Any

from ccpo.errors import require
from ccpo.studies.runner import Place, begin, new_session, remaining, work
from ccpo.threads import use_one_thread

LOST_WORKERS = 3
"""How often a run may lose its worker before it counts as failed."""


def run_on_ray(
    places: Sequence[Place],
    *,
    address: str,
    watch: Callable[[], None] = lambda: None,
    poll_seconds: float = 1.0,
) -> None:
    """One Ray task of one core for each run, a combination after its members; `watch` is called now and then."""
    ray = require("ray", "ray")
    begin(places)
    ray.init(address=address, log_to_driver=False)
    try:
        task = ray.remote(num_cpus=1, max_retries=LOST_WORKERS)(_work_on_one)
        results: dict[str, Any] = {}
        for place in places:
            members = [results[member.name] for member in place.plan.members]
            results[place.plan.name] = task.remote(place, *members)
        pending = dict(zip(results.values(), places, strict=True))
        while pending:
            watch()
            settled, _ = ray.wait(list(pending), timeout=poll_seconds)
            for result in settled:
                _collect(ray, result, pending.pop(result))
        watch()
    finally:
        ray.shutdown()


def _work_on_one(place: Place, *_members: None) -> None:
    """A task, which Ray starts when the members are done; a lost one is repeated, and continues the run."""
    use_one_thread()
    work([place], new_session())


def _collect(ray: Any, result: Any, place: Place) -> None:
    try:
        ray.get(result)
    except ray.exceptions.RayError as error:
        for lost in remaining([place]):
            lost.fail(f"its worker was lost {LOST_WORKERS + 1} times: {error}\n")
