"""google.rpc.Status and the error details, from the PyPI package googleapis-common-protos."""

_FILES = ["google/rpc/status.proto", "google/rpc/error_details.proto"]

_BUILD = """
load("@isthmus//third_party:proto.bzl", "cc_proto")

cc_proto(
    name = "status",
    src = "google/rpc/status.proto",
)

cc_proto(
    name = "error_details",
    src = "google/rpc/error_details.proto",
)
"""

def _googleapis(ctx):
    venv = ctx.os.environ.get("ISTHMUS_VENV", "")
    if not venv or not ctx.path(venv + "/lib").exists:
        fail("The Python environment is not found (ISTHMUS_VENV='%s'): run ./dev setup" % venv)
    for python in ctx.path(venv + "/lib").readdir():
        packages = "%s/site-packages/" % python
        if ctx.path(packages + _FILES[0]).exists:
            for name in _FILES:
                ctx.symlink(packages + name, name)
            ctx.file("BUILD", _BUILD)
            return
    fail("%s has no %s: remove that folder and run ./dev setup" % (venv, _FILES[0]))

googleapis_repository = repository_rule(
    implementation = _googleapis,
    environ = ["ISTHMUS_VENV"],
    local = True,
)
