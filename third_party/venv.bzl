"""Python with the packages of the environment that ./dev setup makes, for tests that need them."""

def _venv(ctx):
    python = ctx.os.environ.get("ISTHMUS_VENV", "") + "/bin/python"
    if not ctx.path(python).exists:
        fail("the Python environment is not found (%s): run ./dev setup" % python)

    # Python finds its environment by the path it is started with, which a link would hide.
    ctx.file("python", "#!/bin/sh\nexec %s \"$@\"\n" % python, executable = True)
    ctx.file("BUILD", 'exports_files(["python"])\n')

venv_repository = repository_rule(
    implementation = _venv,
    environ = ["ISTHMUS_VENV"],
    local = True,
)
