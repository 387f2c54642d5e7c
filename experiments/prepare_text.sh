# shellcheck shell=bash
# Shared by the data.sh of each experiment: a data set of the Hugging Face hub becomes train.bin and
# val.bin. With DRY_RUN=1 the commands are printed and nothing is downloaded.
#
# PYTHON: an interpreter with `datasets` (for the download) and `tokenizers`.
# HF_DATASET, HF_CONFIG, HF_FIELD, VAL_FRACTION: set by the caller; a `# source:` there says why.
set -euo pipefail
tree=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
PYTHON=${PYTHON:-python3}

run() {
  if [ "${DRY_RUN:-0}" = 1 ]; then
    echo "would start: $*"
  else
    "$@"
  fi
}

# prepare_text FOLDER TOKENIZER_JSON: FOLDER gets text-*.jsonl, then train.bin, val.bin, meta.json.
prepare_text() {
  local folder=$1 tokenizer=$2
  run mkdir -p "$folder"
  run "$PYTHON" "$tree/experiments/download_text.py" "--dataset=$HF_DATASET" \
    "--config=$HF_CONFIG" "--field=$HF_FIELD" "--out=$folder"
  local texts=("$folder"/text-*.jsonl)
  [ -e "${texts[0]}" ] || texts=("$folder/text-00000.jsonl") # nothing there yet: a dry run
  # GPT-2's end of text behind each document, as nanoGPT's preparation of OpenWebText does.
  run "$PYTHON" "$tree/tools/prepare_data.py" "--tokenizer=$tokenizer" --kind=jsonl \
    "--field=$HF_FIELD" '--separator=<|endoftext|>' --format=nanogpt \
    "--val_fraction=$VAL_FRACTION" "--out=$folder" "${texts[@]}"
}
