#!/usr/bin/env bash
# OpenWebText as train.bin and val.bin: data.sh FOLDER TOKENIZER_JSON (that of GPT-2). 54 GB of
# JSONL and 17 GB of tokens, hours of one core. Not run so far.
# shellcheck source=experiments/prepare_text.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../prepare_text.sh"
[ $# -eq 2 ] || { echo "usage: data.sh FOLDER TOKENIZER_JSON" >&2 && exit 1; }
export HF_DATASET=Skylion007/openwebtext # source: run_example.sh trains on data/owt
export HF_CONFIG=''                      # source: it has one
export HF_FIELD=text                     # source: the data set's column
export VAL_FRACTION=0.0005               # source: nanoGPT, data/openwebtext/prepare.py
prepare_text "$1" "$2"
