#!/usr/bin/env python3
"""Makes the goldens in this folder, with random values of our own: gguf 0.19, transformers 5, torch.

    blocks.txt       per format: its name, the bytes of two blocks, and the values that gguf.quants gives, as bits of f32;
                     and for formats that are written: "to NAME", the values' bits, and the bytes that gguf.quants gives
    all-types.gguf   every type of metadata, written by gguf.GGUFWriter
    FAMILY.gguf      a tiny model of a family, as llama.cpp's converter lays it out
    tokens.bin       17 tokens as 16-bit numbers
    losses.txt       per family: the mean loss of the last 16 of them, which transformers computes in f64

    make_goldens.py [DIR]
"""

import os
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from transformers import (BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
CONTEXT, WIDTH, LAYERS, HEADS, KEY_HEADS, VOCABULARY, HIDDEN = 16, 12, 2, 2, 1, 37, 20


def hexes(values):
    return np.ascontiguousarray(values).tobytes().hex()


def blocks():
    random = np.random.default_rng(1)
    lines = []
    for q in (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q4_K, Q.Q5_K, Q.Q6_K):
        elements, size = gguf.GGML_QUANT_SIZES[q]
        n = 2 * max(elements, 32)
        data = random.integers(0, 256, n // elements * size, dtype=np.uint8).reshape(-1, size)
        # Scales are numbers of ordinary size, one of them subnormal and one negative.
        scales = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2],
                  Q.Q6_K: [208]}.get(q, [])
        for at in scales:
            data[:, at:at + 2] = np.array([[0.0123], [-3e-6]], np.float16).view(np.uint8).reshape(2, 2)
        if not scales:
            data = random.standard_normal(n, np.float32)
            data = gguf.quants.quantize(data, q).view(np.uint8) if q != Q.F32 else data.view(np.uint8)
        lines.append(f"{q.name} {hexes(data)} {hexes(gguf.quants.dequantize(data.reshape(-1), q).astype(np.float32))}")
    values = (random.standard_normal((8, 32)) * np.float32(10.0) ** random.integers(-6, 4, (8, 1))).astype(np.float32)
    values[1] = 0
    values[2] = np.arange(32) - 16  # ties of the rounding: 127 / 16 = 7.9375 of each
    values[3] = (np.arange(32) - 15.5) * 2.0**-3
    values[4] *= np.float32(1e-30)  # the scale becomes 0
    for q in (Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0):
        lines.append(f"to {q.name} {hexes(values)} {hexes(gguf.quants.quantize(values, q))}")
    with open(os.path.join(OUT, "blocks.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


def all_types():
    w = gguf.GGUFWriter(os.path.join(OUT, "all-types.gguf"), "nothing", use_temp_file=False)
    w.add_uint8("a.u8", 200)
    w.add_int8("a.i8", -100)
    w.add_uint16("a.u16", 60000)
    w.add_int16("a.i16", -30000)
    w.add_uint32("a.u32", 4000000000)
    w.add_int32("a.i32", -2000000000)
    w.add_float32("a.f32", 0.1)
    w.add_bool("a.true", True)
    w.add_bool("a.false", False)
    w.add_string("a.string", "h\u00e9llo")
    w.add_uint64("a.u64", 1 << 40)
    w.add_int64("a.i64", -(1 << 40))
    w.add_float64("a.f64", 1e300)
    w.add_array("a.strings", ["", "one", "two words"])
    w.add_array("a.integers", [1, -2, 3])
    w.add_array("a.numbers", [0.5, -1.5])
    w.add_array("a.booleans", [True, False])
    w.add_custom_alignment(64)
    w.add_tensor("t.matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
    w.add_tensor("t.vector", np.arange(5, dtype=np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def interleaved(weights, heads):
    """Rows of a head in llama.cpp's order: pairs (i, i + half) become neighbours."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def outside_in(family):
    """HF's names of what surrounds the layers, and in a layer; ours of GGUF."""
    if family == "gpt2":
        return ({"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"},
                "transformer.h.{}.", {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
                                      "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})
    if family == "bloom":
        return ({"transformer.word_embeddings": "token_embd",
                 "transformer.word_embeddings_layernorm": "token_embd_norm", "transformer.ln_f": "output_norm"},
                "transformer.h.{}.", {"input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv",
                                      "self_attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
                                      "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"})
    return ({"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
            "model.layers.{}.", {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
                                 "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                                 "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
                                 "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
                                 "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"})


def family(name, model, theta=10000.0, head=WIDTH // HEADS):
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
    model = model.eval()
    w = gguf.GGUFWriter(os.path.join(OUT, name + ".gguf"), name)
    w.add_type("model")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(4 * WIDTH if name in ("gpt2", "bloom") else HIDDEN)
    w.add_head_count(HEADS)
    if name in ("gpt2", "bloom"):
        w.add_layer_norm_eps(1e-5)
    else:
        w.add_head_count_kv(KEY_HEADS)
        w.add_layer_norm_rms_eps(1e-6)
        w.add_rope_freq_base(theta)
        w.add_rope_dimension_count(head)
    if name == "qwen3":
        w.add_key_length(head)
        w.add_value_length(head)
    w.add_file_type(0)
    w.add_vocab_size(VOCABULARY)
    w.add_tokenizer_model("no_vocab")
    around, layer, inside = outside_in(name)
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for n, value in weights.items():
        stem, ending = n.rsplit(".", 1)
        theirs = around.get(stem)
        for i in range(LAYERS):
            if stem.startswith(layer.format(i)):
                theirs = f"blk.{i}." + inside[stem[len(layer.format(i)):]]
        if name == "gpt2" and value.ndim == 2 and ".h." in stem:
            value = value.T
        if name == "bloom" and theirs.endswith("attn_qkv"):
            value = value.reshape(HEADS, 3, WIDTH // HEADS, -1).swapaxes(0, 1).reshape(value.shape)
        if name == "llama" and theirs.endswith("attn_q"):
            value = interleaved(value, HEADS)
        if name == "llama" and theirs.endswith("attn_k"):
            value = interleaved(value, KEY_HEADS)
        w.add_tensor(f"{theirs}.{ending}", np.ascontiguousarray(value, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    tokens = np.random.default_rng(7).integers(0, VOCABULARY, CONTEXT + 1)
    tokens.astype(np.uint16).tofile(os.path.join(OUT, "tokens.bin"))
    ids = torch.tensor(tokens[None])
    with torch.no_grad():
        logits = model.double()(ids[:, :-1]).logits[0]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()


def families():
    common = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_attention_heads=HEADS, attn_implementation="eager")
    new = dict(common, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_key_value_heads=KEY_HEADS,
               max_position_embeddings=CONTEXT, rms_norm_eps=1e-6, tie_word_embeddings=False)
    losses = {
        "gpt2": family("gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH,
                                                          n_layer=LAYERS, n_head=HEADS, attn_implementation="eager"))),
        "llama": family("llama", LlamaForCausalLM(LlamaConfig(**new))),
        "bloom": family("bloom", BloomForCausalLM(BloomConfig(n_layer=LAYERS, n_head=HEADS, **{
            k: v for k, v in common.items() if k != "num_attention_heads"}))),
        "qwen2": family("qwen2", Qwen2ForCausalLM(Qwen2Config(**new, rope_theta=1e6)), 1e6),
        "qwen3": family("qwen3", Qwen3ForCausalLM(Qwen3Config(**new, head_dim=8, rope_theta=1e6)), 1e6, 8),
    }
    with open(os.path.join(OUT, "losses.txt"), "w") as f:
        for name, loss in losses.items():
            f.write(f"{name} {loss:.9f}\n")


blocks()
all_types()
families()
