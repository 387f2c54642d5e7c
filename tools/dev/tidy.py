"""House rules that no other tool checks. Reads file names, one a line, from standard input.

Each finding is one line: file:line: what is wrong and what to do. The exit code is 1 when there
is any. A line that must break a rule says why in a comment that begins with `tidy-allow:`.
"""

import ast
import pathlib
import re
import sys

LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100

CODE_SUFFIXES = {".bzl", ".cc", ".cu", ".h", ".proto", ".py", ".sh"}
CODE_NAMES = {"BUILD", "WORKSPACE", "dev", "run"}
CPP_SUFFIXES = {".cc", ".cu", ".h"}

# Folders from low to high; server and worker stand beside each other. A folder may include its
# own files and those of the folders listed for it.
INCLUDABLE = {
    "base": set(),
    "kernels": {"base"},
    "spec": {"base", "kernels"},
    "transport": {"base", "kernels", "spec"},
    "server": {"base", "kernels", "spec", "transport"},
    "worker": {"base", "kernels", "spec", "transport"},
}
NO_GRPC = {"base", "kernels", "spec"}
NO_TORCH = {"base", "kernels", "spec", "transport", "server"}

GRPC_INCLUDE = re.compile(r'#include ["<](grpc/|grpc\+\+/|grpcpp/|[^">]*\.grpc\.pb\.h)')
TORCH_INCLUDE = re.compile(r'#include ["<](torch/|ATen/|c10/)')
OWN_INCLUDE = re.compile(r'#include "([a-z_]+)/')
SLEEP = re.compile(r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(|^\s*sleep\s")
# Written in two halves so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)/\w")
NOT_A_FUNCTION = re.compile(r"(namespace|class|struct|enum|union|extern|using|typedef)\b")
TYPE_BODY = re.compile(r"(template\b.*>\s*)?(class|struct|union)\b")


class Report:
    """Collects findings and prints them in the form that editors follow."""

    def __init__(self):
        self.count = 0

    def add(self, path, line, text):
        self.count += 1
        print(f"{path}:{line}: {text}")


def is_code(path):
    return path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES


def check_lines(path, lines, report):
    """Columns, tabs, spaces at the end of a line, length of the file."""
    if len(lines) > LINES_MAX:
        report.add(
            path, LINES_MAX + 1, f"{len(lines)} lines, more than {LINES_MAX}: split the file"
        )
    for number, line in enumerate(lines, 1):
        if "tidy-allow:" in line:
            continue
        if len(line) > COLUMNS_MAX:
            report.add(
                path, number, f"{len(line)} columns, more than {COLUMNS_MAX}: break the line"
            )
        if "\t" in line:
            report.add(path, number, "tab: indent with spaces")
        if line != line.rstrip():
            report.add(path, number, "space at the end of the line: remove it")


def check_machine_paths(path, lines, report):
    for number, line in enumerate(lines, 1):
        match = MACHINE_PATH.search(line)
        if match and "tidy-allow:" not in line:
            report.add(path, number, f"path of one machine ({match.group()}…): make it a setting")


def check_includes(path, lines, report):
    """Which folders, and which of gRPC and LibTorch, a C++ file may include."""
    folder = path.parts[0]
    first = {}
    for number, line in enumerate(lines, 1):
        if GRPC_INCLUDE.match(line):
            first.setdefault("gRPC", number)
        if TORCH_INCLUDE.match(line):
            first.setdefault("torch", number)
        own = OWN_INCLUDE.match(line)
        if own and folder in INCLUDABLE and own.group(1) in INCLUDABLE:
            if own.group(1) != folder and own.group(1) not in INCLUDABLE[folder]:
                report.add(
                    path,
                    number,
                    f"{folder} must not include {own.group(1)}: see the layers in docs/hacking.md",
                )
    if "gRPC" in first and "torch" in first:
        report.add(
            path, first["torch"], "torch and gRPC headers in one file: put one behind a header"
        )
    if "gRPC" in first and folder in NO_GRPC:
        report.add(path, first["gRPC"], f"{folder} reaches no gRPC: move the code to transport")
    if "torch" in first and folder in NO_TORCH:
        report.add(path, first["torch"], f"{folder} reaches no torch: move the code to worker")


def check_cpp_functions(path, lines, report, start=0, end=None, indent=0):
    """Length of functions, found by indentation: clang-format has put each in a known place.

    A function begins at a line with exactly `indent` spaces and ends at the next `}` in the same
    column. Bodies of classes are searched again two columns further in.
    """
    end = len(lines) if end is None else end
    prefix = " " * indent
    number = start
    while number < end:
        line = lines[number]
        if not line.startswith(prefix) or line[indent : indent + 1] in ("", " ", "}", "#", "/"):
            number += 1
            continue
        head_end = number
        while head_end < end and not lines[head_end].endswith(("{", ";", ":", "}", ")")):
            head_end += 1
        while head_end < end and not lines[head_end].endswith(("{", ";", "}")):
            head_end += 1
        if head_end >= end or not lines[head_end].endswith("{"):
            number = head_end + 1
            continue
        head = " ".join(part.strip() for part in lines[number : head_end + 1])
        if head.startswith("namespace") or head.startswith("extern"):
            number = head_end + 1
            continue
        close = head_end + 1
        while close < end and not re.match(prefix + r"\}", lines[close]):
            close += 1
        if TYPE_BODY.match(head):
            check_cpp_functions(path, lines, report, head_end + 1, close, indent + 2)
        elif "(" in head and not NOT_A_FUNCTION.match(head):
            length = close - number + 1
            if length > FUNCTION_LINES_MAX:
                report.add(path, number + 1, too_long(length))
        number = close + 1


def check_python_functions(path, text, report):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                report.add(path, node.lineno, too_long(length))


def check_shell_functions(path, lines, report):
    start = None
    for number, line in enumerate(lines, 1):
        if re.match(r"\w+\(\) \{$", line):
            start = number
        elif line == "}" and start is not None:
            if number - start + 1 > FUNCTION_LINES_MAX:
                report.add(path, start, too_long(number - start + 1))
            start = None


def too_long(length):
    return f"function of {length} lines, more than {FUNCTION_LINES_MAX}: take a step out of it"


def check_sleeps(path, lines, report):
    for number, line in enumerate(lines, 1):
        if SLEEP.search(line) and "tidy-allow:" not in line:
            report.add(path, number, "fixed sleep in a test: wait for the condition instead")


def check_built(path, report):
    """A test that no BUILD file names never runs."""
    build = path.parent / "BUILD"
    if not build.exists():
        report.add(path, 1, f"no BUILD file in {path.parent}: add one with a test rule")
        return
    text = build.read_text(encoding="utf-8")
    if not any(word in text for word in (f'"{path.name}"', f'"{path.stem}"', "glob(")):
        report.add(path, 1, f"{build} does not name this file: add it to a test rule")


def check_file(path, report):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # Binary test data.
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif is_code(path):
        report.add(path, len(lines), "no line break at the end of the file: add one")
    check_machine_paths(path, lines, report)
    if not is_code(path):
        return
    check_lines(path, lines, report)
    if path.suffix in CPP_SUFFIXES:
        check_includes(path, lines, report)
        check_cpp_functions(path, lines, report)
    elif path.suffix == ".py":
        check_python_functions(path, text, report)
    elif path.suffix == ".sh" or path.name == "dev":
        check_shell_functions(path, lines, report)
    if path.parts[0] == "tests":
        check_sleeps(path, lines, report)
        if path.suffix in (".cc", ".h"):
            check_built(path, report)


def main():
    report = Report()
    for name in sys.stdin.read().splitlines():
        check_file(pathlib.Path(name), report)
    return 1 if report.count else 0


if __name__ == "__main__":
    sys.exit(main())
