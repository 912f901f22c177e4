"""What other launchers say, by their variables: rank, size and a place to meet, or an error that says what to set."""

import os
import socket
import subprocess
import sys

import pytest
from collectives._startup import start
from collectives._startup.launched import AtAddress, ByBroadcast, Launched, own_address
from collectives._startup.launchers import find_job, launchers
from collectives._startup.launchers.slurm import first_node
from joining import LIMIT
from launching import PROGRAM, four

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9", "MPI_LOCALNRANKS": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "job"}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_STEP_NUM_NODES": "2",
}
MASTER = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "GROUP_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
FLUX = {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "1", "FLUX_JOB_ID": "f1", "PMI_RANK": "1", "PMI_SIZE": "4"}
TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}, '
    '"task": {"type": "worker", "index": 0}}'
}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "COLLECTIVES_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "kind", "part"),
    [
        (HYDRA, ByBroadcast, "its PMI"),
        (OPEN_MPI, ByBroadcast, "its PMIx (job)"),
        (SLURM, AtAddress, "node07:20527"),
        ({**SLURM, "PMIX_NAMESPACE": "step"}, ByBroadcast, "its PMIx (step)"),
        (MASTER, AtAddress, "node1:29501"),
        (FLUX, Launched, ""),
        (TF_CONFIG, Launched, ""),
        (INDEXED, Launched, ""),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}, Launched, ""),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "4"}, Launched, ""),
    ],
    ids=["hydra", "openmpi", "slurm", "slurm pmix", "master", "flux", "tf_config", "indexed", "horovodrun", "jsrun"],
)
def test_rank_size_and_place(variables, kind, part):
    job = find_job(variables)
    assert (type(job), job.rank, job.size) == (kind, 1, 4)
    assert part in job.place
    if not part:
        with pytest.raises(ValueError) as caught, job.meet(token=None, timeout=None):
            pass
        for said in ("rank 1 of 4", job.RANK_VARIABLE, "Set COLLECTIVES_RENDEZVOUS to host:port", "init(size=1)"):
            assert said in str(caught.value)
    assert find_job({**variables, "COLLECTIVES_RANK": "0"}) is None


@pytest.mark.parametrize(
    "variables",
    [
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},  # as in the shell of sbatch
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {**MASTER, "WORLD_SIZE": "1", "RANK": "0"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": "no JSON"},
        {"JOB_COMPLETION_INDEX": "0", "COLLECTIVES_SIZE": "1"},
        {},
    ],
)
def test_one_process(variables):
    assert find_job(variables) is None


@pytest.mark.parametrize(
    ("variables", "name", "rank", "size"),
    [
        ({**OPEN_MPI, **SLURM, "SLURM_STEP_NUM_TASKS": "2"}, "mpirun of Open MPI", 1, 4),  # srun starts its daemons
        ({**HYDRA, **SLURM, "SLURM_STEP_NUM_TASKS": "2"}, "mpiexec of MPICH or Intel MPI", 1, 4),
        ({**TORCHRUN, **SLURM}, "torchrun", 5, 8),
        ({**TORCHRUN, **OPEN_MPI}, "torchrun", 5, 8),  # mpirun has started its four agents
        ({**TORCHRUN, "JOB_COMPLETION_INDEX": "3"}, "torchrun", 5, 8),
        ({**OPEN_MPI, **MASTER}, "mpirun of Open MPI", 1, 4),  # they agree
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", **OPEN_MPI}, "mpirun of Open MPI", 1, 4),
    ],
)
def test_launchers_that_start_others(variables, name, rank, size):
    job = find_job(variables)
    assert job.found.startswith(f"{name} has started")
    assert (job.rank, job.size) == (rank, size)


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({**OPEN_MPI, **MASTER, "RANK": "2"}, ["rank 1 of 4 (OMPI_COMM_WORLD_RANK", "rank 2 of 4 (RANK, WORLD_SIZE)"]),
        ({**HYDRA, **OPEN_MPI, "PMI_SIZE": "8"}, ["rank 1 of 8 (PMI_RANK, PMI_SIZE)", "rank 1 of 4 (OMPI_COMM_WORLD"]),
        ({**TORCHRUN, **OPEN_MPI, "GROUP_WORLD_SIZE": "1"}, ["torchrun says rank 5 of 8", "Open MPI says rank 1 of 4"]),
        ({**SLURM, "COLLECTIVES_SIZE": "8"}, ["srun says rank 1 of 4", "COLLECTIVES_SIZE is 8"]),
    ],
)
def test_launchers_that_disagree(variables, parts):
    with pytest.raises(ValueError) as caught:
        find_job(variables)
    for part in (*parts, "which is meant?"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"}, ["OMPI_COMM_WORLD_RANK is 'x'", "mpirun of Open MPI"]),
        ({**SLURM, "SLURM_PROCID": "4"}, ["SLURM_PROCID 4", "SLURM_STEP_NUM_TASKS 4"]),
        ({**MASTER, "MASTER_PORT": "65535"}, ["MASTER_PORT is '65535'", "from 1 to 65534"]),
        ({"JOB_COMPLETION_INDEX": "0"}, ["JOB_COMPLETION_INDEX is 0", "Set COLLECTIVES_SIZE", "init(size=1)"]),
        ({**INDEXED, "JOB_COMPLETION_INDEX": "4"}, ["JOB_COMPLETION_INDEX is 4", "COLLECTIVES_SIZE 4"]),
    ],
)
def test_variables_that_cannot_be(variables, parts):
    with pytest.raises(ValueError) as caught:
        find_job(variables)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({name: value for name, value in HYDRA.items() if name != "PMI_FD"}, "PMI_FD is not set"),
        ({name: value for name, value in OPEN_MPI.items() if name[:4] == "OMPI"}, "PMIX_NAMESPACE is not set"),
        (
            {name: value for name, value in MASTER.items() if name[:4] != "MAST"},
            "MASTER_ADDR and MASTER_PORT are not set",
        ),
        ({**SLURM, "SLURM_DISTRIBUTION": "arbitrary"}, "nothing says which node has rank 0"),
    ],
)
def test_a_launcher_whose_place_cannot_be_used(variables, why):
    with pytest.raises(ValueError) as caught, find_job(variables).meet(token=None, timeout=None):
        pass
    assert why in str(caught.value)
    assert "Set COLLECTIVES_RENDEZVOUS" in str(caught.value)


