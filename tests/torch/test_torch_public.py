"""Every public function of torch.distributed: the checks of this folder call it, or it is listed here with a reason."""

import ast
import inspect
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

# Of these nothing depends on the backend, or the backend has no part in it.
LISTED = {
    "breakpoint": "waits for a person",
    "get_node_local_rank": "reads a variable of torchrun",
    "is_available": "about the build of torch",
    "is_gloo_available": "about the build of torch",
    "is_mpi_available": "about the build of torch",
    "is_nccl_available": "about the build of torch",
    "is_torchelastic_launched": "reads a variable of torchrun",
    "is_ucc_available": "about the build of torch",
    "is_xccl_available": "about the build of torch",
    "register_rendezvous_handler": "of stores",
    "rendezvous": "of stores; init_process_group calls it",
    "supports_complex": "about ops",
    # Refused by torch itself.
    "shrink_group": "for backends that say they shrink, which must keep NCCL's flags: see comm.shrink()",
    "gather_single": "new in 2.14, whose class for Python backends does not pass it on",
    "split_group": "needs an accelerator; the method of the group is checked",
    # Deprecated names of others, which are checked.
    "reduce_scatter_tensor": "another name of reduce_scatter_single",
    "all_gather_into_tensor": "another name of all_gather_single",
    "gather_into_tensor": "another name of gather_single",
}


def public():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are deprecated
        return {
            name
            for name in dir(dist)
            if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(dist, name))
        }


def called():
    """The names of torch.distributed that the checks of this folder and their helper use."""
    folder = Path(__file__).parent
    names = set()
    for path in (*folder.glob("*_checks.py"), folder.parent / "support" / "torch_ranks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dist":
                names.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch.distributed"):
                names.update(alias.name for alias in node.names)
    return names


def test_every_public_function_is_covered():
    missing = public() - called() - LISTED.keys()
    assert not missing, f"torch.distributed has {sorted(missing)}: check it, or list it with a reason"
    assert all(len(reason) > 5 for reason in LISTED.values())


def python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def test_nothing_has_to_be_imported():
    done = python("import torch; print('collectives' in torch.distributed.Backend.backend_list)")
    autoload = hasattr(torch, "_import_device_backends")  # from 2.5 on
    assert done.stdout.split() == [str(autoload)], done.stderr


def test_torch_is_not_installed():
    done = python("import sys; sys.modules['torch'] = None; import collectives, collectives.torch")
    assert "ImportError: collectives.torch needs PyTorch" in done.stderr
    assert "pip install 'collectives-comm[torch]'" in done.stderr
