"""Writes the training split of a data set of the Hugging Face hub as JSONL, some files of a size.

    python3 download_text.py --dataset=Skylion007/openwebtext --config= --field=text --out=DIR

Needs the package `datasets`. The order is that of the data set, so that the same data set gives the
same files. Not run so far.
"""

import argparse
import json
import pathlib

DOCUMENTS_PER_FILE = 250_000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True, help="name on the hub")
    parser.add_argument("--config", default="", help="its configuration; empty: the only one")
    parser.add_argument("--field", default="text", help="the column with the text")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="an existing folder")
    options = parser.parse_args()
    from datasets import load_dataset  # only here, so that --help works without it

    documents = load_dataset(options.dataset, options.config or None, split="train", streaming=True)
    file = None
    for number, document in enumerate(documents):
        if number % DOCUMENTS_PER_FILE == 0:
            if file is not None:
                file.close()
            path = options.out / f"text-{number // DOCUMENTS_PER_FILE:05}.jsonl"
            file = path.open("w", encoding="utf-8")
        file.write(json.dumps({options.field: document[options.field]}) + "\n")
    if file is None:
        raise SystemExit(f"{options.dataset} has no documents")
    file.close()


if __name__ == "__main__":
    main()
