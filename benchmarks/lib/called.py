"""One rank of run_functions(): called.py CALL RANK"""

import importlib
import pathlib
import pickle
import sys

if __name__ == "__main__":
    del sys.path[0]  # The caller's path is behind this script's folder.
    path, rank = sys.argv[1:]
    module, name, args = pickle.loads(pathlib.Path(path).read_bytes())
    result = getattr(importlib.import_module(module), name)(int(rank), *args)
    pathlib.Path(f"{path}.{rank}").write_bytes(pickle.dumps(result))
