"""LibTorch, taken from the PyPI wheel that ./dev setup installs."""

# The wheel ships old headers of these two projects; they would shadow Debian's.
_LEFT_OUT = ["google", "fmt"]

_BUILD = """
package(default_visibility = ["//visibility:public"])

# LibTorch for the CPU with c10d and its Gloo backend.
cc_library(
    name = "torch",
    hdrs = glob(["include/**"]),
    defines = ["USE_C10D_GLOO"],
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        {linkopts}
    ],
    deps = ["@gloo"],
)

# CUDA's half of it, with NCCL. It registers itself, so it is linked whether named or not.
cc_library(
    name = "torch_cuda",
    linkopts = [
        "-Wl,--no-as-needed",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-Wl,--as-needed",
    ],
    deps = [":torch"],
)
"""

def _libtorch(ctx):
    root = ctx.os.environ.get("ISTHMUS_TORCH_DIR", "")
    if not root or not ctx.path(root + "/lib/libtorch_cpu.so").exists:
        fail("LibTorch not found (ISTHMUS_TORCH_DIR='%s' has no lib/libtorch_cpu.so): " % root +
             "run ./dev setup")
    for entry in ctx.path(root + "/include").readdir():
        if entry.basename not in _LEFT_OUT:
            ctx.symlink(entry, "include/" + entry.basename)

    # The libraries find each other by $ORIGIN, so they are linked where they lie. The NVIDIA
    # packages beside them hold libcudart and libcupti, which libtorch_cpu.so names.
    lib = root + "/lib"
    cuda = str(ctx.path(root).dirname) + "/nvidia/cu13/lib"
    linkopts = [
        "-L" + lib,
        "-Wl,-rpath," + lib,
        "-Wl,-rpath," + cuda,
        "-Wl,--allow-shlib-undefined",
        "-ltorch_cpu",
        "-lc10",
    ]
    ctx.file("BUILD", _BUILD.format(
        linkopts = "\n        ".join(['"%s",' % option for option in linkopts]),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch,
    environ = ["ISTHMUS_TORCH_DIR"],
    local = True,
)
