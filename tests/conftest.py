"""One thread, strict JAX, and small problems that compile in seconds."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CCPO_CACHE", str(Path(tempfile.gettempdir()) / "ccpo-test-cache"))

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def key():
    return jax.random.key(0)
