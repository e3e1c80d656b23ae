#!/usr/bin/env python3
"""Makes a replica of the published GLM-5.3-Flash checkpoint: its config, its index and 62 shards with true headers.

The tensors' bytes are holes in sparse files, so it needs a few megabytes of disk. `winnow info` must accept it whole.
Names, shapes and types are those of zai-org/GLM-5.3-Flash at revision 84c6a6aa9497188e15a635ba793b0f95a79b1033; the
totals below are the published ones and are asserted.

usage: make_replica.py OUT_DIR [--rename NAME NEW | --reshape NAME | --drop NAME]
"""
import argparse
import json
import math
import os
import struct

SHARDS, TENSORS, BYTES = 62, 76108, 328326771576

VOCAB, D, LAYERS, MTP = 154880, 4096, 45, 45
HEADS, Q_LORA, KV_LORA, NOPE, V = 64, 1536, 512, 256, 256
INDEX_HEADS, INDEX_DIM, KPOOL = 32, 128, 4
KDA_HEADS, KDA_DIM, TAPS = 64, 128, 4
EXPERTS, EXPERT_WIDTH, DENSE_WIDTH, STREAMS = 288, 2048, 12288, 4
VISION_DEPTH, VISION, VISION_WIDTH, PATCH, TEMPORAL, PROJECTION = 24, 1024, 4096, 14, 2, 10240
SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def is_mla(layer):
    return layer % 4 == 3 or layer == MTP


class Tensors:
    """name -> (dtype, shape), in the order of the layers."""

    def __init__(self):
        self.all = {}

    def add(self, dtype, name, *shape):
        assert name not in self.all, name
        self.all[name] = (dtype, list(shape))

    def bf16(self, name, *shape):
        self.add("BF16", name, *shape)

    def f32(self, name, *shape):
        self.add("F32", name, *shape)

    def fp8(self, name, out, inner):
        self.add("F8_E4M3", name, out, inner)
        self.f32(name + "_scale_inv", math.ceil(out / 128), math.ceil(inner / 128))


def add_kda(t, p):
    width = KDA_HEADS * KDA_DIM
    for x in "qkv":
        t.bf16(f"{p}{x}_proj.weight", width, D)
        t.bf16(f"{p}{x}_conv1d.weight", width, 1, TAPS)
    for x in ("f_a_proj", "g_a_proj"):
        t.bf16(f"{p}{x}.weight", KDA_DIM, D)
    for x in ("f_b_proj", "g_b_proj"):
        t.bf16(f"{p}{x}.weight", width, KDA_DIM)
    t.bf16(p + "b_proj.weight", KDA_HEADS, D)
    t.f32(p + "A_log", KDA_HEADS)
    t.f32(p + "dt_bias", width)
    t.bf16(p + "o_norm.weight", KDA_DIM)
    t.bf16(p + "o_proj.weight", D, width)


def add_mla(t, p):
    t.fp8(p + "q_a_proj.weight", Q_LORA, D)
    t.bf16(p + "q_a_layernorm.weight", Q_LORA)
    t.fp8(p + "q_b_proj.weight", HEADS * NOPE, Q_LORA)
    t.fp8(p + "kv_a_proj_with_mqa.weight", KV_LORA, D)
    t.bf16(p + "kv_a_layernorm.weight", KV_LORA)
    t.bf16(p + "kv_b_proj.weight", HEADS * (NOPE + V), KV_LORA)
    t.fp8(p + "o_proj.weight", D, HEADS * V)
    i = p + "indexer."
    t.bf16(i + "wq_b.weight", INDEX_HEADS * INDEX_DIM, Q_LORA)
    t.bf16(i + "wk.weight", INDEX_DIM, D)
    t.bf16(i + "k_norm.weight", INDEX_DIM)
    t.bf16(i + "k_norm.bias", INDEX_DIM)
    t.bf16(i + "weights_proj.weight", INDEX_HEADS, D)
    t.bf16(i + "index_kpool_compress_ape", KPOOL, INDEX_DIM)
    t.bf16(i + "index_kpool_compress_gate", INDEX_DIM, D)


