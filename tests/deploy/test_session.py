"""The playground's protocol: what a page may ask for, and what it gets."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccpo.deploy.session import MAX_MESSAGE, Session, describe, parse_command
from ccpo.deploy.watching import LiveEpisode, optimal_actor, trained_actor
from ccpo.errors import FormatError
from deploy.policies import save_random_policy
from deploy.toy import closed_agent, closed_cost
from extras import NEEDS_BULLET, NEEDS_MUJOCO


@pytest.fixture
def session(tmp_path):
    trained = trained_actor(save_random_policy(tmp_path, "StaticBudget"))
    session = Session([optimal_actor("StaticBudget"), optimal_actor("DriftBudget"), trained])
    yield session
    session.close()


def ask(session, kind, **fields):
    session.handle(parse_command(json.dumps({"type": kind, **fields})))


def open_sides(session, actors=(0,), thresholds=(25.0,), seed=0):
    ask(session, "open", actors=list(actors), thresholds=list(thresholds), seed=seed)
    return session.advance()


GOOD = [
    {"type": "open", "actors": [0], "thresholds": [25], "seed": 0},
    {"type": "open", "actors": [0, 2], "thresholds": [25.5, 60], "seed": 2**31 - 1},
    {"type": "threshold", "side": 1, "value": 12.5},
    {"type": "pause", "paused": True},
    {"type": "step"},
    {"type": "speed", "value": 0.25},
    {"type": "restart", "seed": 4},
    {"type": "seen", "number": 17},
]


@pytest.mark.parametrize("command", GOOD)
def test_commands_are_understood(command):
    assert parse_command(json.dumps(command)) == command


BAD = [
    None,
    b"{}",
    "",
    "nonsense",
    "7",
    "[]",
    "{}",
    '{"type": 7}',
    '{"type": ["open"]}',
    '{"type": "quit"}',
    '{"type": "step", "extra": 1}',
    '{"type": "restart"}',
    '{"type": "restart", "seed": -1}',
    '{"type": "restart", "seed": 1.0}',
    '{"type": "restart", "seed": true}',
    f'{{"type": "restart", "seed": {2**31}}}',
    '{"type": "threshold", "side": 2, "value": 20}',
    '{"type": "threshold", "side": 0, "value": NaN}',
    '{"type": "threshold", "side": 0, "value": 1e999}',
    '{"type": "threshold", "side": 0, "value": "20"}',
    '{"type": "threshold", "side": 0, "value": true}',
    '{"type": "speed", "value": 3}',
    '{"type": "speed", "value": [1]}',
    '{"type": "pause", "paused": 1}',
    '{"type": "open", "actors": [], "thresholds": [], "seed": 0}',
    '{"type": "open", "actors": [0, 0, 0], "thresholds": [20, 20, 20], "seed": 0}',
    '{"type": "open", "actors": {"0": 0}, "thresholds": [20], "seed": 0}',
    '{"type": "open", "actors": [0], "thresholds": [null], "seed": 0}',
    "[" * 1000,
    '{"type": "step"}' + " " * MAX_MESSAGE,
]


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_command_is_refused(message):
    with pytest.raises(FormatError):
        parse_command(message)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda value: (
        st.lists(value, max_size=3) | st.dictionaries(st.sampled_from(["type", "seed", "value"]), value, max_size=3)
    ),
    max_leaves=6,
)


@given(st.text(max_size=60) | JSON.map(json.dumps))
def test_garbage_is_refused_and_nothing_else_happens(message):
    with pytest.raises(FormatError):
        parse_command(message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"type": "open", "actors": [3], "thresholds": [20], "seed": 0}, "actors below 3"),
        ({"type": "open", "actors": [0, 2], "thresholds": [20], "seed": 0}, "a threshold for each side"),
        ({"type": "open", "actors": [0, 1], "thresholds": [20, 20], "seed": 0}, "the same task"),
        ({"type": "open", "actors": [0, 2], "thresholds": [20, 71], "seed": 0}, "from 10 to 70"),
        ({"type": "threshold", "side": 0, "value": 100.5}, "from 5 to 100"),
        ({"type": "threshold", "side": 1, "value": 20}, "no side 1"),
    ],
)
def test_commands_that_do_not_fit_the_session_are_refused(session, command, message):
    open_sides(session)
    with pytest.raises(FormatError, match=message):
        session.handle(command)
    assert session.advance()["sides"][0]["threshold"] == 25.0


def test_nothing_moves_before_a_page_asks(session):
    assert session.advance() is None


def test_the_threshold_acts_from_the_next_step_on(session):
    open_sides(session)
    actions = []
    for threshold in (25, 25, 81):
        ask(session, "threshold", side=0, value=threshold)
        [side] = session.advance()["sides"]
        actions += [moment["action"][0] for moment in side["moments"]]
    assert actions == [0.5, 0.5, 0.9]
    assert (side["cost"], side["reward"], side["length"]) == (1.31, 1.9, 3)


def test_the_dial_turns_the_running_episode_of_a_closed_loop(tmp_path):
    """What was spent under the first threshold counts against the second."""
    closed_agent().save(tmp_path / "policy.safetensors")
    session = Session([trained_actor(tmp_path / "policy.safetensors")])
    open_sides(session, thresholds=(60.0,))
    for _ in range(10):
        session.advance()
    ask(session, "threshold", side=0, value=20)
    for _ in range(90):
        [side] = session.advance()["sides"]
    assert (side["threshold"], side["ended"]) == (20.0, "truncated")
    spent = closed_cost(60.0, steps=10)
    assert 20.0 > side["cost"] == pytest.approx(closed_cost(20.0, spent, steps=90), abs=1e-3)
    ask(session, "restart", seed=1)
    session.advance()
    session.advance()
    [side] = session.advance()["sides"]
    assert side["cost"] == pytest.approx(closed_cost(20.0, steps=2), abs=1e-3)  # a new account, the dial as it was
    session.close()


def test_two_sides_start_alike_and_obey_their_own_thresholds(session):
    start = open_sides(session, actors=(2, 2), thresholds=(20, 70), seed=5)
    assert start["places"][0] == start["places"][1]
    assert (start["actors"], start["seed"]) == ([2, 2], 5)
    one, other = session.advance()["sides"]
    assert (one["threshold"], other["threshold"]) == (20, 70)
    assert one["moments"][0]["action"] != other["moments"][0]["action"]
    ask(session, "open", actors=[2, 2], thresholds=[30, 30], seed=5)
    assert session.advance()["places"] == start["places"]
    one, other = session.advance()["sides"]
    assert one == other


def test_pause_and_single_steps(session):
    open_sides(session)
    ask(session, "pause", paused=True)
    assert session.advance() is None
    ask(session, "step")
    assert session.advance()["sides"][0]["length"] == 1
    assert session.advance() is None
    ask(session, "pause", paused=False)
    assert session.advance()["sides"][0]["length"] == 2


@pytest.mark.parametrize(("speed", "steps"), [(0.25, 2), (0.5, 4), (1, 8), (2, 16), (8, 64)])
def test_eight_ticks_at_each_speed(session, speed, steps):
    open_sides(session)
    ask(session, "speed", value=speed)
    frames = [frame for _ in range(8) if (frame := session.advance())]
    assert frames[-1]["sides"][0]["length"] == steps == sum(len(frame["sides"][0]["moments"]) for frame in frames)


def test_an_episode_ends_and_waits_for_a_restart(session):
    open_sides(session)
    ask(session, "speed", value=8)
    frames = [session.advance() for _ in range(14)]
    assert [frame is None for frame in frames] == [False] * 13 + [True]
    [side] = frames[12]["sides"]
    assert (side["ended"], side["length"], len(side["moments"])) == ("truncated", 100, 4)
    assert side["cost"] == pytest.approx(25.0)
    for seed in (1, 2, 3):
        ask(session, "restart", seed=seed)
    assert session.advance()["seed"] == 3
    assert session.advance()["type"] == "frame"


def test_the_welcome_is_plain_json(session):
    welcome = json.loads(json.dumps(describe(session._actors, compare=True), allow_nan=False))
    assert [actor["task"] for actor in welcome["actors"]] == ["StaticBudget", "DriftBudget", "StaticBudget"]
    assert [actor["closed_loop"] for actor in welcome["actors"]] == [False, False, True]
    assert welcome["scenes"]["DriftBudget"]["kind"] == "timeline"
    assert welcome["scenes"]["DriftBudget"]["episode_length"] == 100


@NEEDS_MUJOCO
def test_bodies_are_those_of_the_moment_that_was_drawn_last(tmp_path):
    actor = trained_actor(save_random_policy(tmp_path, "SwimmerVelocity"))
    session, alone = Session([actor]), LiveEpisode(actor, seed=0)

    def rounded():
        return [[round(value, 3) for value in body] for body in alone.bodies]

    start = open_sides(session)
    assert start["bodies"] == [rounded()]
    ask(session, "speed", value=4)
    [side] = session.advance()["sides"]
    for _ in side["moments"]:
        alone.step(side["threshold"])
    assert len(side["moments"]) == 4
    assert side["bodies"] == rounded() != start["bodies"][0]
    session.close(), alone.close()


def test_episodes_that_keep_their_threshold_are_monitored(session):
    """The optimum costs exactly its threshold: nothing is ever refuted, and no episode is beyond."""
    open_sides(session)
    ask(session, "speed", value=8)

    def play(*, turn=False) -> dict:
        while True:
            frame = session.advance()
            if frame["type"] == "frame" and frame["sides"][0]["ended"]:
                return frame["sides"][0]
            if turn and frame["type"] == "frame":
                ask(session, "threshold", side=0, value=30)

    first = play()["monitor"]
    assert (first["episodes"], first["cost"][1], first["rate"][1], first["alarms"]) == (1, 25.0, 0.0, [])
    assert first["cost"][0] <= 25.0 <= first["cost"][2]
    ask(session, "restart", seed=1)
    assert play()["monitor"]["episodes"] == 2
    ask(session, "restart", seed=2)
    assert play(turn=True)["monitor"] is None


@NEEDS_BULLET
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and needs glibc")
def test_closed_sessions_give_their_memory_back():
    """A Bullet world takes some 35 MB, which glibc would keep."""

    def megabytes() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    actor = trained_actor("pretrained/BallCircle")

    def watch() -> float:
        sessions = [Session([actor]) for _ in range(5)]
        for session in sessions:
            open_sides(session)
            session.advance()
        most = megabytes()
        for session in sessions:
            session.close()
        return most

    watch()
    before = megabytes()
    most = watch()
    assert most - before > 100
    assert megabytes() - before < 20
