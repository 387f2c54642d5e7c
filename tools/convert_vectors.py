"""Converts a folder of recorded vectors (*.npz, *.json) into one file that C++ reads.

    convert_vectors.py DIR OUT

The form of OUT, all numbers little endian:

    isthmus-vectors 1
    array NAME TYPE SIZE...     one line an array; TYPE is f4, i4, i8 or u1; no SIZE: a scalar
    end
    the elements of all arrays in the same order, row-major, without gaps

NAME is FILE/ARRAY for an array of FILE.npz. FILE.json becomes an array of bytes named FILE.json.

A folder of outer updates has a FILE.json for each family, with all arrays in it:

    {"family": F, "cases": [{"name": C, "hyper": {…}, "inputs": {A: {"dtype", "shape", "data"}, …},
                             "f64": {…}, "f32": {…}}, …]}

Of it come the arrays F/C/inputs/A (rounded to float32, as for the float32 run) and F/C/f32/A, and
FILE.json without them. The run in float64 is left out, and so are the same arrays in
outer_vectors.npz.
"""

import argparse
import json
import pathlib
import sys

import numpy

# Types as they are recorded; float64 would be a recording in another precision.
TYPES = {"float32": "f4", "int32": "i4", "int64": "i8", "uint8": "u1", "bool": "u1"}
# Of a family's arrays, and what they become.
FAMILY_TYPES = {
    "float64": "float32",
    "float32": "float32",
    "int8": "int32",
    "int32": "int32",
    "uint8": "uint8",
}


def family_array(name, recorded):
    """An array of a family's JSON."""
    kind = FAMILY_TYPES.get(recorded["dtype"])
    if kind is None:
        raise ValueError(f"{name} has type {recorded['dtype']}")
    exact = numpy.array(recorded["data"], dtype=recorded["dtype"])
    return exact.astype(kind).reshape(recorded["shape"])


def arrays_of_family(file_name, recorded):
    """Yields (name, array) of one family of outer updates."""
    family = recorded["family"]
    for case in recorded["cases"]:
        for part in ("inputs", "f32"):
            for array in case[part]:
                name = f"{family}/{case['name']}/{part}/{array}"
                yield name, family_array(name, case[part][array])
    cases = [{"name": case["name"], "hyper": case["hyper"]} for case in recorded["cases"]]
    text = json.dumps({"family": family, "cases": cases}).encode()
    yield file_name, numpy.frombuffer(text, dtype=numpy.uint8)


def is_family(recorded):
    return isinstance(recorded, dict) and "family" in recorded and "cases" in recorded


def holds_family(path):
    try:
        return path.suffix == ".json" and is_family(json.loads(path.read_bytes()))
    except ValueError:
        return False  # it is named where it is converted


def arrays_of(folder):
    """Yields (name, array) of all files, in the order of their names."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".npz", ".json"))
    if not files:
        raise ValueError(f"{folder} holds no .npz and no .json file")
    families = any(holds_family(path) for path in files)
    for path in files:
        try:
            if path.suffix == ".json":
                text = path.read_bytes()
                recorded = json.loads(text)
                if is_family(recorded):
                    yield from arrays_of_family(path.name, recorded)
                else:
                    yield path.name, numpy.frombuffer(text, dtype=numpy.uint8)
                continue
            if families and path.name == "outer_vectors.npz":
                continue
            with numpy.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    yield f"{path.stem}/{name}", archive[name]
        except Exception as error:
            raise ValueError(f"{path}: {error}") from error


def convert(folder, out):
    header = ["isthmus-vectors 1"]
    data = []
    for name, array in arrays_of(folder):
        kind = TYPES.get(array.dtype.name)
        if kind is None:
            known = ", ".join(TYPES)
            raise ValueError(f"{name} has type {array.dtype.name}; known types are {known}")
        if any(c.isspace() for c in name):
            raise ValueError(f"the name '{name}' holds white space")
        header.append(" ".join(["array", name, kind, *map(str, array.shape)]))
        little = array.astype(f"<{kind}")
        data.append(little.tobytes(order="C"))
    header.append("end\n")
    out.write_bytes("\n".join(header).encode() + b"".join(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    try:
        convert(options.folder, options.out)
    except (OSError, ValueError) as error:
        print(f"convert_vectors: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
