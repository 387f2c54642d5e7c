#!/usr/bin/env bash
# FineWeb's sample of 10 billion tokens as train.bin and val.bin: data.sh FOLDER TOKENIZER_JSON
# (that of GPT-2). 50 GB of JSONL and 20 GB of tokens, hours of one core. Not run so far.
# shellcheck source=experiments/prepare_text.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../prepare_text.sh"
[ $# -eq 2 ] || { echo "usage: data.sh FOLDER TOKENIZER_JSON" >&2 && exit 1; }
export HF_DATASET=HuggingFaceFW/fineweb # source: ours; Dolma, the papers' text, is larger
export HF_CONFIG=sample-10BT            # source: ours; one pass over it is the run
export HF_FIELD=text                    # source: the data set's column
export VAL_FRACTION=0.001               # source: ours; 10 M tokens
prepare_text "$1" "$2"
