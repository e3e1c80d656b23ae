#!/usr/bin/env python3
"""Makes a reference set of unusual shape: a tiny glm5_next checkpoint drawn from a seed, and what the numpy model computes with it.

Everything that a config can vary is drawn: layer patterns, odd widths, pools, streams, gates, groups, storage types, name
styles. Prompts have lengths at the edges of pools, of the selection, of chunks and of pages. A prompt in which rounding
could turn a discontinuous choice (selection, experts) is drawn anew, so float32 has to agree.

Rows that select nothing (index_kpool_always_select_tail false) get zeros from attention here: what a causal engine can
compute, not what transformers does.

usage: make_random_golden.py SEED DIR [FIELD=VALUE ...]    FIELD: of Shape, to fix instead of drawing, e.g. kpool=8 fp8=True
       make_random_golden.py sets DIR                      the committed sets, as DIR/random-NAME: those of tests/golden
"""
import ast
import dataclasses
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference"))
import tensorfile  # noqa: E402
from glm5_next_numpy import Model  # noqa: E402
from make_fp8_golden import is_quantised, quantise  # noqa: E402

SMALLEST_CUT = 1.5e-5      # of the largest score of the row
SMALLEST_EXPERT_CUT = 1e-5
PROMPT_TRIES = 6
HIDDEN_OF = 1              # the prompt whose residual streams are stored
TEXT = "model.language_model."
MODULE_NAMES = [(".hc_attn_", ".attn_hc."), (".hc_ffn_", ".ffn_hc.")] + [
    (f".self_attn.{x}", f".self_attn.forget_gate.{x}") for x in ("f_a_proj.", "f_b_proj.", "dt_bias", "A_log")]


@dataclasses.dataclass
class Shape:
    hidden: int = 40
    vocab: int = 67
    layers: str = "KM"          # K: KDA, M: MLA with an indexer, S: MLA that shares the selection of the layer before
    mlps: str = "de"            # d: dense, e: experts
    intermediate: int = 48
    moe_intermediate: int = 20
    experts: int = 4
    top_k: int = 2
    shared_experts: int = 1
    groups: int = 1
    kept_groups: int = 1
    normalise: bool = True
    scaling: float = 2.5
    limit: float = 10.0         # None: no clamp
    heads: int = 3
    q_lora: int = 24
    kv_lora: int = 20
    nope: int = 12
    v: int = 10
    index_heads: int = 4
    index_dim: int = 16
    kpool: int = 4
    slots: int = 2              # pools that may be selected
    tail: bool = True
    kda_heads: int = 3
    kda_dim: int = 20
    taps: int = 4
    bound: float = -5.0         # None: the softplus gate
    streams: int = 4
    sinkhorn: int = 20
    eps: float = 1e-5
    hc_eps: float = 1e-6
    tied: bool = False
    fp8: bool = False
    fused: bool = False         # transformers' module names
    mixed: bool = False         # F32, F16 and BF16 by turns
    lengths: tuple = ()
    rows: int = 16
    steps: int = 4


def draw_layers(r):
    """A pattern of 1 to 5 layers; S stands right after an M only."""
    kinds = r.choice(["K", "M", "KM", "MK", "MS", "KMS", "MSK", "MMS", "KKKM", "MSMS", "random"])
    if kinds == "random":
        kinds = "".join(r.choice(list("KM"), int(r.integers(2, 6))))
    return str(kinds), "".join(r.choice(list("de"), len(kinds)))


