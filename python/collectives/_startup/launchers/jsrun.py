"""The launcher of LSF on machines of IBM."""

from . import Launcher

LAUNCHER = Launcher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK")
