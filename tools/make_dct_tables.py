"""Writes the constants of the DCT tables: kernels/dct_tables_*.inc.

Run from the root of the project; needs nothing but Python:

    python3 tools/make_dct_tables.py

For each side n the distinct magnitudes of the orthonormal DCT-II basis are sqrt(1/n) and
sqrt(2/n) * cos(pi * t / (2n)) for t = 0 .. n-1. They are computed with 50 digits and rounded once
to float32, and written as bit patterns, so that no compiler's or library's cosine takes part.
"""

import decimal
import struct
import sys

DIGITS = 50
# Constants of sides [first, last] go to one file each, so that none is too long to look at.
FILES = [(1, 64), (65, 96), (97, 128)]
PER_LINE = 8

D = decimal.Decimal


def pi():
    """Machin: pi = 16 atan(1/5) - 4 atan(1/239)."""

    def atan_inverse(x):
        term = total = D(1) / x
        n = 1
        while abs(term) > D(10) ** -(DIGITS + 5):
            term = -term / (x * x)
            n += 2
            total += term / n
        return total

    return 16 * atan_inverse(5) - 4 * atan_inverse(239)


def cosine(x):
    """Taylor series; 0 <= x < pi/2 keeps the terms small."""
    term = total = D(1)
    n = 0
    while abs(term) > D(10) ** -(DIGITS + 5):
        n += 2
        term = -term * x * x / (n * (n - 1))
        total += term
    return total


def float32_bits(value):
    """The bits of the float32 nearest to a positive Decimal (ties to even)."""
    exponent = 0
    while value >= 2:
        value /= 2
        exponent += 1
    while value < 1:
        value *= 2
        exponent -= 1
    significand = int((value * 2**23).to_integral_value(rounding=decimal.ROUND_HALF_EVEN))
    # Exact: 24 bits fit a double, and packing it as float32 loses nothing.
    return struct.unpack("<I", struct.pack("<f", significand * 2.0 ** (exponent - 23)))[0]


def lines_of(bits):
    for i in range(0, len(bits), PER_LINE):
        yield "    " + " ".join(f"0x{b:08x}," for b in bits[i : i + PER_LINE])


def write(path, comment, lines):
    with open(path, "w", encoding="ascii") as file:
        file.write("// Written by tools/make_dct_tables.py; do not edit.\n")
        file.write(f"// {comment}\n")
        file.write("// clang-format off\n")
        for line in lines:
            file.write(line + "\n")
        file.write("// clang-format on\n")


def main():
    decimal.getcontext().prec = DIGITS + 15
    the_pi = pi()
    sides = range(1, FILES[-1][1] + 1)
    write(
        "kernels/dct_tables_constant.inc",
        "Bits of float32 sqrt(1/n) for n = 1 .. 128.",
        lines_of([float32_bits((D(1) / n).sqrt()) for n in sides]),
    )
    for first, last in FILES:
        lines = []
        for n in range(first, last + 1):
            scale = (D(2) / n).sqrt()
            lines += lines_of(
                [float32_bits(scale * cosine(the_pi * t / (2 * n))) for t in range(n)]
            )
        write(
            f"kernels/dct_tables_{first}_{last}.inc",
            f"Bits of float32 sqrt(2/n) * cos(pi*t/(2n)), t = 0 .. n-1, for n = {first} .. {last}.",
            lines,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