def draw_shape(seed, fixed):
    r = np.random.default_rng(seed)
    pick = lambda *options: options[int(r.integers(len(options)))]
    layers, mlps = draw_layers(r)
    groups = pick(1, 1, 2, 3, 4)
    experts = groups * pick(2, 3, 4, 5)
    kept = int(r.integers(1, groups + 1))
    room = kept * (experts // groups)
    s = Shape(
        hidden=pick(8, 17, 32, 36, 40, 64, 72, 100, 129), vocab=pick(2, 31, 50, 67, 129, 130, 257), layers=layers, mlps=mlps,
        intermediate=pick(1, 24, 48, 65, 100, 130), moe_intermediate=pick(1, 7, 16, 20, 33, 64), experts=experts,
        top_k=pick(1, room, int(r.integers(1, room + 1))), shared_experts=pick(1, 1, 2, 3), groups=groups, kept_groups=kept,
        normalise=pick(True, True, False), scaling=pick(1.0, 2.5, 0.5), limit=pick(10.0, 0.3, 1.0, None), heads=int(r.integers(1, 6)),
        q_lora=pick(5, 16, 24, 33), kv_lora=pick(1, 7, 16, 20, 33, 65), nope=pick(1, 5, 12, 16, 31), v=pick(1, 3, 10, 16, 33),
        index_heads=pick(1, 2, 3, 4, 5, 8, 16), index_dim=pick(1, 3, 8, 15, 16, 17, 32, 40), kpool=pick(1, 2, 3, 4, 5, 8, 12, 16, 32, 64),
        slots=pick(1, 2, 3, 5, 8), tail=pick(True, True, True, False), kda_heads=int(r.integers(1, 6)), kda_dim=pick(1, 4, 7, 16, 20, 33),
        taps=pick(1, 2, 3, 4, 4), bound=pick(-5.0, -5.0, -1.0, None), streams=int(r.integers(1, 9)), sinkhorn=pick(1, 2, 7, 20),
        eps=pick(1e-5, 1e-6, 1e-2), hc_eps=pick(1e-6, 1e-3), tied=pick(True, False, False), fp8=pick(True, False, False), fused=pick(True, False),
        mixed=pick(True, False, False), rows=pick(4, 16, 64), steps=pick(1, 4, 8))
    topk = s.kpool * s.slots
    edges = [1, s.kpool - 1, s.kpool, s.kpool + 1, topk - 1, topk, topk + 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 300]
    edges = sorted({n for n in edges if n > 0})
    s.lengths = tuple(int(n) for n in r.choice(edges, min(5, len(edges)), replace=False))
    if "experts" in fixed:
        s.groups = s.kept_groups = s.top_k = 1  # what was drawn went with another number
    for name, value in fixed.items():
        assert hasattr(s, name), name
        setattr(s, name, value)
    if not s.tail:
        # Of shorter prompts verify compares the selection only: their reference is taken for one of transformers.
        s.lengths = tuple(max(n, 8 * s.kpool) for n in s.lengths)
    if s.fp8 and s.fused and "e" in s.mlps:
        s.moe_intermediate = 128  # else a scale's block lies in two matrices, which is refused
    return s


def config_of(s):
    count = len(s.layers)
    text = dict(
        model_type="glm5_next_text", vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.intermediate,
        moe_intermediate_size=s.moe_intermediate, num_hidden_layers=count, num_attention_heads=s.heads, num_key_value_heads=s.heads,
        layer_types=["linear_attention" if x == "K" else "deepseek_sparse_attention" for x in s.layers],
        mlp_layer_types=["dense" if x == "d" else "sparse" for x in s.mlps],
        indexer_types=["shared" if x == "S" else "full" for x in s.layers],
        q_lora_rank=s.q_lora, kv_lora_rank=s.kv_lora, qk_nope_head_dim=s.nope, qk_rope_head_dim=0, v_head_dim=s.v,
        n_routed_experts=s.experts, n_shared_experts=s.shared_experts, num_experts_per_tok=s.top_k, n_group=s.groups,
        topk_group=s.kept_groups, norm_topk_prob=s.normalise, routed_scaling_factor=s.scaling, index_n_heads=s.index_heads,
        index_head_dim=s.index_dim, index_topk=s.kpool * s.slots, index_kpool=s.kpool, index_kpool_always_select_tail=s.tail,
        linear_attn_config=dict(num_heads=s.kda_heads, head_dim=s.kda_dim, short_conv_kernel_size=s.taps, gate_lower_bound=s.bound,
                                safe_gate=s.bound is not None),
        hc_mult=s.streams, hc_sinkhorn_iters=s.sinkhorn, hc_eps=s.hc_eps, swiglu_limit=s.limit, rms_norm_eps=s.eps, hidden_act="silu",
        max_position_embeddings=4096, attention_bias=False)
    config = dict(architectures=["Glm5NextForConditionalGeneration"], model_type="glm5_next", dtype="bfloat16",
                  tie_word_embeddings=s.tied, text_config=text)
    if s.fp8:
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])
    return config


