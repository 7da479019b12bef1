"""`tools/bench/parity models`: random models of transformers go through gptc and back.

Each is written by save_pretrained, imported, trained for some steps, evaluated and exported by gptc, and loaded again by
from_pretrained, which must find the validation loss that gptc found.
"""
import json
import os
import random
import struct
import subprocess
import tempfile

VOCAB, CONTEXT, TOKENS = 130, 32, 640
BASE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=CONTEXT)
EQUAL_HEADS = {k: v for k, v in BASE.items() if k != "num_key_value_heads"}
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
# Sizes that fill no tile of a kernel.
FAMILIES = {
    "gpt2": ("GPT2Config", dict(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=CONTEXT)),
    "llama": ("LlamaConfig", BASE),
    "llama, rope_type llama3": ("LlamaConfig", dict(BASE, rope_parameters=LLAMA3)),
    "mistral, window 8": ("MistralConfig", dict(BASE, sliding_window=8)),
    "qwen2, tied": ("Qwen2Config", dict(BASE, tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", dict(BASE, head_dim=16)),
    "smollm3": ("SmolLM3Config", dict(BASE, num_hidden_layers=4, pad_token_id=0)),
    "olmo2": ("Olmo2Config", dict(BASE, pad_token_id=0)),
    "gpt_neox": ("GPTNeoXConfig", dict(EQUAL_HEADS, rotary_pct=0.5)),
    "bloom": ("BloomConfig", dict(vocab_size=VOCAB, hidden_size=48, n_layer=3, n_head=4, seq_length=CONTEXT)),
    "phi": ("PhiConfig", dict(EQUAL_HEADS, partial_rotary_factor=0.5)),
    "gemma2, window 8": ("Gemma2Config", dict(BASE, head_dim=16, sliding_window=8)),
}
MOST = 1e-5  # relative difference of the losses


def losses(bin, work, name, steps):
    """gptc's validation loss and that of transformers, and the class that from_pretrained chose."""
    import torch
    import transformers

    def run(program, *args):
        done = subprocess.run([os.path.join(bin, program), *args], cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or done.stdout.strip())

    kind, values = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**values)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(os.path.join(work, "theirs"))
    run("gptc", "import", "theirs", "-o", "m.toml")
    settings = ["data.train=train.bin", "data.val=val.bin", f"train.steps={steps}", "train.micro_batch=2",
                f"model.block_size={CONTEXT}", "train.global_batch_tokens=64", "optimizer.warmup_steps=1", "optimizer.lr=1e-3", "out_dir=out",
                "eval.every=0", "eval.steps=0", "checkpoint.every=0"]
    run("gptc", "compile", "m.toml", "-o", "plan", *(w for s in settings for w in ("--set", s)))
    run("gptrun", "plan")
    run("gptc", "export", "plan", "-o", "ours")
    with open(os.path.join(work, "out", "log.jsonl"), encoding="utf-8") as log:
        found = [json.loads(line)["val_loss"] for line in log if "val_loss" in line][-1]
    model = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(work, "ours"), dtype=torch.float32).eval()
    with open(os.path.join(work, "val.bin"), "rb") as f:
        data = struct.unpack(f"<{TOKENS}H", f.read())
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, TOKENS - 1, CONTEXT):
            window = data[begin:begin + CONTEXT + 1]
            logits = model(torch.tensor([window[:-1]])).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum").item()
            count += len(window) - 1
    return found, total / count, type(model).__name__


def run_models(options, bin):
    """Prints the table; returns whether a family differs or fails."""
    import transformers

    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, {options.steps} steps\n")
    print("| family | loaded as | validation loss, gptc | transformers | relative difference |\n|---|---|---|---|---|", flush=True)
    bad = False
    draw = random.Random(1)
    files = {n: struct.pack(f"<{TOKENS}H", *(draw.randrange(VOCAB) for _ in range(TOKENS))) for n in ("train", "val")}
    for name in FAMILIES:
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as work:
            for file, content in files.items():
                with open(os.path.join(work, file + ".bin"), "wb") as f:
                    f.write(content)
            try:
                ours, theirs, kind = losses(bin, work, name, options.steps)
            except RuntimeError as e:
                print(f"| {name} | failed: {str(e).splitlines()[0]} | | | |", flush=True)
                bad = True
                continue
        off = abs(ours - theirs) / theirs
        bad = bad or not off <= MOST
        print(f"| {name} | {kind} | {ours:.7f} | {theirs:.7f} | {off:.1e} |", flush=True)
    return bad