def test_a_descriptor_that_is_not_of_the_launcher(tmp_path):
    """Nothing is written to a file or socket that has got the number of a descriptor that was closed."""
    with (tmp_path / "file").open("w+") as file, socket.create_server(("127.0.0.1", 0)) as server:
        for number in (file.fileno(), server.fileno(), 1 << 20):
            program = "import sys, collectives\ntry: collectives.init()\nexcept ValueError as error: print(error)"
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, **HYDRA, "PMI_RANK": "0", "PMI_FD": str(number)},
                pass_fds=[number] if number < 1 << 20 else [],
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            assert f"PMI_FD is '{number}', which is no" in done.stdout, done.stderr
            assert "Set COLLECTIVES_RENDEZVOUS" in done.stdout
        assert file.read() == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "own"])
def test_rank_world_size_and_master(address, tmp_path):
    """As Kubeflow and Lightning set them; a store of torch.distributed at MASTER_PORT is not disturbed."""
    host = own_address("") if address == "own" else address
    with socket.create_server((host, 0)) as sock:
        port = sock.getsockname()[1]
        token = {"COLLECTIVES_TOKEN": "of the test"} if address == "own" else {}
        variables = [
            {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": host, "MASTER_PORT": str(port), **token}
            for rank in range(4)
        ]
        said = four(tmp_path, PROGRAM, variables)
    assert said[0].count(f"ranks meet at {host}:{port + 1}, from MASTER_ADDR") == 1
    assert not any("ranks meet" in one for one in said[1:])


def test_without_a_token_the_error_says_how_to_make_one():
    with (
        pytest.raises(ValueError) as caught,
        find_job({**MASTER, "MASTER_ADDR": "192.0.2.1"}).meet(token=None, timeout=1),
    ):
        pass
    for part in ("192.0.2.1:29501", "openssl rand -hex 32", "COLLECTIVES_TOKEN_FILE", "init(size=1)"):
        assert part in str(caught.value)


def test_an_indexed_job(tmp_path):
    """With what the file of the page sets."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}"
    shared = {"COLLECTIVES_SIZE": "4", "COLLECTIVES_RENDEZVOUS": where, "COLLECTIVES_TOKEN": "of the test"}
    four(tmp_path, PROGRAM, [{**shared, "JOB_COMPLETION_INDEX": str(rank)} for rank in range(4)])


@pytest.mark.parametrize("level", ["warning", "info"])
def test_what_is_logged(level, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = str(sock.getsockname()[1])
    about = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "COLLECTIVES_TOKEN": "of the test"}
    said = four(tmp_path, PROGRAM, [{**about, "RANK": str(rank), "COLLECTIVES_LOG": level} for rank in range(2)])
    assert ("ranks meet at" in said[0]) == (level == "info")
    assert ("INFO: ranks [1] of 2" in said[1]) == (level == "info")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("node[003-007,9],other", "node003"),
        ("node[7,9]-eth", "node7-eth"),
        ("rack[1-2]", "rack1"),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes, first):
    assert first_node(nodes) == first


def test_stages():
    """Those that start others by agents come first, those that give nodes to others last."""
    stages = {launcher.name: launcher.STAGE for launcher in launchers()}
    assert [stages[name] for name in ("torchrun", "mpirun of Open MPI", "srun", "flux run")] == [0, 1, 3, 3]


def test_bootstrap_and_rendezvous_say_the_same_thing_twice():
    place = {"rank": None, "size": None, "rendezvous": "127.0.0.1:1"}
    with pytest.raises(ValueError, match="leave one out"), start.meet(place, object(), {}):
        pass
    with (
        pytest.raises(TypeError, match=r"accepted are .* JAX .* mpi4py, a store"),
        start.meet({**place, "rendezvous": None}, object(), {}),
    ):
        pass