# What tests/golden has, small ones: each takes shapes that the others leave out.
SMALL = dict(rows=4, steps=3)
SETS = {
    "odd-sizes": (1, dict(hidden=29, vocab=35, layers="KMS", mlps="ded", intermediate=45, moe_intermediate=7, experts=5, top_k=2, heads=3, q_lora=21,
                          kv_lora=19, nope=11, v=13, index_heads=3, index_dim=15, kpool=8, slots=3, kda_heads=3, kda_dim=20, taps=3, bound=-5.0, streams=3,
                          sinkhorn=7, limit=1.0, lengths=(7, 24, 25, 129, 193))),
    "kda-only": (2, dict(hidden=36, vocab=31, layers="KKK", mlps="ded", intermediate=24, moe_intermediate=16, experts=4, top_k=4, kda_heads=5, kda_dim=7,
                         taps=2, bound=None, streams=2, sinkhorn=1, limit=None, lengths=(1, 2, 63, 64, 65, 191))),
    "mla-only": (3, dict(hidden=36, vocab=50, layers="MSM", mlps="eed", intermediate=48, moe_intermediate=16, experts=4, top_k=1, heads=5, q_lora=17,
                         kv_lora=33, nope=5, v=3, index_heads=1, index_dim=17, kpool=1, slots=8, streams=1, sinkhorn=20, limit=10.0, normalise=False,
                         lengths=(1, 8, 9, 64, 127))),
    "no-tail": (4, dict(hidden=20, vocab=50, layers="MKM", mlps="ede", intermediate=24, moe_intermediate=9, experts=12, top_k=5, groups=4, kept_groups=2,
                        heads=1, q_lora=24, kv_lora=16, nope=12, v=10, index_heads=5, index_dim=32, kpool=2, slots=5, tail=False, kda_heads=2, kda_dim=16,
                        taps=4, bound=-1.0, streams=4, scaling=0.5, lengths=(17, 65, 128, 192))),
    "fused-fp8": (5, dict(hidden=24, vocab=31, layers="KM", mlps="de", intermediate=130, moe_intermediate=128, experts=2, top_k=1, shared_experts=2, groups=1,
                          kept_groups=1, heads=2, q_lora=24, kv_lora=20, nope=16, v=33, index_heads=4, index_dim=16, kpool=4, slots=2, kda_heads=2,
                          kda_dim=16, taps=4, streams=4, limit=0.3, fp8=True, fused=True, mixed=False, lengths=(3, 8, 9, 64, 129))),
    "mixed-types": (6, dict(hidden=17, vocab=67, layers="MKK", mlps="eee", moe_intermediate=13, experts=3, top_k=2, shared_experts=3, heads=4, q_lora=5,
                            kv_lora=7, nope=31, v=16, index_heads=16, index_dim=8, kpool=16, slots=2, kda_heads=1, kda_dim=33, taps=4, streams=4, tied=True,
                            fp8=False, fused=True, mixed=True, lengths=(15, 31, 33, 65, 192))),
    "page-pools": (7, dict(hidden=12, vocab=2, layers="MS", mlps="dd", intermediate=1, heads=2, q_lora=16, kv_lora=1, nope=1, v=1, index_heads=2, index_dim=1,
                           kpool=64, slots=1, streams=8, sinkhorn=20, lengths=(63, 64, 65, 127, 300))),
    "uneven-pools": (8, dict(hidden=16, vocab=40, layers="MKM", mlps="ded", intermediate=24, moe_intermediate=9, experts=4, top_k=2, heads=2, q_lora=12,
                             kv_lora=18, nope=8, v=7, index_heads=3, index_dim=12, kpool=5, slots=3, kda_heads=2, kda_dim=12, taps=3, streams=2,
                             lengths=(4, 5, 16, 65, 319, 321))),  # no page of 64 holds whole pools
}


