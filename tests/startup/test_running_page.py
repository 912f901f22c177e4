"""docs/running.md: its table has every launcher, and its files are what Kubernetes and shells accept."""

import re
import subprocess

import pytest
from collectives._startup.bootstraps import bootstraps
from collectives._startup.launchers import launchers
from launching import needs, run
from paths import ROOT

PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
FILES = ROOT / "examples" / "launchers"

VALIDATE = """
import sys
import kubernetes_validate
import yaml

for path in sys.argv[1:]:
    for document in yaml.safe_load_all(open(path)):
        if document["kind"] == "MPIJob":  # the operator's own kind: its pods are those of Kubernetes
            replicas = document["spec"]["mpiReplicaSpecs"]
            assert set(replicas) == {"Launcher", "Worker"}
            pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **each["template"]}
                    for name, each in replicas.items()]
        else:
            pods = [document]
        for pod in pods:
            kubernetes_validate.validate(pod, "1.31", strict=True)
            print(pod["kind"])
"""


def test_every_launcher_is_in_the_table():
    for launcher in launchers():
        names = [launcher.size_variable, launcher.rank_variable] if launcher.rank_variable else ["torchrun"]
        for name in filter(None, names):
            assert re.search(rf"^\|.*{name}", PAGE, re.MULTILINE), f"{launcher.name}: {name}"


def test_every_test_of_the_table_is_there():
    named = set(re.findall(r"`(tests/\w+/\w+\.py)`", PAGE))
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_every_bootstrap_is_on_the_page():
    assert PAGE.partition("## Ranks that can talk already")[2].count("\n| ") == len(bootstraps()) + 2


def test_every_file_is_linked():
    linked = set(re.findall(r"\(\.\./examples/launchers/([\w.]+)\)", PAGE))
    assert linked == {path.name for path in FILES.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir() if path.suffix in (".sh", ".sbatch")))
def test_shells_accept_the_scripts(name):
    subprocess.run(["bash", "-n", str(FILES / name)], check=True)


def test_kubernetes_accepts_the_files(tmp_path):
    python = needs("kubernetes")
    files = sorted(str(path) for path in FILES.glob("*.yaml"))
    done = run([python, "-c", VALIDATE, *files], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Service", "Job", "Pod", "Pod"]


def test_rays_file_runs(tmp_path):
    done = run([needs("ray"), str(FILES / "ray_run.py"), "2"], tmp_path, limit=120.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0.5, 0.5]"