def add_mlp(t, p, width):
    t.fp8(p + "gate_proj.weight", width, D)
    t.fp8(p + "up_proj.weight", width, D)
    t.fp8(p + "down_proj.weight", D, width)


def add_moe(t, p):
    t.bf16(p + "gate.weight", EXPERTS, D)
    t.f32(p + "gate.e_score_correction_bias", EXPERTS)
    for e in range(EXPERTS):
        add_mlp(t, f"{p}experts.{e}.", EXPERT_WIDTH)
    add_mlp(t, p + "shared_experts.", EXPERT_WIDTH)


def add_text(t):
    root = "model.language_model."
    t.bf16(root + "embed_tokens.weight", VOCAB, D)
    for layer in range(LAYERS + 1):
        p = f"{root}layers.{layer}."
        t.bf16(p + "input_layernorm.weight", D)
        t.bf16(p + "post_attention_layernorm.weight", D)
        if layer < LAYERS:
            for site in ("attn", "ffn"):
                m = (2 + STREAMS) * STREAMS
                t.bf16(f"{p}hc_{site}_fn", m, STREAMS * D)
                t.f32(f"{p}hc_{site}_base", m)
                t.f32(f"{p}hc_{site}_scale", 3)
        else:
            t.bf16(p + "eh_proj.weight", D, 2 * D)
            for x in ("enorm", "hnorm", "shared_head.norm"):
                t.bf16(f"{p}{x}.weight", D)
        (add_mla if is_mla(layer) else add_kda)(t, p + "self_attn.")
        if layer < 3:
            add_mlp(t, p + "mlp.", DENSE_WIDTH)
        else:
            add_moe(t, p + "mlp.")
    t.bf16(root + "norm.weight", D)
    t.bf16("lm_head.weight", VOCAB, D)


def add_vision(t):
    root = "model.visual."

    def linear(name, out, inner):
        t.bf16(name + ".weight", out, inner)
        t.bf16(name + ".bias", out)

    t.bf16(root + "patch_embed.proj.weight", VISION, 3, TEMPORAL, PATCH, PATCH)
    t.bf16(root + "patch_embed.proj.bias", VISION)
    for block in range(VISION_DEPTH):
        p = f"{root}blocks.{block}."
        t.bf16(p + "norm1.weight", VISION)
        t.bf16(p + "norm2.weight", VISION)
        linear(p + "attn.qkv", 3 * VISION, VISION)
        linear(p + "attn.proj", VISION, VISION)
        t.bf16(p + "attn.q_norm.weight", 64)
        t.bf16(p + "attn.k_norm.weight", 64)
        linear(p + "mlp.gate_proj", VISION_WIDTH, VISION)
        linear(p + "mlp.up_proj", VISION_WIDTH, VISION)
        linear(p + "mlp.down_proj", VISION, VISION_WIDTH)
    t.bf16(root + "post_layernorm.weight", VISION)
    t.bf16(root + "downsample.weight", D, VISION, 2, 2)
    t.bf16(root + "downsample.bias", D)
    m = root + "merger."
    t.bf16(m + "proj.weight", D, D)
    t.bf16(m + "post_projection_norm.weight", D)
    t.bf16(m + "post_projection_norm.bias", D)
    t.bf16(m + "gate_proj.weight", PROJECTION, D)
    t.bf16(m + "up_proj.weight", PROJECTION, D)
    t.bf16(m + "down_proj.weight", D, PROJECTION)