class Weights:
    """Official name -> f32 array, lively: gates, clamps, routing and selection all vary."""

    def __init__(self, s, seed):
        self.s, self.r, self.all = s, np.random.default_rng([seed, 1]), {}
        self.matrix(TEXT + "embed_tokens", s.vocab, s.hidden, 1.0 * s.hidden**0.5)
        self.vector(TEXT + "norm.weight", s.hidden, 1.0, 0.2)
        if not s.tied:
            self.matrix("lm_head", s.vocab, s.hidden, 2.0)
        for i, (mixer, mlp) in enumerate(zip(s.layers, s.mlps)):
            p = f"{TEXT}layers.{i}."
            self.sites(p)
            (self.kda if mixer == "K" else self.mla)(p + "self_attn.")
            if mixer == "M":
                self.indexer(p + "self_attn.indexer.")
            (self.mlp if mlp == "d" else self.moe)(p + "mlp.", s.intermediate)

    def put(self, name, x):
        self.all[name] = np.asarray(x, np.float32)

    def matrix(self, name, n, k, gain=1.3, suffix=".weight"):
        self.put(name + suffix, self.r.normal(0, gain * k**-0.5, (n, k)))

    def vector(self, name, n, mean, deviation):
        self.put(name, self.r.normal(mean, deviation, n))

    def sites(self, p):
        n, d = self.s.streams, self.s.hidden
        m = (2 + n) * n
        for site, norm in (("attn", "input_layernorm"), ("ffn", "post_attention_layernorm")):
            self.matrix(f"{p}hc_{site}_fn", m, n * d, 1.0, "")
            self.vector(f"{p}hc_{site}_base", m, 0, 1)
            self.vector(f"{p}hc_{site}_scale", 3, 1, 0.3)
            self.vector(f"{p}{norm}.weight", d, 1, 0.2)

    def kda(self, p):
        s = self.s
        h, d, width = s.kda_heads, s.kda_dim, s.kda_heads * s.kda_dim
        for x in "qkv":
            self.matrix(f"{p}{x}_proj", width, s.hidden)
            self.put(f"{p}{x}_conv1d.weight", self.r.normal(0, 0.7, (width, 1, s.taps)))
        for x in "fg":
            self.matrix(f"{p}{x}_a_proj", d, s.hidden)
            self.matrix(f"{p}{x}_b_proj", width, d)
        self.matrix(p + "b_proj", h, s.hidden)
        self.vector(p + "A_log", h, 0, 0.7)
        self.vector(p + "dt_bias", width, -1.5, 1.0)
        self.vector(p + "o_norm.weight", d, 1, 0.2)
        self.matrix(p + "o_proj", s.hidden, width)

    def mla(self, p):
        s = self.s
        self.matrix(p + "q_a_proj", s.q_lora, s.hidden)
        self.vector(p + "q_a_layernorm.weight", s.q_lora, 1, 0.2)
        self.matrix(p + "q_b_proj", s.heads * s.nope, s.q_lora)
        self.matrix(p + "kv_a_proj_with_mqa", s.kv_lora, s.hidden)
        self.vector(p + "kv_a_layernorm.weight", s.kv_lora, 1, 0.2)
        self.matrix(p + "kv_b_proj", s.heads * (s.nope + s.v), s.kv_lora)
        self.matrix(p + "o_proj", s.hidden, s.heads * s.v)

    def indexer(self, p):
        s = self.s
        self.matrix(p + "wq_b", s.index_heads * s.index_dim, s.q_lora)
        self.matrix(p + "wk", s.index_dim, s.hidden)
        self.vector(p + "k_norm.weight", s.index_dim, 1, 0.2)
        self.vector(p + "k_norm.bias", s.index_dim, 0, 0.3)
        self.matrix(p + "weights_proj", s.index_heads, s.hidden)
        self.put(p + "index_kpool_compress_ape", self.r.normal(0, 0.7, (s.kpool, s.index_dim)))
        self.matrix(p + "index_kpool_compress_gate", s.index_dim, s.hidden, 1.0, "")

    def mlp(self, p, width):
        self.matrix(p + "gate_proj", width, self.s.hidden)
        self.matrix(p + "up_proj", width, self.s.hidden)
        self.matrix(p + "down_proj", self.s.hidden, width)

    def moe(self, p, _):
        s = self.s
        self.matrix(p + "gate", s.experts, s.hidden)
        self.vector(p + "gate.e_score_correction_bias", s.experts, 0, 0.2)
        for e in range(s.experts):
            self.mlp(f"{p}experts.{e}.", s.moe_intermediate)
        self.mlp(p + "shared_experts.", s.moe_intermediate * s.shared_experts)


