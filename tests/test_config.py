import json
from dataclasses import dataclass

import pytest

from ccpo import config
from ccpo.errors import ConfigError


@dataclass(frozen=True)
class One(config.Settings):
    rate: float = config.setting(0.1, "a rate", above=0, high=1)
    hidden: tuple[int, ...] = config.setting((4, 4), "sizes", low=1)
    kind: str = config.setting("soft", "which", choices=("soft", "hard"))
    limit: int | None = config.setting(None, "or none")


@dataclass(frozen=True)
class Two(config.Settings):
    steps: int = config.setting(10, "steps", low=1)
    fast: bool = config.setting(False, "quick")


def test_later_layers_win_and_each_kind_takes_its_own():
    one, two = config.build((One, Two), {"rate": 0.5, "steps": 3}, {"rate": "0.25", "fast": "true"})
    assert (one.rate, two.steps, two.fast) == (0.25, 3, True)


def test_strings_of_the_command_line_become_values():
    one, two = config.build((One, Two), {"hidden": "8,16", "limit": "7", "steps": "2_000"})
    assert (one.hidden, one.limit, two.steps) == ((8, 16), 7, 2000)
    assert config.build((Two,), {"steps": "1e5"})[0].steps == 100_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"raet": 1}, "unknown setting 'raet'; did you mean 'rate'?"),
        ({"rate": 0}, "rate=0.0 must be greater than 0"),
        ({"rate": 2}, "rate=2.0 is too large; the greatest allowed value is 1"),
        ({"rate": "quick"}, "rate='quick' must be a finite number"),
        ({"rate": float("nan")}, "rate=nan must be a finite number"),
        ({"hidden": "8,0"}, "hidden=0 is too small; the least allowed value is 1"),
        ({"kind": "sotf"}, "kind='sotf' is not allowed; did you mean 'soft'?"),
        ({"steps": 1.5}, "steps=1.5 must be a whole number"),
        ({"steps": "inf"}, "steps='inf' must be a whole number"),
        ({"fast": "yes"}, "fast='yes' must be true or false"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(settings, message):
    with pytest.raises(ConfigError) as error:
        config.build((One, Two), settings)
    assert str(error.value) == message


def test_settings_survive_json():
    configs = config.build((One, Two), {"hidden": (8,), "limit": 3})
    again = config.build((One, Two), json.loads(json.dumps(config.as_dict(*configs))))
    assert again == configs


def test_unknown_preset_and_bad_files(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'tuned'"):
        config.load_preset("ccpo", "tunde", "BallCircle")
    with pytest.raises(ConfigError, match="cannot read the settings file"):
        config.load_file(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("rate = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load_file(str(tmp_path / "bad.toml"))
    (tmp_path / "bad.toml").write_bytes(b"rate = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.load_file(str(tmp_path / "bad.toml"))


def test_what_a_task_says_of_itself_stands_where_its_table_would():
    """After `all` of the preset that extends nothing, before everything that extends it."""
    own = {"steps": 7}
    assert config.load_preset("ppo_lag", "tuned", "Elsewhere", own=own)["steps"] == 7
    assert config.load_preset("ccpo", "demo", "Elsewhere", own=own)["steps"] == 120_000
    assert config.load_preset("ccpo", "faithful", "Elsewhere", own=own)["steps"] == 7
    assert config.load_preset("ccpo", "tuned", "BallCircle", own=own)["steps"] == 199_200
    assert "steps" not in config.load_preset("ccpo", "tuned")


def test_a_table_is_that_of_one_name():
    assert "steps" in config.load_preset("ccpo", "tuned", "AntRun")
    assert "steps" not in config.load_preset("ccpo", "tuned", "AntRun-v3")
