"""Turns text or JSONL into train.bin and val.bin, files of tokens that the trainer reads.

    python3 tools/prepare_data.py --tokenizer tokenizer.json --separator '<|endoftext|>' \\
        --out DIR FILE.jsonl…

The files hold nothing but tokens, little endian, as nanoGPT has them: uint16 where the vocabulary
fits, else uint32; bytes where no tokenizer is given. With --format llmc they begin with the header
of llm.c (256 int32: 20240520, 1, count for uint16; 20240801, 7, count for uint32; the rest is 0).
meta.json says what they hold. The same inputs and options give the same bytes, whatever the
machine. Memory is bounded: inputs are read in blocks and written as they come.

Documents: a line of JSONL; of text the whole file, or each line or paragraph with --documents.
The part for validation is the end of each file where a file is a document, else evenly spaced
documents, or every Nth with --val_every.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import sys
import time
from array import array
from fractions import Fraction
from pathlib import Path

from documents import DataError, Split, all_pieces, batches, check_inputs

LLMC_HEADER_INTS = 256
LLMC_KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
LLMC_TOKENS_MAX = 2**31 - 1  # its count is an int32
DTYPES = {"uint8": "B", "uint16": "H", "uint32": "I"}
VAL_FRACTION = "0.01"
PROGRESS_S = {True: 0.5, False: 10.0}  # on a terminal, elsewhere


def part_of(path):
    """Where a file grows until it is whole."""
    return path.with_name(path.name + ".part")


class TokenFile:
    """A file of tokens that gets its name when it is whole."""

    def __init__(self, path, dtype, llmc):
        self.path = path
        self.dtype = dtype
        self.llmc = llmc
        self.tokens = 0
        self.documents = 0
        self._part = part_of(path)
        self._file = open(self._part, "wb")
        if llmc:
            self._file.write(bytes(4 * LLMC_HEADER_INTS))

    def add(self, ids):
        """Appends tokens: bytes or a list of numbers that fit the type."""
        self.tokens += len(ids)
        if self.llmc and self.tokens > LLMC_TOKENS_MAX:
            raise DataError(
                f"{self.path.name} would have more than {LLMC_TOKENS_MAX} tokens, the most that a "
                "header of llm.c can count; split the input over several runs, or use nanogpt"
            )
        if self.dtype == "uint8":
            self._file.write(ids)
            return
        values = array(DTYPES[self.dtype], list(ids))
        if sys.byteorder == "big":
            values.byteswap()
        self._file.write(values.tobytes())

    def close(self):
        """Writes the header, if there is one; all bytes are on disk afterwards."""
        if self.llmc:
            header = array("i", [*LLMC_KINDS[self.dtype], self.tokens])
            if sys.byteorder == "big":
                header.byteswap()
            self._file.seek(0)
            self._file.write(header.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self):
        """Gives the file its name; an older one without tokens to take its place goes."""
        if self.tokens:
            os.replace(self._part, self.path)
        else:  # no part for validation was asked for
            self._part.unlink()
            self.path.unlink(missing_ok=True)

    def discard(self):
        """Gives the file up."""
        with contextlib.suppress(OSError):  # what is still to be written need not be
            self._file.close()


class Bytes:
    """A byte is a token."""

    vocab_size = 256
    sha256 = None

    def encode(self, pieces):
        """The tokens of each piece."""
        return [piece.text for piece in pieces]

    def separator(self, text):
        """The tokens that end a document."""
        return text.encode()


class HuggingFace:
    """A tokenizer.json of the library tokenizers, without the special tokens it may add."""

    def __init__(self, path):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise DataError(
                f"--tokenizer needs the Python package tokenizers ({error}); it is in the "
                "environment that ./dev setup makes, or pip install tokenizers"
            ) from error
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"--tokenizer {path}: {error.strerror}") from error
        try:
            self._tokenizer = Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"--tokenizer {path} is no tokenizer.json of Hugging Face: {error}"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._path = path
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(True).values(), default=-1)
        if self.vocab_size < 1:
            raise DataError(f"--tokenizer {path}: its vocabulary is empty")

    def encode(self, pieces):
        """The tokens of each piece."""
        texts = [_decode(piece) for piece in pieces]
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"--tokenizer {self._path} cannot encode the text from {pieces[0].place} to "
                f"{pieces[-1].place}: {error}"
            ) from error
        return [encoding.ids for encoding in encodings]

    def separator(self, text):
        """The token that ends a document."""
        token = self._tokenizer.token_to_id(text)
        if token is None:
            raise DataError(f"--separator '{text}' is no token of {self._path}")
        return [token]


def _decode(piece):
    try:
        return piece.text.decode()
    except UnicodeDecodeError as error:
        at = piece.offset + error.start
        raise DataError(
            f"{piece.place}: byte {at} ({piece.text[error.start]:#04x}) is not UTF-8"
        ) from error


class Progress:
    """How far it is, on standard error."""

    def __init__(self, total_bytes):
        self.total = max(1, total_bytes)
        self.done = 0
        self.live = sys.stderr.isatty()
        self.begun = self.said = time.monotonic()

    def add(self, size, tokens):
        """Counts and says it from time to time."""
        self.done += size
        now = time.monotonic()
        if now - self.said >= PROGRESS_S[self.live]:
            self.said = now
            rate = self.done / 1e6 / (now - self.begun)
            text = f"{self.done / 1e6:.1f} MB of text of {self.total / 1e6:.1f} MB of files, "
            text += f"{tokens / 1e6:.2f} M tokens, {rate:.1f} MB/s"
            print(f"\r{text}\x1b[K" if self.live else text, file=sys.stderr, flush=True)
            if self.live:
                sys.stderr.write("\x1b[A")

    def seconds(self):
        """Since the begin."""
        return time.monotonic() - self.begun


def convert(arguments, encoder, train, val, progress):
    """Reads, tokenizes and writes everything."""
    separator = encoder.separator(arguments.separator) if arguments.separator else []
    split = Split(arguments.val_fraction, arguments.val_every)
    pieces = all_pieces(
        arguments.inputs, split, arguments.kind, arguments.documents, arguments.field
    )
    for batch in batches(pieces):
        for piece, ids in zip(batch, encoder.encode(batch), strict=True):
            target = val if piece.to_val else train
            target.add(ids)
            if piece.ends_document:
                target.documents += 1
                if separator:
                    target.add(separator)
        progress.add(sum(len(piece.text) for piece in batch), train.tokens + val.tokens)


def check_parts(train, val, wants_val):
    """Refuses a part that is empty though it was asked for."""
    if train.tokens == 0:
        raise DataError("there is nothing to train on: no input has any text for train.bin")
    if wants_val and val.tokens == 0:
        raise DataError(
            "there is nothing for val.bin: too few documents (or lines) for the share asked for; "
            "raise --val_fraction, lower --val_every, or say --val_fraction 0"
        )


def meta_of(arguments, encoder, dtype, train, val):
    """What the files hold, for meta.json."""
    return {
        "format": arguments.format,
        "dtype": dtype,
        "vocab_size": encoder.vocab_size,
        "tokenizer": arguments.tokenizer.name if arguments.tokenizer else "bytes",
        "tokenizer_sha256": encoder.sha256,
        "separator": arguments.separator or None,
        "train_tokens": train.tokens,
        "val_tokens": val.tokens,
        "train_documents": train.documents,
        "val_documents": val.documents,
        "val_fraction": None if arguments.val_every else str(arguments.val_fraction),
        "val_every": arguments.val_every or None,
        "inputs": [path.name for path in arguments.inputs],
    }


def token_type(arguments, encoder):
    """The narrowest type that the reader of the format knows."""
    if isinstance(encoder, Bytes) and arguments.format == "nanogpt":
        return "uint8"
    return "uint16" if encoder.vocab_size <= 1 << 16 else "uint32"


def prepare(arguments):
    """Does it all; returns the meta data. Nothing is left behind on an error."""
    check_inputs(arguments.inputs, arguments.kind)
    encoder = HuggingFace(arguments.tokenizer) if arguments.tokenizer else Bytes()
    dtype = token_type(arguments, encoder)
    arguments.out.mkdir(parents=True, exist_ok=True)
    paths = [arguments.out / name for name in ("train.bin", "val.bin", "meta.json")]
    for path in paths:
        if path.exists() and not arguments.overwrite:
            raise DataError(f"{path} exists; say --overwrite or another --out")
    files = []
    meta_part = part_of(paths[2])
    try:
        for path in paths[:2]:
            files.append(TokenFile(path, dtype, arguments.format == "llmc"))
        progress = Progress(sum(path.stat().st_size for path in arguments.inputs))
        convert(arguments, encoder, *files, progress)
        check_parts(*files, bool(arguments.val_every or arguments.val_fraction))
        for file in files:
            file.close()
        meta = meta_of(arguments, encoder, dtype, *files)
        meta_part.write_text(json.dumps(meta, indent=2) + "\n")
    except BaseException as error:
        for file in files:
            file.discard()
        for path in paths:  # a signal may have come before a file was in the list
            part_of(path).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise DataError(f"{arguments.out}: {error.strerror}") from error
        raise
    # All is on disk: from here on only names change.
    for file in files:
        file.publish()
    os.replace(meta_part, paths[2])
    return meta, progress.seconds()


def parse(argv):
    """The command line."""
    parser = argparse.ArgumentParser(prog="prepare_data.py", description=__doc__.split("\n", 1)[0])
    parser.add_argument("inputs", nargs="+", type=Path, metavar="FILE", help="in this order")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; without it: bytes")
    parser.add_argument("--kind", choices=("auto", "text", "jsonl"), default="auto")
    parser.add_argument("--field", default="text", help="of JSONL (default %(default)s)")
    parser.add_argument("--documents", choices=("file", "line", "paragraph"), default="file")
    parser.add_argument("--separator", default="", help="token (or text) after each document")
    parser.add_argument("--format", choices=("nanogpt", "llmc"), default="nanogpt")
    parser.add_argument(
        "--val_fraction", help=f"share for val.bin, 0 for none (default {VAL_FRACTION})"
    )
    parser.add_argument("--val_every", type=int, default=0, help="every Nth document, instead")
    parser.add_argument("--overwrite", action="store_true", help="replace results that exist")
    arguments = parser.parse_args(argv)
    if arguments.val_every and arguments.val_fraction is not None:
        parser.error("--val_every and --val_fraction are two ways to say the same; give one")
    given = arguments.val_fraction is not None
    fraction = arguments.val_fraction if given else VAL_FRACTION
    # A plain decimal: an exponent could ask for a number that no memory holds.
    if not re.fullmatch(r"[01]?\.?[0-9]{1,18}", fraction) or Fraction(fraction) >= 1:
        parser.error(f"--val_fraction is '{fraction}'; give a number like 0.01, below 1")
    arguments.val_fraction = Fraction(fraction)
    if arguments.val_every < 0 or arguments.val_every == 1:
        parser.error("--val_every is 2 or more")
    return arguments


def main(argv=None):
    arguments = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        meta, seconds = prepare(arguments)
    except (DataError, OSError) as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    for part in ("train", "val"):
        if meta[f"{part}_tokens"]:
            print(
                f"{arguments.out / part}.bin: {meta[f'{part}_tokens']} tokens of "
                f"{meta[f'{part}_documents']} documents, {meta['dtype']}"
            )
    print(f"vocabulary of {meta['vocab_size']}; meta.json says the rest ({seconds:.1f} s)")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
