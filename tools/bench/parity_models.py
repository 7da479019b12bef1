"""`tools/bench/parity models`: random models of transformers go through gptc and back.

Each is written by save_pretrained, imported, trained for some steps, evaluated and exported by gptc, and loaded again by
from_pretrained, which must find the validation loss that gptc found. An encoder's is that of masked tokens, which are
masked here as gptc does.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

VOCAB, CONTEXT, TOKENS = 130, 32, 640
MOST = 1e-5  # relative difference of the losses
ENCODERS = ("bert", "modernbert")


def families(context):
    """Family: class of its configuration in transformers, and the arguments. Sizes fill no tile of a kernel."""
    base = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=context)
    equal_heads = {k: v for k, v in base.items() if k != "num_key_value_heads"}
    llama3 = dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=context // 2)
    return {
        "gpt2": ("GPT2Config", dict(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=context)),
        "llama": ("LlamaConfig", base),
        "llama, rope_type llama3": ("LlamaConfig", dict(base, rope_parameters=llama3)),
        "mistral, window 8": ("MistralConfig", dict(base, sliding_window=8)),
        "qwen2, tied": ("Qwen2Config", dict(base, tie_word_embeddings=True)),
        "qwen3": ("Qwen3Config", dict(base, head_dim=16)),
        "smollm3": ("SmolLM3Config", dict(base, num_hidden_layers=4, pad_token_id=0)),
        "olmo2": ("Olmo2Config", dict(base, pad_token_id=0)),
        "gpt_neox": ("GPTNeoXConfig", dict(equal_heads, rotary_pct=0.5)),
        "bloom": ("BloomConfig", dict(vocab_size=VOCAB, hidden_size=48, n_layer=3, n_head=4, seq_length=context)),
        "phi": ("PhiConfig", dict(equal_heads, partial_rotary_factor=0.5)),
        "gemma2, window 8": ("Gemma2Config", dict(base, head_dim=16, sliding_window=8)),
        "bert": ("BertConfig", equal_heads),
        "modernbert": ("ModernBertConfig", dict(equal_heads, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                                cls_token_id=1, sep_token_id=2)),
    }


def chosen(options, names):
    """Those of the names that hold --only. Ends the program where none does: a table without rows proves nothing."""
    some = [n for n in names if options.only in n]
    if not some:
        sys.exit(f"parity: --only {options.only} matches nothing; there are: {'; '.join(names)}")
    return some


def auto_class(family):
    import transformers

    return transformers.AutoModelForMaskedLM if family in ENCODERS else transformers.AutoModelForCausalLM


class Work:
    """gptc's programs in a folder."""

    def __init__(self, bin, folder):
        self.bin, self.folder = bin, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, program, *args):
        """What it prints to standard output. RuntimeError with its message if it fails."""
        done = subprocess.run([os.path.join(self.bin, program), *args], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def compile(self, plan, *settings):
        self.run("gptc", "compile", "m.toml", "-o", plan, *(w for s in settings for w in ("--set", s)))

    def last_validation_loss(self):
        with open(self.path("out/log.jsonl"), encoding="utf-8") as log:
            return [json.loads(line)["val_loss"] for line in log if "val_loss" in line][-1]


def train(work, family, context, steps, lr=1e-3):
    """Makes a random model of the family, trains it on train.bin and exports it into the folder "ours". Returns the
    settings of its plan, which runs in out, and the last validation loss."""
    import torch
    import transformers

    kind, values = families(context)[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**values)
    auto_class(family).from_config(config).save_pretrained(work.path("theirs"))
    work.run("gptc", "import", "theirs", "-o", "m.toml")
    settings = ["data.train=train.bin", "data.val=val.bin", f"train.steps={steps}", "train.micro_batch=2",
                f"model.block_size={context}", f"train.global_batch_tokens={2 * context}", "optimizer.warmup_steps=1",
                f"optimizer.lr={lr}", "out_dir=out", "eval.every=0", "eval.steps=0", "checkpoint.every=0"]
    work.compile("plan", *settings)
    work.run("gptrun", "plan")
    work.run("gptc", "export", "plan", "-o", "ours")
    return settings, work.last_validation_loss()


def exported(work, family):
    """Our export, loaded by transformers."""
    import torch

    return auto_class(family).from_pretrained(work.path("ours"), dtype=torch.float32).eval()


def windows(file, context):
    """The windows that gptc evaluates, each with the target of its last token."""
    with open(file, "rb") as f:
        content = f.read()
    data = struct.unpack(f"<{len(content) // 2}H", content)
    return [data[begin:begin + context + 1] for begin in range(0, len(data) - 1, context)]


# ---- masked tokens: ir/random.h and runtime/data/masking.h once more ---------------------------------------------------

WORD = 0xFFFFFFFF


def random_key(step, stream, sequence):
    """Two words of Philox4x32-10 with seed 0."""
    c, k0, k1 = (step, 0, stream, sequence), 0, 0
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = (b >> 32 ^ c[1] ^ k0, b & WORD, a >> 32 ^ c[3] ^ k1, a & WORD)
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c[:2]


def random_bits(key, index):
    h = (index + (index >> 32) * 0x9E3779B1 ^ key[0]) & WORD
    h = (h ^ h >> 16) * 0x7FEB352D & WORD
    h = (h ^ h >> 15 ^ key[1]) * 0x846CA68B & WORD
    return h ^ h >> 16


def masked_windows(file, context, mask):
    """The windows that gptc evaluates an encoder with: tokens, and the targets, -100 where there is none."""
    with open(file, "rb") as f:
        content = f.read()
    data = struct.unpack(f"<{len(content) // 2}H", content)
    for window, start in enumerate(range(0, len(data) - 1, context)):
        count = min(context, len(data) - 1 - start)
        before = min(start, context - count)  # text before a short window serves as context
        x, y = list(data[start - before:start + count]), [-100] * (before + count)
        key = random_key(1, 0xDA7A0004, window)
        chosen = [i for i in range(count) if (random_bits(key, 4 * i) >> 8) / 2**24 < 0.15]
        for i in chosen or [random_bits(key, 2**64 - 1) % count]:
            y[before + i] = x[before + i]
            fate = (random_bits(key, 4 * i + 1) >> 8) / 2**24
            if fate < 0.9:
                x[before + i] = mask if fate < 0.8 else random_bits(key, 4 * i + 2) % mask
        yield x, y


# ---- validation losses -----------------------------------------------------------------------------------------------


def losses(bin, folder, name, steps):
    """gptc's validation loss and that of transformers, and the class that from_pretrained chose."""
    import torch

    work = Work(bin, folder)
    found = train(work, name, CONTEXT, steps)[1]
    model = exported(work, name)
    if name in ENCODERS:
        pairs = list(masked_windows(work.path("val.bin"), CONTEXT, VOCAB - 1))
    else:
        pairs = [(w[:-1], w[1:]) for w in windows(work.path("val.bin"), CONTEXT)]
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in pairs:
            logits = model(torch.tensor([x])).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(y), reduction="sum").item()
            count += sum(t >= 0 for t in y)
    return found, total / count, type(model).__name__


def run_models(options, bin):
    """Prints the table; returns whether a family differs or fails."""
    names = chosen(options, families(CONTEXT))
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, {options.steps} steps\n")
    print("| family | loaded as | validation loss, gptc | transformers | relative difference |\n|---|---|---|---|---|", flush=True)
    bad = False
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            draw = random.Random(1)
            for file in ("train.bin", "val.bin"):
                with open(os.path.join(work, file), "wb") as f:  # an encoder's last token is its mask
                    f.write(struct.pack(f"<{TOKENS}H", *(draw.randrange(VOCAB - (name in ENCODERS)) for _ in range(TOKENS))))
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