def stored_type(s, name, r):
    if s.fp8 and (is_quantised(name) or name.endswith("self_attn.o_proj.weight") and s.layers[layer_of(name)] != "K"):
        return "F8_E4M3"
    if any(x in name for x in ("_base", "_scale", "A_log", "dt_bias", "correction_bias")):
        return "F32"
    if s.mixed and ".experts." in name:
        return ["F32", "F16", "BF16"][layer_of(name) % 3]  # the experts of a layer are of one type
    return str(r.choice(["F32", "F16", "BF16"])) if s.mixed else "BF16"


def layer_of(name):
    return int(name.split("layers.")[1].split(".")[0])


def store(s, weights, seed):
    """The tensors of model.safetensors, under official names."""
    r, out = np.random.default_rng([seed, 2]), {}
    for name, x in weights.items():
        kind = stored_type(s, name, r)
        if kind == "F8_E4M3":
            codes, scale = quantise(x)
            out[name], out[name + "_scale_inv"] = (kind, codes), ("F32", scale)
        else:
            out[name] = (kind, {"F32": lambda v: v, "F16": lambda v: v.astype(np.float16), "BF16": tensorfile.f32_to_bf16}[kind](x))
    return out


def fuse(tensors):
    """The same under the names of transformers' modules, experts and convolutions fused."""
    out, experts, convs = {}, {}, {}
    for name, (kind, x) in tensors.items():
        if ".mlp.experts." in name:
            prefix, rest = name.split(".mlp.experts.")
            e, part = rest.split(".", 1)
            experts.setdefault((prefix, part.replace("proj.weight", "proj")), {})[int(e)] = (kind, x)
        elif "_conv1d." in name:
            convs.setdefault(name.replace(name.split(".")[-2], "conv1d"), []).append((kind, x))
        else:
            for official, module in MODULE_NAMES:
                name = name.replace(official, module)
            out[name] = (kind, x)
    stack = lambda of: np.stack([of[e][1] for e in sorted(of)])
    for (prefix, part), of in experts.items():
        kind, name = of[0][0], f"{prefix}.mlp.experts."
        if part.startswith("gate_proj"):
            up = experts[prefix, part.replace("gate", "up")]
            out[name + part.replace("gate", "gate_up")] = (kind, np.concatenate([stack(of), stack(up)], 1))
        elif part.startswith("down"):
            out[name + part] = (kind, stack(of))
    for name, parts in convs.items():
        kind = parts[0][0]
        if any(k != kind for k, _ in parts):
            kind, parts = "F32", [("F32", tensorfile.bf16_to_f32(x) if k == "BF16" else x.astype(np.float32)) for k, x in parts]
        out[name] = (kind, np.concatenate([x for _, x in parts]))
    return out


