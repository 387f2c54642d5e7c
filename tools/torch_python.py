"""Lets Python import torch's wheel on a machine without the 3 GB of CUDA libraries that it names.

The wheel's libraries are linked with cuBLAS, cuDNN, NCCL and others, and without them
`import torch` fails, though nothing calls them on a CPU. This makes small libraries with their
names and symbols, whose functions end the process if they are called after all:

    environment = cpu_environment(site_packages / "torch", folder)
    subprocess.run([python, "-c", "import torch"], env=environment)

The libraries that the CPU does use (libcudart, libcupti) come from their own packages.
"""

import os
import re
import subprocess
from pathlib import Path

# What stands in for which library: symbols that carry no version are told by their names.
_PREFIXES = {
    "libcublas": "cublas",
    "libcublasLt": "cublasLt",
    "libcudnn": "cudnn",
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusparse": "cusparse",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
    "libnvshmem_host": "nvshmem",
}
# Loaded by torch only for linear algebra on a GPU.
_LEFT_OUT = "libtorch_cuda_linalg"


def cpu_environment(torch, folder):
    """Fills `folder` with the stand-ins; returns the environment for Python to run in.

    `torch`: the folder of the installed package.
    """
    folder = Path(folder)
    needed, undefined = _wants(Path(torch) / "lib")
    for soname in sorted(needed):
        _make(soname, undefined, folder)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {**os.environ, "LD_LIBRARY_PATH": path}


def _output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _wants(libraries):
    """Names of the libraries to stand in for; {(symbol, version)} that torch lacks."""
    needed, undefined = set(), set()
    for library in libraries.glob("*.so*"):
        if library.name.startswith(_LEFT_OUT):
            continue
        for soname in re.findall(r"NEEDED.*\[(.*)\]", _output("readelf", "-dW", library)):
            if soname.split(".so")[0] in _PREFIXES:
                needed.add(soname)
        for line in _output("nm", "-D", "-u", "--with-symbol-versions", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            undefined.add((name, version))
    return needed, undefined


def _make(soname, undefined, folder):
    prefix = _PREFIXES[soname.split(".so")[0]]
    mine = {
        (name, version)
        for name, version in undefined
        # A version is the library's own name, but for NVSHMEM's.
        if version == soname or (name.startswith(prefix) and not version.startswith("lib"))
    }
    source = folder / "stand_in.s"
    names = sorted(name for name, _ in mine)
    labels = "".join(f".globl {name}\n.type {name}, @function\n{name}:\n" for name in names)
    source.write_text(f".text\n{labels} ud2\n.section .note.GNU-stack\n")
    options = []
    versions = {version for _, version in mine if version}
    if versions:
        script = folder / "stand_in.map"
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
        options = [f"-Wl,--version-script={script}"]
    target = folder / soname
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", *options, "-o", target]
    subprocess.run([*command, source], check=True)
