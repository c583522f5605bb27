"""The child of `local`: llama.cpp's server for one model, on a free port of the loopback interface.

Prints its address once it can answer, and ends when its standard input does: with the process that started it.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

CONTEXT = 8192  # tokens of prompt and answer together: the length that the small model was trained for


def serve(model: Path, threads: int) -> None:
    runtime = importlib.import_module("xllamacpp")
    params = runtime.CommonParams()
    params.model.path = str(model)
    params.model_alias = [model.stem]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.ui = False
    server = runtime.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    sys.stdin.read()
    os._exit(0)  # the runtime's own way to end waits for its threads, now and then forever


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    found = parser.parse_args()
    serve(found.model, found.threads)
