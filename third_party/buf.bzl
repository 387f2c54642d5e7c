"""The program buf, from the Python environment of ./dev setup: tests call services with it."""

def _buf(ctx):
    program = ctx.os.environ.get("ISTHMUS_VENV", "") + "/bin/buf"
    if not ctx.path(program).exists:
        fail("buf not found (%s): run ./dev setup" % program)
    ctx.symlink(program, "buf")
    ctx.file("BUILD", 'exports_files(["buf"])\n')

buf_repository = repository_rule(
    implementation = _buf,
    environ = ["ISTHMUS_VENV"],
    local = True,
)
