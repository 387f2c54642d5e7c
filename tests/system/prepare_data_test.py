"""tools/prepare_data.py: what it writes for a tiny tokenizer and for bytes, and what it refuses."""

import functools
import gzip
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import unittest
from array import array
from fractions import Fraction
from pathlib import Path

import documents
import prepare_data
from documents import Piece, Split, all_pieces
from xml_report import main

END = "<|end|>"


def read_tokens(path, typecode, skip=0):
    """The tokens of a file as numbers."""
    return list(array(typecode, Path(path).read_bytes()[skip:]))


class PrepareData(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="isthmus-test-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.out = self.folder / "out"

    def write(self, name, content):
        """A file of this test."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def word_tokenizer(self, words, size=0):
        """A tokenizer.json that knows these words, with the end token and `size` ids in all."""
        vocab = {word: number for number, word in enumerate(["?", *words])}
        end = max(len(vocab), size - 1)
        added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        content = {
            "version": "1.0",
            "truncation": {
                "max_length": 2,
                "strategy": "LongestFirst",
                "stride": 0,
                "direction": "Right",
            },
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {**vocab, END: end}, "unk_token": "?"},
        }
        content["added_tokens"] = [{"id": end, "content": END, "special": True, **added}]
        return self.write("tokenizer.json", json.dumps(content)), {**vocab, END: end}

    def run_tool(self, *arguments, code=0):
        """Runs it on its own; returns what it said."""
        done = subprocess.run(
            [sys.executable, prepare_data.__file__, f"--out={self.out}", *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def meta(self):
        return json.loads((self.out / "meta.json").read_text())

    def test_jsonl_with_a_tokenizer(self):
        tokenizer, ids = self.word_tokenizer(["one", "two", "three"])
        texts = ["one two three two", "", "two unknown", "three"]
        lines = [json.dumps({"id": n, "body": text}) for n, text in enumerate(texts)]
        source = self.write("in.jsonl", "\n\n".join(lines))
        flags = [f"--tokenizer={tokenizer}", f"--separator={END}", "--field=body", "--val_every=4"]
        self.run_tool(source, *flags)

        def wanted(chosen):
            return [
                number
                for text in chosen
                for number in [*(ids.get(word, 0) for word in text.split()), ids[END]]
            ]

        self.assertEqual(read_tokens(self.out / "train.bin", "H"), wanted(texts[:3]))
        self.assertEqual(read_tokens(self.out / "val.bin", "H"), wanted(texts[3:]))
        meta = self.meta()
        self.assertEqual((meta["dtype"], meta["vocab_size"]), ("uint16", 5))
        self.assertEqual((meta["train_documents"], meta["val_documents"]), (3, 1))
        self.assertEqual(
            meta["tokenizer_sha256"], hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        )
        self.assertNotIn(str(self.folder), json.dumps(meta))

    def test_a_large_vocabulary_takes_32_bits(self):
        for size, dtype, typecode in ((1 << 16, "uint16", "H"), ((1 << 16) + 1, "uint32", "I")):
            tokenizer, ids = self.word_tokenizer(["one"], size)
            source = self.write("text", f"one {END} one")
            self.run_tool(source, f"--tokenizer={tokenizer}", "--val_fraction=0", "--overwrite")
            tokens = read_tokens(self.out / "train.bin", typecode)
            self.assertEqual(tokens, [1, ids[END], 1])
            self.assertEqual((self.meta()["dtype"], self.meta()["vocab_size"]), (dtype, size))
            self.assertFalse((self.out / "val.bin").exists())

    def test_headers_of_llm_c(self):
        for size, start in ((0, [20240520, 1, 4]), (1 << 17, [20240801, 7, 4])):
            tokenizer, _ = self.word_tokenizer(["one", "two"], size)
            source = self.write("text", "one two one\none\none two")
            self.run_tool(
                source,
                f"--tokenizer={tokenizer}",
                "--format=llmc",
                "--documents=line",
                "--val_every=3",
                "--overwrite",
            )
            data = (self.out / "train.bin").read_bytes()
            self.assertEqual(list(array("i", data[:1024])), start + [0] * 253)
            typecode = "I" if size else "H"
            self.assertEqual(read_tokens(self.out / "train.bin", typecode, 1024), [1, 2, 1, 1])
            self.assertEqual(read_tokens(self.out / "val.bin", typecode, 1024), [1, 2])

    def test_bytes_of_text_without_a_tokenizer(self):
        data = random.Random(5).randbytes(3_000_000)
        source = self.write("data", data)
        self.run_tool(source, "--val_fraction=0.1")
        train, val = ((self.out / name).read_bytes() for name in ("train.bin", "val.bin"))
        self.assertEqual(train + val, data)
        self.assertTrue(train.endswith(b"\n"))
        self.assertAlmostEqual(len(val) / len(data), 0.1, delta=0.01)
        self.assertEqual(self.meta()["dtype"], "uint8")

    def test_the_same_again_and_the_split_by_share(self):
        source = self.write("lines", "".join(f"line {n}\n" for n in range(1000)))
        flags = [source, "--documents=line", "--val_fraction=0.03", "--separator=;"]
        self.run_tool(*flags)
        first = [(self.out / name).read_bytes() for name in ("train.bin", "val.bin", "meta.json")]
        self.assertEqual(self.meta()["val_documents"], 30)
        self.assertTrue(first[1].startswith(b"line 33;line 66;line 99;"))
        self.run_tool(*flags, "--overwrite")
        again = [(self.out / name).read_bytes() for name in ("train.bin", "val.bin", "meta.json")]
        self.assertEqual(again, first)

    def test_wrong_input_is_told_with_file_line_and_field(self):
        good = '{"text": "one"}\n'
        tokenizer, _ = self.word_tokenizer(["one"])
        with_tokenizer = [f"--tokenizer={tokenizer}", "--documents=line"]
        for name, content, flags, texts in (
            ("a.jsonl", good + '{"text": 5}\n', [], ["a.jsonl:2", "'text'", "int"]),
            ("b.jsonl", good + '{"body": ""}\n', [], ["b.jsonl:2", "no field 'text'", "body"]),
            ("c.jsonl", good * 2 + "{oops\n", [], ["c.jsonl:3", "not JSON"]),
            ("d.jsonl", "[1]\n", [], ["d.jsonl:1", "list"]),
            ("e.jsonl", '{"text": "\\ud800"}\n', [], ["e.jsonl:1", "surrogate"]),
            ("f.jsonl", b'{"text": "\xff"}\n', [], ["f.jsonl:1", "UTF-8"]),
            ("g.txt", b"one\none \xff\n", with_tokenizer, ["g.txt:2", "byte 4", "0xff"]),
            ("h.txt", "one\n", [*with_tokenizer, "--separator=<x>"], ["'<x>'", "no token"]),
            ("i.txt", "one\n", [f"--tokenizer={self.folder}/no"], ["no", "No such file"]),
            ("j.txt", "one\n", [f"--tokenizer={self.write('bad', '{}')}"], ["bad", "no tokenizer"]),
            ("k.txt", "", [], ["nothing to train on"]),
            ("m.gz", gzip.compress(b"one"), [], ["m.gz", "gzip", "unpack it"]),
            ("n.JSON", good, [], ["n.JSON", "--kind jsonl"]),
            ("o.JSONL", "oops\n", [], ["o.JSONL:1", "not JSON"]),
            ("l.txt", "one line", [], ["val.bin", "--val_fraction"]),
        ):
            said = self.run_tool(self.write(name, content), *flags, code=1)
            for text in texts:
                self.assertIn(text, said)
            self.assertEqual(list(self.out.glob("*")) if self.out.exists() else [], [])
        said = self.run_tool(self.folder / "missing", code=1)
        self.assertIn("missing: there is no such file", said)
        twice = self.write("twice.txt", "one two\n")
        said = self.run_tool(twice, self.folder / "." / "twice.txt", code=1)
        self.assertIn("is the same file as", said)

    def test_a_tokenizer_that_cannot_encode_says_where(self):
        tokenizer, _ = self.word_tokenizer(["one"])
        content = json.loads(tokenizer.read_text())
        del content["model"]["vocab"]["?"]
        tokenizer.write_text(json.dumps(content))
        source = self.write("p.txt", "one\none two\n")
        said = self.run_tool(source, f"--tokenizer={tokenizer}", "--documents=line", code=1)
        self.assertIn("cannot encode the text from", said)
        self.assertIn("p.txt:2", said)

    def test_the_share_is_one_plain_decimal(self):
        source = self.write("text", "one two three\n" * 400)
        for share in ("1e-99999999", "nan", "1", "1/3", "-0.1", ""):
            said = self.run_tool(source, f"--val_fraction={share}", code=2)
            self.assertIn("--val_fraction is", said)
        said = self.run_tool(source, "--val_fraction=0.1", "--val_every=2", code=2)
        self.assertIn("give one", said)

    def test_a_stop_leaves_nothing_behind(self):
        source = self.write("text", "one two three\n" * 3_000_000)
        tool = subprocess.Popen(
            [sys.executable, prepare_data.__file__, f"--out={self.out}", str(source)]
        )
        while tool.poll() is None and not list(self.out.glob("*.part")):
            time.sleep(0.001)  # tidy-allow: between two looks at the condition
        tool.terminate()
        self.assertEqual(tool.wait(), 143)
        self.assertEqual(list(self.out.glob("*")), [])

    def test_overwriting_leaves_no_part_of_the_old_result(self):
        source = self.write("text", "one two three\n" * 400)
        self.run_tool(source, "--val_fraction=0.1")
        self.assertTrue((self.out / "val.bin").exists())
        self.run_tool(source, "--val_fraction=0", "--overwrite")
        self.assertFalse((self.out / "val.bin").exists())
        self.assertEqual(list(self.out.glob("*.part")), [])

    def test_a_full_disk_leaves_nothing_behind(self):
        # No file may be longer than so, which fails as a full disk does.
        source = self.write("text", "one two three\n" * 4000)
        for most in (0, 20_000, 53_000):
            with self.subTest(most=most):
                limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
                done = subprocess.run(
                    [sys.executable, prepare_data.__file__, f"--out={self.out}", str(source)],
                    capture_output=True,
                    text=True,
                    preexec_fn=limit,
                )
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertEqual(list(self.out.glob("*")), [])

    def test_results_are_not_overwritten_by_accident(self):
        source = self.write("text", "a\nb\n")
        self.run_tool(source, "--val_fraction=0")
        self.assertIn("--overwrite", self.run_tool(source, "--val_fraction=0", code=1))


class Pieces(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="isthmus-test-")
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "text"
        self.block = documents.BLOCK_BYTES
        self.addCleanup(setattr, documents, "BLOCK_BYTES", self.block)

    def pieces(self, text, **options):
        self.path.write_bytes(text)
        return list(all_pieces([self.path], Split(0, 0), **options))

    def test_the_last_share_begins_at_a_line_or_a_word_or_a_character(self):
        for text, wanted in (
            (b"a b\nc d\ne f g", b"e f g"),
            (b"some words here", b"here"),
            ("ééééééé".encode(), "éé".encode()),
            (b"abcdefgh", b"fgh"),
            (b"ab", b""),
        ):
            self.path.write_bytes(text)
            got = list(all_pieces([self.path], Split(Fraction("0.4"), 0)))
            self.assertEqual(b"".join(p.text for p in got), text)
            self.assertEqual(b"".join(p.text for p in got if p.to_val), wanted, text)

    def test_long_documents_are_cut_between_lines_and_characters(self):
        seed = random.SystemRandom().randrange(1 << 32)
        print("seed", seed)
        draw = random.Random(seed)
        documents.BLOCK_BYTES = 16
        for _ in range(300):
            letters = draw.choice(["ab\n", "aé\n", "語é𝄞", "\n", "語a\n\n\n"])
            text = "".join(draw.choice(letters) for _ in range(draw.randrange(1, 120)))
            got = self.pieces(text.encode())
            self.assertEqual(b"".join(piece.text for piece in got), text.encode())
            self.assertEqual([p.ends_document for p in got], [False] * (len(got) - 1) + [True])
            for piece in got:
                piece.text.decode()
                self.assertLessEqual(len(piece.text), 2 * documents.BLOCK_BYTES)
                self.assertEqual(text.encode()[piece.offset :][: len(piece.text)], piece.text)

    def test_paragraphs(self):
        got = self.pieces(b"\na\nb\n\n \nc\n\n", documents="paragraph")
        name = str(self.path)
        self.assertEqual(
            got,
            [Piece(b"a\nb\n", False, True, f"{name}:2"), Piece(b"c\n", False, True, f"{name}:6")],
        )

    def test_a_line_too_long_is_refused(self):
        self.addCleanup(setattr, documents, "LINE_BYTES_MAX", documents.LINE_BYTES_MAX)
        documents.LINE_BYTES_MAX = 100
        with self.assertRaisesRegex(documents.DataError, "text:2: the line has more than 100"):
            self.pieces(b"a\n" + b"b" * 200, documents="line")


if __name__ == "__main__":
    main()
