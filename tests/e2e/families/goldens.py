"""Writes FAMILY.json beside itself: what transformers computes for a small model of each family, for families_test.cpp.

    python3 tests/e2e/families/goldens.py [FAMILY...]      (torch 2.x and transformers 5.x)

A golden has the settings of [model], tokens and targets, and of them the logits, the mean loss of targets other than -1
and its gradients, under our names and in our layouts. Weights are in no file: `fill` here and in families_test.cpp
computes them from the names. Everything is in float64, but for what transformers itself casts to float32.
"""
import json
import os
import sys

import torch
import transformers as tf

V, T, B, C, L, F = 11, 8, 2, 8, 2, 12
SIZES = {"n_layer": L, "n_embd": C, "vocab_size": V, "block_size": T}


def bits(name, i):
    h = 2166136261
    for ch in name.encode():
        h = (h ^ ch) * 16777619 & 0xFFFFFFFF
    z = (h + i * 0x9E3779B9) & 0xFFFFFFFF
    z = (z ^ z >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    z = (z ^ z >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (z ^ z >> 16) >> 8


def fill(name, shape, one):
    """A matrix: from -0.5 to 0.5; a vector: from -0.25 to 0.25, and for a gain 1 more unless norms add it."""
    n = 1
    for s in shape:
        n *= s
    t = torch.tensor([bits(name, i) / 2**24 - 0.5 for i in range(n)], dtype=torch.float64).reshape(shape)
    if len(shape) == 1:
        t = t * 0.5 + (one if name.endswith(".weight") else 0)
    return t.requires_grad_()


def parameters(m):
    """Names and shapes of the model builder's parameters."""
    heads, kv = m["n_head"], m.get("n_kv_head", m["n_head"])
    size = m.get("head_dim", C // heads)
    bias = m.get("bias", True)
    layernorm = m.get("norm", "layernorm") == "layernorm"
    where = m.get("norm_position", "pre")
    p = {}

    def linear(name, rows, columns, has):
        p[name + ".weight"] = (rows, columns)
        if m.get(has, bias) if has else bias:
            p[name + ".bias"] = (columns,)

    def norm(name):
        p[name + ".weight"] = (C,)
        if layernorm and bias:
            p[name + ".bias"] = (C,)

    p["wte.weight"] = (V, C)
    if m.get("position", "learned") == "learned":
        p["wpe.weight"] = (T, C)
    if m.get("token_types"):
        p["wtt.weight"] = (m["token_types"], C)
    if m.get("embedding_norm"):
        norm("word_embeddings_layernorm")
    for l in range(L):
        h = f"h.{l}."
        if where != "output" and (l or m.get("first_norm", True)):
            norm(h + "ln_1")
        linear(h + "attn.c_attn", C, (heads + 2 * kv) * size, "qkv_bias")
        if m.get("qk_norm"):
            whole = m["qk_norm"] == "whole"
            p[h + "attn.q_norm.weight"] = (heads * size if whole else size,)
            p[h + "attn.k_norm.weight"] = (kv * size if whole else size,)
        linear(h + "attn.c_proj", heads * size, C, "attention_bias")
        if where in ("output", "both"):
            norm(h + "ln_1_out")
            norm(h + "ln_2_out")
        if where != "output" and not m.get("shared_norm"):
            norm(h + "ln_2")
        if m["activation"] in ("swiglu", "geglu", "geglu_tanh"):
            linear(h + "mlp.c_gate", C, m["ffn_dim"], "mlp_bias")
        linear(h + "mlp.c_fc", C, m["ffn_dim"], "mlp_bias")
        linear(h + "mlp.c_proj", m["ffn_dim"], C, "mlp_bias")
    if where != "post":
        norm("ln_f")
    if m.get("head_transform"):
        linear("head.dense", C, C, None)
        norm("head.norm")
    if not m.get("tie_embeddings", True):
        p["lm_head.weight"] = (V, C)
    if m.get("head_bias"):
        p["lm_head.bias"] = (V,)
    one = 0 if m.get("norm_plus_one") else 1
    return {name: fill(name, shape, one) for name, shape in p.items()}


def of_layer(p, l, kind):
    return p[f"h.{l}.{kind}"]


def split(m, t):
    """Queries, keys and values of the last dimension."""
    heads, kv = m["n_head"], m.get("n_kv_head", m["n_head"])
    size = m.get("head_dim", C // heads)
    return torch.split(t, [heads * size, kv * size, kv * size], dim=-1)


def per_head(m, t):
    """Rows of each head's query, key and value side by side, as BLOOM and GPT-NeoX have them."""
    heads = m["n_head"]
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1) for x in split(m, t))
    return torch.stack([q, k, v], dim=-2).flatten(-3)


# From our parameters to transformers' names and layouts.


def gpt2(m, p):
    return {("lm_head." if n.startswith("lm_head") else "transformer.") + n: t for n, t in p.items()} | {
        "lm_head.weight": p["wte.weight"]}


def llama_like(m, p):
    out = {"model.embed_tokens.weight": p["wte.weight"], "model.norm.weight": p["ln_f.weight"],
           "lm_head.weight": p.get("lm_head.weight", p["wte.weight"])}
    names = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "ln_1_out": "post_attention_layernorm",
             "ln_2_out": "post_feedforward_layernorm", "attn.q_norm": "self_attn.q_norm",
             "attn.k_norm": "self_attn.k_norm"}
    if m.get("norm_position") == "both":
        names["ln_2"] = "pre_feedforward_layernorm"
    matrices = {"attn.c_proj": "self_attn.o_proj", "mlp.c_gate": "mlp.gate_proj", "mlp.c_fc": "mlp.up_proj",
                "mlp.c_proj": "mlp.down_proj"}
    for l in range(L):
        h, to = f"h.{l}.", f"model.layers.{l}."
        for ours, theirs in names.items():
            if h + ours + ".weight" in p:
                out[f"{to}{theirs}.weight"] = p[h + ours + ".weight"]
        for ours, theirs in matrices.items():
            out[f"{to}{theirs}.weight"] = p[h + ours + ".weight"].T
        for part in ("weight", "bias"):
            if f"{h}attn.c_attn.{part}" in p:
                for one, t in zip("qkv", split(m, p[f"{h}attn.c_attn.{part}"])):
                    out[f"{to}self_attn.{one}_proj.{part}"] = t.T if t.dim() == 2 else t
    return out


def phi(m, p):
    out = {"model.embed_tokens.weight": p["wte.weight"]}
    for part in ("weight", "bias"):
        out[f"model.final_layernorm.{part}"] = p[f"ln_f.{part}"]
        out[f"lm_head.{part}"] = p[f"lm_head.{part}"]
        for l in range(L):
            h, to = f"h.{l}.", f"model.layers.{l}."
            turn = (lambda t: t.T) if part == "weight" else (lambda t: t)
            out[f"{to}input_layernorm.{part}"] = p[f"{h}ln_1.{part}"]
            for one, t in zip("qkv", split(m, p[f"{h}attn.c_attn.{part}"])):
                out[f"{to}self_attn.{one}_proj.{part}"] = turn(t)
            for ours, theirs in {"attn.c_proj": "self_attn.dense", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}.items():
                out[f"{to}{theirs}.{part}"] = turn(p[f"{h}{ours}.{part}"])
    return out


def heads_together(m, p, names, of_layers, layers):
    out = {}
    for part in ("weight", "bias"):
        turn = (lambda t: t.T) if part == "weight" else (lambda t: t)
        for ours, theirs in names.items():
            if f"{ours}.{part}" in p:
                out[f"{theirs}.{part}"] = p[f"{ours}.{part}"]
        for l in range(L):
            h, to = f"h.{l}.", f"{layers}.{l}."
            for ours, theirs in of_layers.items():
                t = p[f"{h}{ours}.{part}"]
                if ours == "attn.c_attn":
                    t = per_head(m, t)
                out[f"{to}{theirs}.{part}"] = turn(t) if not ours.startswith("ln") else t
    return out


def gpt_neox(m, p):
    return heads_together(m, p, {"wte": "gpt_neox.embed_in", "ln_f": "gpt_neox.final_layer_norm", "lm_head": "lm_head"},
                          {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
                           "attn.c_attn": "attention.query_key_value", "attn.c_proj": "attention.dense",
                           "mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h"}, "gpt_neox.layers")


def bloom(m, p):
    return heads_together(m, p, {"wte": "transformer.word_embeddings",
                                 "word_embeddings_layernorm": "transformer.word_embeddings_layernorm",
                                 "ln_f": "transformer.ln_f"},
                          {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
                           "attn.c_attn": "self_attention.query_key_value", "attn.c_proj": "self_attention.dense",
                           "mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h"},
                          "transformer.h") | {"lm_head.weight": p["wte.weight"]}


def bert(m, p):
    out = {"bert.embeddings.word_embeddings.weight": p["wte.weight"],
           "bert.embeddings.position_embeddings.weight": p["wpe.weight"],
           "bert.embeddings.token_type_embeddings.weight": p["wtt.weight"],
           "cls.predictions.decoder.weight": p["wte.weight"], "cls.predictions.decoder.bias": p["lm_head.bias"],
           "cls.predictions.bias": p["lm_head.bias"]}
    for part in ("weight", "bias"):
        turn = (lambda t: t.T) if part == "weight" else (lambda t: t)
        out[f"bert.embeddings.LayerNorm.{part}"] = p[f"word_embeddings_layernorm.{part}"]
        out[f"cls.predictions.transform.dense.{part}"] = turn(p[f"head.dense.{part}"])
        out[f"cls.predictions.transform.LayerNorm.{part}"] = p[f"head.norm.{part}"]
        for l in range(L):
            h, to = f"h.{l}.", f"bert.encoder.layer.{l}."
            for one, t in zip(("query", "key", "value"), split(m, p[f"{h}attn.c_attn.{part}"])):
                out[f"{to}attention.self.{one}.{part}"] = turn(t)
            for ours, theirs in {"attn.c_proj": "attention.output.dense", "mlp.c_fc": "intermediate.dense",
                                 "mlp.c_proj": "output.dense"}.items():
                out[f"{to}{theirs}.{part}"] = turn(p[f"{h}{ours}.{part}"])
            out[f"{to}attention.output.LayerNorm.{part}"] = p[f"{h}ln_1.{part}"]
            out[f"{to}output.LayerNorm.{part}"] = p[f"{h}ln_2.{part}"]
    return out


def modernbert(m, p):
    out = {"model.embeddings.tok_embeddings.weight": p["wte.weight"],
           "model.embeddings.norm.weight": p["word_embeddings_layernorm.weight"],
           "model.final_norm.weight": p["ln_f.weight"], "head.dense.weight": p["head.dense.weight"].T,
           "head.norm.weight": p["head.norm.weight"], "decoder.weight": p["wte.weight"],
           "decoder.bias": p["lm_head.bias"]}
    for l in range(L):
        h, to = f"h.{l}.", f"model.layers.{l}."
        for ours, theirs in {"ln_1": "attn_norm", "ln_2": "mlp_norm"}.items():
            if h + ours + ".weight" in p:
                out[f"{to}{theirs}.weight"] = p[f"{h}{ours}.weight"]
        for ours, theirs in {"attn.c_attn": "attn.Wqkv", "attn.c_proj": "attn.Wo", "mlp.c_proj": "mlp.Wo"}.items():
            out[f"{to}{theirs}.weight"] = p[f"{h}{ours}.weight"].T
        out[f"{to}mlp.Wi.weight"] = torch.cat([p[f"{h}mlp.{part}.weight"].T for part in ("c_gate", "c_fc")])
    return out


def common(heads, kv=None, **more):
    c = dict(vocab_size=V, hidden_size=C, intermediate_size=F, num_hidden_layers=L, num_attention_heads=heads,
             max_position_embeddings=T, bos_token_id=0, eos_token_id=0, pad_token_id=None)
    if kv:
        c["num_key_value_heads"] = kv
    return c | more


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta} | more


LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "bias": False, "ffn_dim": F,
         "tie_embeddings": False, "norm_eps": 1e-6}

# Family: keys of [model], a model of transformers, from our parameters to its.
FAMILIES = {
    "gpt2": ({"n_head": 2, "activation": "gelu_tanh", "ffn_dim": 4 * C},
             lambda: tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=2,
                                                      bos_token_id=0, eos_token_id=0, attn_pdrop=0, embd_pdrop=0,
                                                      resid_pdrop=0)), gpt2),
    "llama": (LLAMA | {"n_head": 1, "n_kv_head": 1, "rope_theta": 100.0, "rope_scaling": "llama3", "rope_factor": 8.0,
                       "rope_original_block_size": 64, "rope_low_freq_factor": 1.0, "rope_high_freq_factor": 4.0},
              lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**common(1, 1, tie_word_embeddings=False,
                  rope_parameters=rope(100.0, rope_type="llama3", factor=8.0, original_max_position_embeddings=64,
                                       low_freq_factor=1.0, high_freq_factor=4.0)))), llama_like),
    "mistral": (LLAMA | {"n_head": 4, "n_kv_head": 2, "window": 3},
                lambda: tf.MistralForCausalLM(tf.MistralConfig(**common(4, 2, sliding_window=3, head_dim=2,
                    tie_word_embeddings=False, rope_parameters=rope(10000.0)))), llama_like),
    "qwen2": (LLAMA | {"n_head": 1, "n_kv_head": 1, "qkv_bias": True, "tie_embeddings": True, "rope_theta": 100.0,
                       "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_block_size": 32},
              lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**common(1, 1, tie_word_embeddings=True,
                  rope_parameters=rope(100.0, rope_type="yarn", factor=4.0,
                                       original_max_position_embeddings=32)))), llama_like),
    "qwen3": (LLAMA | {"n_head": 4, "n_kv_head": 2, "head_dim": 6, "qk_norm": "head", "rope_theta": 1e6},
              lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**common(4, 2, head_dim=6, tie_word_embeddings=False,
                  rope_parameters=rope(1e6)))), llama_like),
    "smollm3": (LLAMA | {"n_head": 2, "n_kv_head": 1, "layers_without_rope": [1], "rope_theta": 50000.0,
                         "tie_embeddings": True, "rope_scaling": "linear", "rope_factor": 2.0},
                lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**common(2, 1, no_rope_layers=[1, 0],
                    use_sliding_window=False, tie_word_embeddings=True,
                    rope_parameters=rope(50000.0, rope_type="linear", factor=2.0)))), llama_like),
    "olmo2": (LLAMA | {"n_head": 4, "n_kv_head": 2, "qk_norm": "whole", "norm_position": "output"},
              lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**common(4, 2, tie_word_embeddings=False, rms_norm_eps=1e-6,
                  rope_parameters=rope(10000.0)))), llama_like),
    "gemma2": ({"norm": "rmsnorm", "activation": "geglu_tanh", "position": "rope", "bias": False, "ffn_dim": F,
                "norm_eps": 1e-6, "n_head": 2, "n_kv_head": 1, "head_dim": 6, "norm_position": "both",
                "norm_plus_one": True, "attention_scale": 5.0**-0.5, "attention_softcap": 2.0, "logit_softcap": 3.0,
                "embedding_scale": C**0.5, "window": 3, "layers_without_window": [1]},
               lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**common(2, 1, head_dim=6, query_pre_attn_scalar=5,
                   attn_logit_softcapping=2.0, final_logit_softcapping=3.0, sliding_window=3,
                   hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
                   layer_types=["sliding_attention", "full_attention"], rope_parameters=rope(10000.0)))), llama_like),
    "phi": ({"n_head": 1, "activation": "gelu_tanh", "position": "rope", "ffn_dim": F, "rotary_dim": 4,
             "parallel_residual": True, "shared_norm": True, "head_bias": True, "tie_embeddings": False},
            lambda: tf.PhiForCausalLM(tf.PhiConfig(**common(1, hidden_act="gelu_new", tie_word_embeddings=False,
                resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, qk_layernorm=False, layer_norm_eps=1e-5,
                rope_parameters=rope(10000.0, partial_rotary_factor=0.5)))), phi),
    "gpt_neox": ({"n_head": 2, "activation": "gelu", "position": "rope", "ffn_dim": F, "rotary_dim": 2,
                  "parallel_residual": True, "tie_embeddings": False},
                 lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**common(2, hidden_act="gelu", layer_norm_eps=1e-5,
                     attention_bias=True, use_parallel_residual=True, tie_word_embeddings=False,
                     rope_parameters=rope(10000.0, partial_rotary_factor=0.5)))), gpt_neox),
    "bloom": ({"n_head": 2, "activation": "gelu_tanh", "position": "alibi", "embedding_norm": True, "ffn_dim": 4 * C},
              lambda: tf.BloomForCausalLM(tf.BloomConfig(vocab_size=V, hidden_size=C, n_layer=L, n_head=2,
                  hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0)), bloom),
    "bert": ({"n_head": 2, "activation": "gelu", "causal": False, "embedding_norm": True, "ffn_dim": F,
              "norm_position": "post", "token_types": 2, "head_transform": True, "head_bias": True,
              "norm_eps": 1e-12},
             lambda: tf.BertForMaskedLM(tf.BertConfig(vocab_size=V, hidden_size=C, num_hidden_layers=L,
                 num_attention_heads=2, intermediate_size=F, max_position_embeddings=T, type_vocab_size=2,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None)), bert),
    "modernbert": ({"n_head": 2, "activation": "geglu", "position": "rope", "causal": False, "bias": False, "ffn_dim": F,
                    "embedding_norm": True, "rope_theta": 1000.0, "window": 3, "layers_without_window": [0],
                    "window_rope_theta": 50.0, "first_norm": False, "head_transform": True, "head_bias": True},
                   lambda: tf.ModernBertForMaskedLM(tf.ModernBertConfig(**common(2, local_attention=4,
                       rope_parameters={"full_attention": rope(1000.0), "sliding_attention": rope(50.0)}))), modernbert),
}


