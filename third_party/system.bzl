"""Libraries that Debian installs.

Their headers lie in /usr/include, where the compiler finds them by itself. Depending on a target
here links the library and lets `./dev lint` see who reaches what.
"""

def _debian_repository(ctx):
    ctx.symlink(ctx.attr.build_file, "BUILD")

debian_repository = repository_rule(
    implementation = _debian_repository,
    attrs = {"build_file": attr.label(mandatory = True)},
    local = True,
)

def debian_repositories(names):
    """Makes the repository @NAME from third_party/NAME.BUILD for each name."""
    for name in names:
        debian_repository(
            name = name,
            build_file = "//third_party:%s.BUILD" % name,
        )

def system_library(name, libs = [], as_needed = True, **kwargs):
    """A cc_library that has nothing but the names to link with.

    Args:
      name: name of the target.
      libs: linker options such as "-lz".
      as_needed: whether the linker may leave out what the program does not use.
      **kwargs: passed to cc_library.
    """
    linkopts = []
    if libs:
        mode = "-Wl,--push-state,--%sas-needed" % ("" if as_needed else "no-")
        linkopts = [mode] + libs + ["-Wl,--pop-state", "-pthread"]
    native.cc_library(
        name = name,
        linkopts = linkopts,
        visibility = ["//visibility:public"],
        **kwargs
    )
