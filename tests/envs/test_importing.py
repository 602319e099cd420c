"""A name leads to the thing it names, in this process and in another one; what has none says so."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from ccpo.envs import importing
from ccpo.envs.importing import Source, find, find_function, looks_own, source_of
from ccpo.envs.registry import resolve
from ccpo.errors import ConfigError, EnvError

OWN = """
import gymnasium
import numpy as np

class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    episode_length = 3

    class Inner:
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"cost": 1.0}

def price(obs, action, reward, next_obs, info):
    return 2.0
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a module of the user's, which this process forgets again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "own_world.py").write_text(OWN)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "inner_world.py").write_text(OWN)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["own_world:Own", "own_world.py:Own", "./own_world.py:Own", "pack.inner_world:Own"])
def test_a_class_is_found_by_module_and_by_file(place, name):
    factory = resolve(name)
    assert factory.name == "Own"
    assert factory.sendable
    assert factory.spec.episode_length == 3


def test_a_file_elsewhere_and_a_nested_name_are_found(place, monkeypatch):
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert find("../own_world.py:Own.Inner").__qualname__ == "Own.Inner"
    assert find(str(place / "own_world.py") + ":Own").__name__ == "Own"


def test_a_source_leads_another_process_in_another_folder_to_the_same_thing(place):
    for name in ("own_world:Own", "pack.inner_world:Own", "own_world:price", "own_world:Own.Inner"):
        source = source_of(find(name))
        assert source == Source(name, str(place))
        code = (
            f"from ccpo.envs.importing import find; print(find({source.path!r}, folder={source.folder!r}).__qualname__)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
        assert done.stdout.strip() == name.rpartition(":")[2]


def test_what_is_installed_needs_no_folder():
    assert source_of(gymnasium.Env) == Source("gymnasium.core:Env")


def test_what_cannot_be_imported_again_has_no_path(place):
    own = find("own_world:Own")

    def closure():
        return own()

    class Local:
        pass

    for thing in (lambda: own(), closure, Local, own(), 3):
        assert source_of(thing) == Source(None)
    assert resolve(own()).source == Source(None)
    assert resolve(gymnasium.make("Pendulum-v1")).source is None
    assert resolve("Pendulum-v1").source is None


def test_a_script_is_named_by_its_file_and_a_prompt_has_none(place):
    script = "from ccpo.envs.importing import source_of\nclass Mine: pass\nprint(source_of(Mine).path)\n"
    (place / "script.py").write_text(script)
    run = {"capture_output": True, "text": True, "check": True, "cwd": place}
    assert subprocess.run([sys.executable, "script.py"], **run).stdout.strip() == "script:Mine"
    assert subprocess.run([sys.executable, "-c", script], **run).stdout.strip() == "None"


def test_sources_survive_json_and_those_of_version_0_1_are_understood():
    source = Source("a:B", "folder")
    assert Source.from_dict(source.as_dict()) == source
    assert Source.from_dict(True) == Source(None)
    assert Source.from_dict(False) is None
    assert Source.from_dict(None) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_world:Onw", r"'own_world' has no 'Onw'; did you mean 'Own'\?"),
        ("nothing.py:Own", r"there is no file 'nothing.py'"),
        ("no_such_world:Own", r"cannot import 'no_such_world' for 'no_such_world:Own' \(ModuleNotFoundError"),
        ("broken.py:Own", r"cannot import 'broken.py' for 'broken.py:Own' \(ZeroDivisionError"),
        ("json.py:Own", r"'json.py' has the name of another module, .*; rename the file"),
        ("OwnWorld", r"an environment of your own is named module:Class or file.py:Class"),
    ],
)
def test_what_is_not_found_says_what_to_do(place, name, message):
    (place / "broken.py").write_text("1 / 0\n")
    (place / "json.py").write_text(OWN)
    with pytest.raises((EnvError, ConfigError), match=message):
        resolve(name)


def test_a_function_that_is_missing_is_suggested(place):
    with pytest.raises(ConfigError, match=r"'own_world' has no function 'prise'; did you mean 'price'\?"):
        find_function("own_world:prise")
    assert resolve("own_world:Own", cost_fn="own_world:price").cost_fn(None, None, 0.0, None, {}) == 2.0


def test_a_script_that_trains_while_it_is_imported_is_refused(place):
    (place / "trains.py").write_text(OWN + "\nimport ccpo\nccpo.train(Own)\n")
    with pytest.raises(ConfigError, match=r"'trains.py' calls ccpo.train when it is imported.*__main__"):
        resolve("trains.py:Own")


def test_a_gymnasium_id_is_no_class():
    assert looks_own("module:Class")
    assert looks_own("folder/file.py:Class.Inner")
    assert not looks_own("module:Id-v0")
    assert not looks_own("module:space/Id-v0")
    assert not looks_own("Class")


def test_the_folder_of_a_package_is_that_above_it(place):
    assert source_of(find("pack.inner_world:Own")).folder == str(Path(place))
    assert importing.source_of(find("pack.inner_world:price")).path == "pack.inner_world:price"