def text(value):
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else json.dumps(value)


def numbers(t):
    return [float(f"{v:.8g}") for v in t.detach().flatten().tolist()]


def write(name):
    m, make, mapped = FAMILIES[name]
    m = SIZES | m
    torch.manual_seed(1)
    model = make()
    model.config._attn_implementation = "eager"
    model = model.double().eval()
    p = parameters(m)
    theirs = mapped(m, p)
    known = dict(model.named_parameters(remove_duplicate=False))
    assert set(known) <= set(theirs), sorted(set(known) - set(theirs))
    assert set(theirs) <= set(known), sorted(set(theirs) - set(known))
    for n, t in theirs.items():
        assert t.shape == known[n].shape, (n, t.shape, known[n].shape)
    x = torch.tensor([bits("x", i) % V for i in range(B * T)]).reshape(B, T)
    y = torch.tensor([-1 if i % 7 == 3 else bits("y", i) % V for i in range(B * T)]).reshape(B, T)
    kwargs = {"attention_mask": torch.ones(B, T, dtype=torch.long)}
    if name not in ("bert", "modernbert"):
        kwargs["use_cache"] = False
    logits = torch.func.functional_call(model, theirs, (x,), kwargs).logits.double()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), y.reshape(-1), ignore_index=-1)
    gradients = torch.autograd.grad(loss, list(p.values()))
    golden = {"model": [f"model.{k}={text(v)}" for k, v in m.items()], "x": x.flatten().tolist(),
              "y": y.flatten().tolist(), "loss": numbers(loss)[0], "logits": numbers(logits),
              "gradients": {n: numbers(g) for n, g in zip(p, gradients)}}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".json")
    with open(path, "w") as f:
        f.write("{" + ",\n".join(f'"{k}": {json.dumps(v)}' if k != "gradients" else '"gradients": {\n' + ",\n".join(
            f'"{n}": {json.dumps(g)}' for n, g in v.items()) + "}" for k, v in golden.items()) + "}\n")
    print(name, float(loss), os.path.getsize(path))


for family in sys.argv[1:] or FAMILIES:
    write(family)