def config():
    text = dict(
        model_type="glm5_next_text", vocab_size=VOCAB, hidden_size=D, intermediate_size=DENSE_WIDTH,
        moe_intermediate_size=EXPERT_WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        layer_types=["deepseek_sparse_attention" if is_mla(i) else "linear_attention" for i in range(LAYERS)],
        mlp_layer_types=["dense"] * 3 + ["sparse"] * (LAYERS - 3), first_k_dense_replace=3, indexer_types=["full"] * LAYERS,
        q_lora_rank=Q_LORA, kv_lora_rank=KV_LORA, qk_nope_head_dim=NOPE, qk_rope_head_dim=0, v_head_dim=V, mla_use_nope=True,
        n_routed_experts=EXPERTS, n_shared_experts=1, num_experts_per_tok=8, n_group=1, topk_group=1, norm_topk_prob=True,
        scoring_func="sigmoid", topk_method="noaux_tc", moe_router_dtype="float32", routed_scaling_factor=2.5,
        index_n_heads=INDEX_HEADS, index_head_dim=INDEX_DIM, index_topk=2048, index_kpool=KPOOL, index_kpool_compress=True,
        index_kpool_always_select_tail=True, index_share_for_mtp_iteration=True, indexer_rope_interleave=True,
        num_nextn_predict_layers=1, hc_mult=STREAMS, hc_sinkhorn_iters=20, hc_eps=1e-6, swiglu_limit=10.0, rms_norm_eps=1e-5,
        linear_attn_config=dict(num_heads=KDA_HEADS, head_dim=KDA_DIM, short_conv_kernel_size=TAPS, gate_lower_bound=-5.0),
        hidden_act="silu", attention_bias=False, max_position_embeddings=1048576, tie_word_embeddings=False,
        pad_token_id=154820, eos_token_id=[154820, 154827, 154829], dtype="bfloat16")
    vision = dict(
        model_type="glm5_next_vision", depth=VISION_DEPTH, hidden_size=VISION, num_heads=16, intermediate_size=VISION_WIDTH,
        out_hidden_size=D, projection_intermediate_size=PROJECTION, patch_size=PATCH, temporal_patch_size=TEMPORAL,
        spatial_merge_size=2, in_channels=3, image_size=448, rms_norm_eps=1e-5, swiglu_limit=10.0, attention_bias=True,
        hidden_act="silu")
    return dict(
        architectures=["Glm5NextForConditionalGeneration"], model_type="glm5_next", dtype="bfloat16", tie_word_embeddings=False,
        image_token_id=154854, video_token_id=154855, image_start_token_id=154830, image_end_token_id=154831,
        video_start_token_id=154832, video_end_token_id=154833, text_config=text, vision_config=vision,
        quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128]))


def nbytes(dtype, shape):
    return SIZES[dtype] * math.prod(shape)


def write_shard(path, tensors):
    """Header and length are true; the data is a hole."""
    header, offset = {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda t: -SIZES[t[1][0]]):
        size = nbytes(dtype, shape)
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[offset, offset + size])
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + offset)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--rename", nargs=2, metavar=("NAME", "NEW"))
    a.add_argument("--reshape", metavar="NAME")
    a.add_argument("--drop", metavar="NAME")
    a = a.parse_args()

    t = Tensors()
    add_text(t)
    add_vision(t)
    total = sum(nbytes(*v) for v in t.all.values())
    assert len(t.all) == TENSORS, len(t.all)
    assert total == BYTES, total

    changed = {}
    for name, (dtype, shape) in t.all.items():
        if name == a.drop:
            continue
        if name == a.reshape:
            shape = [2 * shape[0], *shape[1:]]
        changed[a.rename[1] if a.rename and name == a.rename[0] else name] = (dtype, shape)
    if a.rename or a.reshape or a.drop:
        assert changed != t.all, "no such tensor"

    os.makedirs(a.out, exist_ok=True)
    shards, size = [{}], 0
    for name, (dtype, shape) in changed.items():
        if size >= BYTES / SHARDS and len(shards) < SHARDS:
            shards.append({})
            size = 0
        shards[-1][name] = (dtype, shape)
        size += nbytes(dtype, shape)
    assert len(shards) == SHARDS, len(shards)
    index = dict(metadata=dict(total_size=sum(nbytes(*v) for v in changed.values())), weight_map={})
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"
        write_shard(os.path.join(a.out, file), tensors)
        index["weight_map"].update({name: file for name in tensors})
    for name, content in (("config.json", config()), ("model.safetensors.index.json", index)):
        with open(os.path.join(a.out, name), "w") as f:
            json.dump(content, f, indent=1)


if __name__ == "__main__":
    main()
