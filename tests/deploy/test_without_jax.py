"""The exported file acts in an environment that holds NumPy, safetensors and this package, and nothing else.

The commands that make use of it do without JAX.
"""

import importlib
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from toy import closed_agent

ROOT = Path(__file__).parents[2]
CODE = """
import importlib.util, json, sys, warnings
warnings.simplefilter("error")
from ccpo.runtime import Policy
episode = Policy.load(sys.argv[1]).episode(35.0)
episode.pay(12.0)
action = episode.act([0.1, 0.2])
absent = all(importlib.util.find_spec(name) is None for name in ("jax", "gymnasium", "rich", "optax"))
print(json.dumps([action.tolist(), absent]))
"""


def act_in(python, tmp_path):
    agent = closed_agent()
    agent.save(tmp_path / "policy.safetensors")
    command = [python, "-I", "-c", CODE, tmp_path / "policy.safetensors"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    action, absent = json.loads(result.stdout)
    assert absent
    np.testing.assert_array_equal(np.float32(action), agent.policy.act([0.1, 0.2], 35.0, spent=12.0, step=1))


def make_environment(folder, *, with_pip):
    venv.create(folder, with_pip=with_pip, symlinks=True)
    purelib = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    return folder / "bin" / "python", Path(purelib)


@pytest.mark.skipif(sys.platform == "win32", reason="links packages into a POSIX virtual environment")
def test_acts_in_an_environment_without_jax(tmp_path):
    """The installed packages themselves, linked into a virtual environment: no network, no time."""
    python, site_packages = make_environment(tmp_path / "venv", with_pip=False)
    for name in ("numpy", "safetensors", "ccpo"):
        package = Path(importlib.import_module(name).__file__).parent
        (site_packages / name).symlink_to(package)
        libraries = package.with_name(f"{name}.libs")
        if libraries.exists():
            (site_packages / libraries.name).symlink_to(libraries)
    act_in(python, tmp_path)


@pytest.mark.long
def test_acts_after_pip_install_without_dependencies(tmp_path):
    python, _ = make_environment(tmp_path / "venv", with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    reachable = subprocess.run([*pip, "safetensors"], capture_output=True, text=True, timeout=600, check=False)
    if reachable.returncode:
        pytest.skip(f"needs a package index: {reachable.stderr[-200:]}")
    subprocess.run([*pip, "numpy"], check=True, timeout=600)
    subprocess.run([*pip, "--no-deps", ROOT], check=True, timeout=600)
    act_in(python, tmp_path)


@pytest.mark.parametrize("command", [("evaluate", "--episodes", "1"), ("calibrate", "--episodes", "200")])
def test_commands_that_use_a_policy_do_without_jax(command, tmp_path):
    name, *flags = command
    out = tmp_path / "calibrated.safetensors" if name == "calibrate" else tmp_path
    policy = tmp_path / "policy.safetensors"
    closed_agent().save(policy)
    run = f"""
import sys
sys.modules["jax"] = None
from ccpo.cli import main
sys.exit(main(["{name}", {str(policy)!r}, "--thresholds", "40,60", "--workers", "1", "--out", {str(out)!r}]
    + {flags}))
"""
    result = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert str(tmp_path) in result.stdout
