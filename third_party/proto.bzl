"""C++ from .proto files with Debian's protoc and gRPC plugin.

One .proto file makes up to two libraries, so that a target can use the messages without reaching
gRPC:
  cc_proto(name = "x", …)  makes :x_cc_proto, the messages
  cc_grpc(name = "x", …)   makes :x_cc_grpc, the services, and exports :x_cc_proto

A file is imported by its path below the import root, which lies `package_depth` folders above the
BUILD file: 2 for proto/isthmus/v1/BUILD, whose files are imported as "isthmus/v1/x.proto".
"""

# Generated code keeps to its own idea of style; warnings in it are not ours to mend.
_COPTS = ["-w"]

def _root_parts(package_depth):
    parts = native.package_name().split("/") if native.package_name() else []
    return parts[:len(parts) - package_depth]

def _import_root(package_depth):
    parts = _root_parts(package_depth)
    repository = native.repository_name()[1:]
    if repository:
        parts = ["external", repository] + parts
    return "/".join(parts) or "."

def _compile(name, src, deps, package_depth, output, extension):
    """Runs protoc and compiles what it wrote."""
    stem = src[:-len(".proto")] + extension
    root = _import_root(package_depth)
    native.genrule(
        name = name + "_generate",
        srcs = [src] + [dep + "_proto_files" for dep in deps],
        outs = [stem + ".h", stem + ".cc"],
        cmd = "protoc -I%s %s=$(BINDIR)/%s $(location %s)" % (root, output, root, src),
    )
    return stem

def cc_proto(name, src, deps = [], package_depth = 0):
    """Makes :NAME_cc_proto, the messages of one .proto file.

    Args:
      name: stem of the targets' names.
      src: the .proto file.
      deps: the cc_proto rules of the files that it imports, as labels without a suffix.
      package_depth: folders from the import root to the BUILD file.
    """
    native.filegroup(
        name = name + "_proto_files",
        srcs = [src] + [dep + "_proto_files" for dep in deps],
        visibility = ["//visibility:public"],
    )
    stem = _compile(name + "_cc_proto", src, deps, package_depth, "--cpp_out", ".pb")
    native.cc_library(
        name = name + "_cc_proto",
        srcs = [stem + ".cc"],
        hdrs = [stem + ".h"],
        copts = _COPTS,
        strip_include_prefix = "/" + "/".join(_root_parts(package_depth)),
        visibility = ["//visibility:public"],
        deps = [dep + "_cc_proto" for dep in deps] + ["@protobuf"],
    )

def cc_grpc(name, src, deps = [], package_depth = 0):
    """Makes :NAME_cc_grpc, the services of one .proto file.

    Args:
      name: the name that the file's cc_proto rule has.
      src: as for cc_proto.
      deps: as for cc_proto.
      package_depth: as for cc_proto.
    """
    output = "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out"
    stem = _compile(name + "_cc_grpc", src, deps, package_depth, output, ".grpc.pb")
    native.cc_library(
        name = name + "_cc_grpc",
        srcs = [stem + ".cc"],
        hdrs = [stem + ".h"],
        copts = _COPTS,
        strip_include_prefix = "/" + "/".join(_root_parts(package_depth)),
        visibility = ["//visibility:public"],
        deps = [":" + name + "_cc_proto", "@grpc//:grpc++"],
    )
