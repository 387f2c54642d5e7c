"""Reads text and JSONL as pieces of documents, in bounded memory, for prepare_data.py."""

import json
from dataclasses import dataclass

# A longer document is cut at the end of a line and its parts are tokenized one by one: a tokenizer
# needs some hundred bytes of memory for each byte of its text.
BLOCK_BYTES = 1 << 17
# One line is one document, which must fit into memory.
LINE_BYTES_MAX = 64 << 20
# What goes to the tokenizer at once, so that all processors have work.
BATCH_BYTES = 2 << 20
BATCH_PIECES = 4096
JSONL_SUFFIXES = {".jsonl", ".ndjson"}
# First bytes of files that are packed: as text they would be noise.
PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
}


class DataError(Exception):
    """A sentence that names the file, the line and the field."""


@dataclass
class Piece:
    """Bytes of one document, and where they go."""

    text: bytes
    to_val: bool
    ends_document: bool
    place: str  # for errors
    offset: int = 0  # of the text behind the place


class Split:
    """Which documents are for validation; a pure function of their order."""

    def __init__(self, fraction, every):
        self.fraction = fraction
        self.every = every
        self.count = 0

    def next_is_val(self):
        """Whether the next document is for validation."""
        number = self.count
        self.count += 1
        if self.every:
            return number % self.every == self.every - 1
        return int((number + 1) * self.fraction) > int(number * self.fraction)


def _cut(block):
    """How much of a block to take, so that a rest follows that begins a line or a character."""
    # Blank lines stay with the text before them: some tokenizers join their line ends.
    end = block.rfind(b"\n", 0, len(block.rstrip(b"\n"))) + 1
    if end > len(block) // 2:
        return end
    end = len(block)
    while end > len(block) - 3 and block[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - 1 if block[end - 1] >= 0xC0 else len(block)


def _document(text, to_val, place):
    """The pieces of one document."""
    begin = 0
    while len(text) - begin > BLOCK_BYTES:
        size = _cut(text[begin : begin + BLOCK_BYTES])
        yield Piece(text[begin : begin + size], to_val, False, place, begin)
        begin += size
    yield Piece(text[begin:], to_val, True, place, begin)


def _stretch(file, path, begin, end, to_val):
    """The pieces of bytes [begin, end) of a file."""
    file.seek(begin)
    rest = b""
    while begin < end:
        block = rest + file.read(min(BLOCK_BYTES, end - begin - len(rest)))
        is_last = begin + len(block) >= end
        if not is_last and len(block) == len(rest):
            raise DataError(f"{path} has become shorter while it was read")
        size = len(block) if is_last else _cut(block)
        yield Piece(block[:size], to_val, is_last, str(path), begin)
        rest = block[size:]
        begin += size


def _border(file, size, fraction):
    """Where the last share of a file begins: at a line, else at a word, else at a character."""
    share = int(size * fraction)
    if share == 0:
        return size
    before = size - share - 1  # a border that lies well already stays
    file.seek(before)
    text = file.read(min(BLOCK_BYTES, share + 1))
    for mark in (b"\n", b" "):
        begin = text.find(mark) + 1
        if 0 < begin < len(text):
            return before + begin
    begin = 1
    while begin < len(text) and text[begin] & 0xC0 == 0x80:
        begin += 1
    return before + begin


def file_pieces(path, split):
    """A file as one document; its last share is for validation."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        border = size
        if split.every:
            border = 0 if split.next_is_val() else size
        elif split.fraction:
            border = _border(file, size, split.fraction)
        yield from _stretch(file, path, 0, border, False)
        yield from _stretch(file, path, border, size, True)


def _lines(path):
    """The numbered lines of a file, with their ends."""
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise DataError(
                    f"{path}:{number}: the line has more than {LINE_BYTES_MAX} bytes; "
                    "one line is one document and must fit into memory"
                )
            yield number, line


def line_pieces(path, split):
    """Each line of text that is not blank is a document."""
    for number, line in _lines(path):
        text = line.rstrip(b"\r\n")
        if text.strip():
            yield from _document(text, split.next_is_val(), f"{path}:{number}")


def paragraph_pieces(path, split):
    """Documents are divided by blank lines."""
    begun, parts, size = 0, [], 0
    for number, line in _lines(path):
        if line.strip():
            begun = begun or number
            parts.append(line)
            size += len(line)
            if size > LINE_BYTES_MAX:
                raise DataError(f"{path}:{begun}: the paragraph has over {LINE_BYTES_MAX} bytes")
        elif parts:
            yield from _document(b"".join(parts), split.next_is_val(), f"{path}:{begun}")
            begun, parts, size = 0, [], 0
    if parts:
        yield from _document(b"".join(parts), split.next_is_val(), f"{path}:{begun}")


def jsonl_pieces(path, split, field):
    """Each line is a JSON object whose `field` is a document."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: byte {error.start} is not UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{place}: it is a {type(record).__name__}, not an object")
        if field not in record:
            known = ", ".join(list(record)[:8]) or "none"
            raise DataError(f"{place}: there is no field '{field}'; it has {known} (see --field)")
        text = record[field]
        if not isinstance(text, str):
            raise DataError(f"{place}: field '{field}' is a {type(text).__name__}, not a string")
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: field '{field}' has half a surrogate pair") from error
        yield from _document(encoded, split.next_is_val(), place)


def _is_jsonl(path, kind):
    return kind == "jsonl" or (kind == "auto" and path.suffix.lower() in JSONL_SUFFIXES)


def check_inputs(paths, kind="auto"):
    """Refuses what cannot be meant, before anything is written."""
    seen = {}
    for path in paths:
        if not path.is_file():
            there = "it is not a regular file" if path.exists() else "there is no such file"
            raise DataError(f"{path}: {there}")
        earlier = seen.setdefault(path.resolve(), path)
        if earlier is not path:
            raise DataError(f"{path} is the same file as {earlier}; name it once")
        if kind == "auto" and path.suffix.lower() == ".json":
            raise DataError(
                f"{path}: .json may be one object or one a line; say --kind jsonl for the "
                "latter, --kind text to take it as it is"
            )
        with open(path, "rb") as file:
            begin = file.read(8)
        for mark, name in PACKED.items():
            if kind != "text" and begin.startswith(mark):
                raise DataError(f"{path} is packed ({name}); unpack it first")


def all_pieces(paths, split, kind="auto", documents="file", field="text"):
    """The pieces of all files, in order. Options as those of prepare_data.py."""
    readers = {"file": file_pieces, "line": line_pieces, "paragraph": paragraph_pieces}
    for path in paths:
        if _is_jsonl(path, kind):
            yield from jsonl_pieces(path, split, field)
        else:
            yield from readers[documents](path, split)


def batches(pieces):
    """Lists of pieces, each of at most BATCH_PIECES and about BATCH_BYTES."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
