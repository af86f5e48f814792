"""The build backend: setuptools', but with the installed torch in sight.

pip builds in an isolated environment, where installed packages are hidden. An
extension must be built against the torch that will load it, so this module
appends the interpreter's own packages to the import path of the build.
"""

from __future__ import annotations

import importlib.util
import site
import sys
import sysconfig

from setuptools.build_meta import *  # noqa: F403


def _show_installed_torch() -> None:
    if importlib.util.find_spec("torch") is not None:
        return
    places = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    places += site.getsitepackages()
    if site.ENABLE_USER_SITE is not False:
        places.append(site.getusersitepackages())
    for place in dict.fromkeys(places):
        sys.path.append(place)
        if importlib.util.find_spec("torch") is not None:
            return
        sys.path.remove(place)


_show_installed_torch()
