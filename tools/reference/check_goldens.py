#!/usr/bin/env python3
"""Compares the numpy model with the stored outputs of the public implementation.

usage: check_goldens.py DIR...    each with config.json, the weights and golden.safetensors
"""
import json
import sys

import numpy as np

import tensorfile
from glm5_next_numpy import Model

LOGITS, HIDDEN = 2e-4, 2e-3  # of the largest reference value


def prompts(golden):
    return sorted({n.split(".")[0] for n in golden if n[0] == "p" and n.endswith(".input_ids")}, key=lambda p: int(p[1:]))


def check(folder, greedy_steps=3):
    """Asserts agreement; returns the worst errors, of logits and of hidden rows."""
    with open(f"{folder}/config.json") as f:
        model = Model(json.load(f), tensorfile.as_values(tensorfile.read_checkpoint(folder)))
    golden = {n: x for n, (_, x) in tensorfile.read(f"{folder}/golden.safetensors").items()}
    worst_logits = worst_hidden = 0.0
    for p in prompts(golden):
        tokens = golden[p + ".input_ids"]
        logits, trace = model.forward(tokens)
        want = golden[p + ".logits_last"]
        error = np.abs(logits[-len(want) :] - want).max() / np.abs(want).max()
        print(f"  {p}: {len(tokens)} tokens, logits {error:.1e}", flush=True)
        assert error < LOGITS, (folder, p, error)
        worst_logits = max(worst_logits, error)
        for layer, selected in trace["selected"].items():
            want = golden[f"{p}.topk.{layer}"]
            got = model.selection_rows(selected, len(want))
            assert (np.sort(got, 1) == np.sort(want, 1)).all(), (folder, p, layer)
        for layer, rows in enumerate(trace["hidden"]):
            if f"{p}.hidden.{layer}" in golden:
                want = golden[f"{p}.hidden.{layer}"]
                error = np.abs(rows[-len(want) :] - want).max() / np.abs(want).max()
                assert error < HIDDEN, (folder, p, layer, error)
                worst_hidden = max(worst_hidden, error)
        if f"{p}.greedy" in golden:
            ids, margins = model.greedy(tokens, greedy_steps)
            sure = golden[p + ".greedy_margin"][:greedy_steps] > 2e-3
            if sure.all():
                assert (ids == golden[p + ".greedy"][:greedy_steps]).all(), (folder, p, ids)
                assert np.abs(margins - golden[p + ".greedy_margin"][:greedy_steps]).max() < 1e-2
    return worst_logits, worst_hidden


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(folder, "worst errors of logits and hidden rows: {:.1e} {:.1e}".format(*check(folder)))
