"""What transformers_test.py has done by Transformers: a JSON list of jobs comes in, results go out.

{"do": "save", "folder": …, "config": {…}, "dtype": …, "save": {…}}   a GPT-2 with random values
{"do": "logits", "folder": …, "tokens": […]}                          in float32, [position][token]
"""

import json
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def save(job):
    """Saves a model whose values are large enough to make a difference."""
    torch.manual_seed(3)
    config = GPT2Config(**job["config"], bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.to(getattr(torch, job["dtype"])).save_pretrained(job["folder"], **job["save"])


def logits(job):
    """Loads a checkpoint as people do, and says what did not fit."""
    model, info = GPT2LMHeadModel.from_pretrained(
        job["folder"], dtype=torch.float32, output_loading_info=True
    )
    with torch.no_grad():
        values = model.eval()(torch.tensor([job["tokens"]])).logits[0].tolist()
    keys = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {"logits": values, **{name: sorted(map(str, info[name])) for name in keys}}


def main():
    torch.set_num_threads(1)
    jobs = {"save": save, "logits": logits}
    print(json.dumps([jobs[job["do"]](job) for job in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
