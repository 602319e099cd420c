"""One thread a process: one core learns while another collects, and more threads for small matrices cost both."""

import os

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def use_one_thread() -> None:
    """For this process and those it starts, unless the variables are set; call it before NumPy and JAX are imported."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
