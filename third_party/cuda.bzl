"""The CUDA toolkit and NCCL's header, where the machine has them: CUDA_HOME, else /usr/local/cuda.

A machine without them gets the same targets, empty: everything loads, and only what really
includes CUDA's headers does not compile. `./dev build --config=cuda` looks first and says so.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# Headers only: LibTorch's own libraries bring CUDA and NCCL along.
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)
"""

def _cuda(ctx):
    include = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"
    if ctx.path(include + "/cuda_runtime_api.h").exists:
        ctx.symlink(include, "include")
    ctx.file("BUILD", _BUILD)

cuda_repository = repository_rule(
    implementation = _cuda,
    environ = ["CUDA_HOME"],
    local = True,
)