class Judge(Model):
    """The numpy model, with a causal rule for rows that select nothing, that notes the closest calls of a forward."""

    def forget(self):
        self.cut, self.expert_cut = np.inf, np.inf

    def mla(self, x, p, selected):
        y, selected = super().mla(x, p, selected)
        return np.where(selected.any(1)[:, None], y, 0.0), selected

    def choose(self, score, tokens):
        slots = self.c.topk // self.c.kpool
        for t in range(tokens):
            row = np.sort(score[t, : (t + 1) // self.c.kpool])[::-1]
            if len(row) > slots and (row[slots - 1] != 0 or row[slots] != 0):
                self.cut = min(self.cut, (row[slots - 1] - row[slots]) / np.abs(row).max())
        return super().choose(score, tokens)

    def route(self, x, p):
        c = self.c
        biased = 1 / (1 + np.exp(-self.linear(x, p + "gate"))) + self.text(p + "gate.e_score_correction_bias")
        def note(ranked, kept):
            if kept < ranked.shape[1]:
                ranked = -np.sort(-ranked, 1)
                gap = ranked[:, kept - 1] - ranked[:, kept]
                self.expert_cut = min(self.expert_cut, gap[np.isfinite(gap)].min(initial=np.inf))
        if c.groups > 1:
            grouped = biased.reshape(len(x), c.groups, -1)
            best = np.sort(grouped, -1)[..., -2:].sum(-1)
            note(best, c.kept_groups)
            kept = np.zeros(best.shape, bool)
            np.put_along_axis(kept, np.argsort(-best, 1, kind="stable")[:, : c.kept_groups], True, 1)
            biased = np.where(kept[:, :, None], grouped, -np.inf).reshape(len(x), -1)
        note(biased, c.top_experts)
        return super().route(x, p)

    @property
    def clear(self):
        return self.cut >= SMALLEST_CUT and self.expert_cut >= SMALLEST_EXPERT_CUT


def clear_prompt(model, s, length, r):
    """A prompt without close calls, shortened if none of that length is found."""
    while True:
        for _ in range(PROMPT_TRIES):
            tokens = r.integers(0, s.vocab, length).astype(np.int32)
            model.forget()
            logits, trace = model.forward(tokens)
            if not model.clear:
                continue
            ids, margins = model.greedy(tokens, s.steps if length < 100 else min(s.steps, 2))
            if model.clear:
                return tokens, logits, trace, ids, margins
        length = max(1, length * 2 // 3)


def outputs(model, s, seed):
    out, r = {}, np.random.default_rng([seed, 3])
    for i, length in enumerate(s.lengths):
        tokens, logits, trace, ids, margins = clear_prompt(model, s, length, r)
        rows = min(len(tokens), s.rows)
        out[f"p{i}.input_ids"] = ("I32", tokens)
        out[f"p{i}.logits_last"] = ("F32", logits[-rows:].astype(np.float32))
        for layer, selected in trace["selected"].items():
            out[f"p{i}.topk.{layer}"] = ("I32", model.selection_rows(selected, rows))
        if i == HIDDEN_OF:
            for layer, x in enumerate(trace["hidden"]):
                out[f"p{i}.hidden.{layer}"] = ("F32", x[-min(rows, 4) :].astype(np.float32))
        out[f"p{i}.greedy"], out[f"p{i}.greedy_margin"] = ("I32", ids), ("F32", margins)
    return out


def make(seed, folder, fixed):
    s = draw_shape(seed, fixed)
    config, tensors = config_of(s), store(s, Weights(s, seed).all, seed)
    values = tensorfile.as_values(tensors)
    if s.tied:
        values["lm_head.weight"] = values[TEXT + "embed_tokens.weight"]
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    tensorfile.write(f"{folder}/model.safetensors", fuse(tensors) if s.fused else tensors, {"format": "pt"})
    tensorfile.write(f"{folder}/golden.safetensors", outputs(Judge(config, values), s, seed))
    return s


def main(arguments):
    if arguments[0] == "sets":
        for name, (seed, fixed) in SETS.items():
            print(name, make(seed, f"{arguments[1]}/random-{name}", SMALL | fixed))
        return
    value = lambda text: text if text[:1] in set("KMSde") else ast.literal_eval(text)
    print(make(int(arguments[0]), arguments[1], {n: value(v) for n, v in (x.split("=", 1) for x in arguments[2:])}))


if __name__ == "__main__":
    main(sys.argv[1:])
