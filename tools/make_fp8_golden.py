#!/usr/bin/env python3
"""Makes the reference set tests/golden/tiny-fp8: the reference set `tiny` with its matrices in block FP8.

The numpy model first has to reproduce what the public implementation computed for `tiny` (asserted), and then computes
the outputs of the quantised weights, dequantised. Which matrices become FP8 follows the published checkpoint: experts,
dense feed-forwards, and the projections of MLA but kv_b. Scales are no powers of two.

usage: make_fp8_golden.py TINY_DIR OUT_DIR    TINY_DIR: unpacked tests/golden/tiny.tar.gz
"""
import json
import os
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference"))
import check_goldens  # noqa: E402
import tensorfile  # noqa: E402
from glm5_next_numpy import Model  # noqa: E402

PROMPTS = [(3, 12), (37, 12), (90, 4)]  # length, greedy steps
LOGIT_ROWS, HIDDEN_ROWS, HIDDEN_OF = 16, 4, 1
# Nothing stored may hang on how a close call is rounded: a prompt with a closer one is drawn anew.
SMALLEST_CUT, SMALLEST_MARGIN = 3e-5, 5e-3
LIMIT_BYTES = 1_500_000


def is_quantised(name):
    if "visual" in name or not name.endswith("_proj.weight") and not name.endswith("proj_with_mqa.weight"):
        return False
    if ".mlp." in name:
        return True
    return any(name.endswith(f"self_attn.{x}.weight") for x in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"))


def quantise(values):
    """f32 [n, k] -> codes, scales. The scale maps a block's largest value to 448."""
    n, k = values.shape
    rows, columns = -(-n // 128), -(-k // 128)
    scale = np.empty((rows, columns), np.float32)
    codes = np.empty((n, k), np.uint8)
    for i in range(rows):
        for j in range(columns):
            block = (slice(i * 128, (i + 1) * 128), slice(j * 128, (j + 1) * 128))
            scale[i, j] = max(np.abs(values[block]).max(), 1e-6) / np.float32(448)
            codes[block] = tensorfile.f32_to_e4m3(values[block].astype(np.float64) / scale[i, j])
    return codes, scale


def quantised_checkpoint(tensors, config):
    out = {}
    mla = [x != "linear_attention" for x in config["text_config"]["layer_types"]]
    for name, (dtype, x) in tensors.items():
        if "visual" in name:
            continue
        layer = int(name.split("layers.")[1].split(".")[0]) if "layers." in name else -1
        if is_quantised(name) or (name.endswith("self_attn.o_proj.weight") and mla[layer]):
            codes, scale = quantise(tensorfile.bf16_to_f32(x))
            out[name] = ("F8_E4M3", codes)
            out[name + "_scale_inv"] = ("F32", scale)
        else:
            out[name] = (dtype, x)
    return out


def clear_prompt(model, length, steps, vocab, random):
    """A prompt without close calls in selection and greedy choice: tokens, logits, trace, greedy ids, margins."""
    while True:
        tokens = random.integers(16, vocab, length).astype(np.int32)  # below 16: ids of media
        model.narrowest_cut = np.inf
        logits, trace = model.forward(tokens)
        if model.narrowest_cut < SMALLEST_CUT:
            continue
        ids, margins = model.greedy(tokens, steps)
        if model.narrowest_cut >= SMALLEST_CUT and margins.min() >= SMALLEST_MARGIN:
            return tokens, logits, trace, ids, margins


def outputs(model, vocab):
    out, random = {}, np.random.default_rng(7)
    for i, (length, steps) in enumerate(PROMPTS):
        tokens, logits, trace, ids, margins = clear_prompt(model, length, steps, vocab, random)
        rows = min(length, LOGIT_ROWS)
        out[f"p{i}.input_ids"] = ("I32", tokens)
        out[f"p{i}.logits_last"] = ("F32", logits[-rows:].astype(np.float32))
        for layer, selected in trace["selected"].items():
            out[f"p{i}.topk.{layer}"] = ("I32", model.selection_rows(selected, rows))
        if i == HIDDEN_OF:
            for layer, x in enumerate(trace["hidden"]):
                out[f"p{i}.hidden.{layer}"] = ("F32", x[-HIDDEN_ROWS:].astype(np.float32))
        out[f"p{i}.greedy"], out[f"p{i}.greedy_margin"] = ("I32", ids), ("F32", margins)
    return out


def main(source, target):
    check_goldens.check(source)
    with open(f"{source}/config.json") as f:
        config = json.load(f)
    weights = quantised_checkpoint(tensorfile.read_checkpoint(source), config)
    del config["vision_config"]
    config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])

    os.makedirs(target, exist_ok=True)
    with open(f"{target}/config.json", "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    shutil.copy(f"{source}/generation_config.json", target)
    tensorfile.write(f"{target}/model.safetensors", weights, {"format": "pt"})
    # From the file, so that what is computed is what is stored.
    model = Model(config, tensorfile.as_values(tensorfile.read_checkpoint(target)))
    out = outputs(model, config["text_config"]["vocab_size"])
    tensorfile.write(f"{target}/golden.safetensors", out)
    size = sum(os.path.getsize(f"{target}/{f}") for f in os.listdir(target))
    scales = np.concatenate([x.ravel() for n, (_, x) in weights.items() if n.endswith("_scale_inv")])
    assert size <= LIMIT_BYTES, size
    assert (np.frexp(scales)[0] != 0.5).mean() > 0.9, "the scales are powers of two"
    print(f"{target}: {size} bytes, {len(scales)} scales")


if __name__ == "__main__":
    main(*sys.argv[1:])
