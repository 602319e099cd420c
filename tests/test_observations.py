"""Flat as Gymnasium makes it, without Gymnasium."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from ccpo.envs.layouts import layout_of
from ccpo.errors import FormatError
from ccpo.observations import decode, describe, encode, flatten, is_structured, size

SPACES = [
    spaces.Box(-1.0, 1.0, (3, 4)),
    spaces.Box(-1.0, 1.0, ()),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary((2, 2)),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (2,)))),
    spaces.Dict({"b": spaces.Box(-1.0, 1.0, (2,)), "a": spaces.Discrete(3), "c": spaces.MultiBinary(2)}),
    spaces.Dict({"outer": spaces.Dict({"z": spaces.MultiDiscrete([2, 2]), "y": spaces.Box(0, 1, (1, 2))})}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_gymnasium_flattens_the_same(space):
    layout = decode(encode(layout_of(space)))
    assert layout is not None
    assert size(layout) == spaces.flatdim(space)
    space.seed(0)
    for _ in range(5):
        obs = space.sample()
        flat = flatten(layout, obs)
        assert flat.dtype == np.float32
        np.testing.assert_array_equal(flat, np.asarray(spaces.flatten(space, obs), np.float32))
        assert is_structured(layout, obs)
        assert not is_structured(layout, flat[None, :])


def test_a_flat_box_needs_no_layout():
    assert encode(layout_of(spaces.Box(-1.0, 1.0, (5,)))) == ""
    assert decode("") is None
    assert not is_structured(None, np.zeros(5))
    with pytest.raises(FormatError, match="trained on flat observations"):
        flatten(None, {"a": 1})


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"a": 1}, r"form Dict\(b: Box\(2\), a: Discrete\(3\).*'b' is missing"),
        ({"a": 7, "b": [0, 0], "c": [0, 0]}, "7 is none of 3 values"),
        ({"a": 1, "b": [0, 0, 0], "c": [0, 0]}, "3 numbers instead of 2"),
        ({"a": 1, "b": "x", "c": [0, 0]}, "does not have the form"),
    ],
)
def test_an_observation_of_another_form_says_which_is_right(obs, message):
    layout = {"dict": [["b", {"box": [2]}], ["a", {"one_hot": 3, "start": 0}], ["c", {"box": [2]}]]}
    with pytest.raises(FormatError, match=message):
        flatten(layout, obs)


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"dict": 3}', '{"tuple": [{"box": "ab"}]}', json.dumps({"x": 1})])
def test_a_damaged_layout_is_refused(text):
    with pytest.raises(FormatError, match="is damaged"):
        decode(text)


def test_a_layout_in_words():
    assert describe(layout_of(SPACES[6])) == "Tuple(Discrete(2), Box(2))"
    assert describe(layout_of(SPACES[4])) == "MultiDiscrete(2, 3)"
