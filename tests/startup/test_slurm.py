"""Ranks that `srun` starts; the shells of `sbatch` and `salloc` are worlds of one. With Slurm itself."""

import subprocess
import sys

import pytest
import slurm
from launching import check, program, run
from paths import ROOT

pytestmark = pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
ALONE = "import collectives; print(collectives.init())"
TOKEN = {"COLLECTIVES_TOKEN": "of the test"}


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def test_srun(variables, tmp_path):
    done = run(["srun", "-n", "4", sys.executable, program(tmp_path)], tmp_path, **variables, **TOKEN)
    check(done)
    assert "srun has started this process as rank 0 of 4 (SLURM_PROCID, SLURM_STEP_NUM_TASKS)" in done.stderr


def test_srun_with_pmix_needs_no_token(variables, tmp_path):
    check(run(["srun", "--mpi=pmix", "-n", "4", sys.executable, program(tmp_path)], tmp_path, **variables))


def test_srun_without_a_token_says_what_to_set(variables, tmp_path):
    done = run(["srun", "-n", "4", sys.executable, program(tmp_path)], tmp_path, **variables)
    assert done.returncode != 0
    for part in ("srun has started this process as rank 3 of 4", "COLLECTIVES_TOKEN", "init(size=1)"):
        assert part in done.stderr


def test_size_1_opts_out(variables, tmp_path):
    alone = "import collectives; print(collectives.init(size=1).size)"
    done = run(["srun", "-n", "4", sys.executable, "-c", alone], tmp_path, **variables)
    assert done.stdout.splitlines() == ["1"] * 4, done.stderr


def test_the_shell_of_sbatch_is_one_process(variables, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -n 4\n{sys.executable} -c '{ALONE}'\n")
    done = run(["sbatch", "--wait", f"--output={tmp_path}/output.txt", str(script)], tmp_path, **variables)
    said = (tmp_path / "output.txt").read_text()
    assert done.returncode == 0, said
    assert said == "<collectives.Communicator rank 0 of 1>\n"


def test_the_shell_of_salloc_is_one_process(variables, tmp_path):
    done = run(["salloc", "-n", "4", sys.executable, "-c", ALONE], tmp_path, **variables)
    assert done.stdout == "<collectives.Communicator rank 0 of 1>\n", done.stderr


def test_the_file_of_the_page(variables, tmp_path):
    """examples/launchers/slurm.sbatch, for fewer ranks and another program."""
    text = (ROOT / "examples" / "launchers" / "slurm.sbatch").read_text()
    for one, other in (("--nodes=2", "--nodes=1"), ("--ntasks-per-node=8", "--ntasks=4")):
        assert one in text
        text = text.replace(one, other)
    assert text.count("python train.py") == 1
    script = tmp_path / "job.sbatch"
    script.write_text(text.replace("python train.py", f"{sys.executable} {program(tmp_path)}"))
    done = run(["sbatch", "--wait", f"--output={tmp_path}/output.txt", str(script)], tmp_path, **variables)
    said = (tmp_path / "output.txt").read_text()
    check(subprocess.CompletedProcess([], done.returncode, said, said))
