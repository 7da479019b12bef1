"""The settings of a peer, and how tools/bench/peers finds its best ones: pure, but for looking libraries up."""

import re
import subprocess

GAIN = 0.98  # an alternative is taken when it needs less than this share of the time: what is less is noise

# What glibc's malloc needs to keep large tensors mapped: one arena for all threads, and no mmap for each tensor.
# Without it every large result is paged in anew.
KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1000000000000", "MALLOC_TRIM_THRESHOLD_": "1000000000000"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MALLOC = {"default": {}, "kept": KEPT, "huge pages": HUGE, "kept, huge pages": {**KEPT, **HUGE}}
BINDING = {"none": {}, "close": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}}

BLAS = ("libopenblas.so.0", "libmkl_rt.so", "libblis.so.4")
ALLOCATORS = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libjemalloc.so.2")
ONEDNN = ("libdnnl.so.3", "libdnnl.so.2")
OPENMP = ("libiomp5.so", "libomp.so.5")

# What a process is started with; the others (torch_gpt.SETTINGS) are chosen within a process.
PROCESS = ("blas", "malloc", "isa", "openmp", "binding")


def listed(names, ldconfig):
    """Of these libraries those that the output of `ldconfig -p` has, as paths, in this order; one for each file."""
    paths = dict(reversed(re.findall(r"^\s*(\S+) \([^)]*x86-64[^)]*\) => (\S+)", ldconfig, re.M)))
    return list(dict.fromkeys(paths[n] for n in names if n in paths))


def found(names):
    try:
        return listed(names, subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout)
    except OSError:
        return []


def dimensions(peer, compute, sample, cpus, blas=(), allocators=(), openmp=()):
    """All that is tried: (name, values) with the default first, in the order of trial. `peer` is what torch_gpt.py
    says of itself."""
    # A token allocates little, and all it does is to read the weights: what only moves memory or threads is left out.
    every = lambda values: values[:1] if sample else values
    all_of = [
        ("blas", ["bundled", *blas]),
        ("malloc", ["default", "kept, huge pages"] if sample else [*MALLOC, *allocators]),
        ("isa", ["default", "ATEN_CPU_CAPABILITY=avx512", "MKL_ENABLE_INSTRUCTIONS=AVX512"]),
        ("openmp", every(["bundled", *openmp])),
        ("binding", every(list(BINDING))),
        ("linear", ["torch", "onednn"] if compute == "fp32" and peer["onednn_linear"] else ["torch"]),
        ("mkldnn", ["on", "off"] if compute == "fp32" else ["on"]),  # nothing else multiplies bf16 in good time
        ("adamw", every(["foreach", "fused"])),
        ("weights", ["autocast", "bf16, fp32 masters"] if compute == "bf16" and not sample else ["autocast"]),
        ("denormal", every(["kept", "flushed"])),
        ("threads", list(range(cpus, 0, -1))),
        ("compile", ["no", "default", "max-autotune-no-cudagraphs"] if peer["compile"] else ["no"]),
    ]
    return [(name, values) for name, values in all_of if len(values) > 1 or name == "compile"]


def first(dims):
    return {name: values[0] for name, values in dims}


def text(setting, dims):
    """What differs from the default, which identifies a setting: "malloc = kept, threads = 1"."""
    return (
        ", ".join(f"{k} = {short(setting[k])}" for k, values in dims if setting.get(k, values[0]) != values[0])
        or "defaults"
    )


def short(value):
    return value.rsplit("/", 1)[-1] if isinstance(value, str) else str(value)


def parse(said, dims):
    """The setting that text() says so, or None where it holds what is not there."""
    setting, values = first(dims), dict(dims)
    for part in [] if said == "defaults" else re.split(r", (?=\w+ = )", said):
        name, _, value = part.partition(" = ")
        same = [v for v in values.get(name, []) if short(v) == value]
        if not same:
            return None
        setting[name] = same[0]
    return setting


def known(peer, dims, earlier):
    """The contenders of a peer as they stood in an earlier result: of the first of its {title: text} that has them
    all, else none."""
    kinds = ["eager", "compiled"] if len(dict(dims)["compile"]) > 1 else ["eager"]
    for said in earlier:
        best = {kind: parse(said.get(f"{peer} {kind}", ""), dims) for kind in kinds}
        if all(best.values()):
            return best
    return {}


def descend(dims, trials):
    """One dimension after the other, each value tried on top of the best so far. `trials` maps text(setting) to ms,
    or to a string that says why it failed. Returns the best setting so far, None where nothing worked, and the next
    one to be tried, None where all were."""
    setting = first(dims)
    ms = trials.get(text(setting, dims))
    if ms is None:
        return None, setting
    works = not isinstance(ms, str)
    for name, values in dims:
        start = setting
        for value in values[1:]:
            other = {**start, name: value}
            t = trials.get(text(other, dims))
            if t is None:
                return setting if works else None, other
            if not isinstance(t, str) and (not works or t < GAIN * ms):
                works, ms, setting = True, t, other
    return setting if works else None, None


def contenders(dims, trials):
    """The best settings, {"eager": ..} and where there is one {"compiled": ..}, and the next one to be tried or None.
    Compilers start from the best eager setting, as every trial of theirs takes a minute."""
    eager, then = descend([d for d in dims if d[0] != "compile"], trials)
    if eager is None or then:
        return ({"eager": {**eager, "compile": "no"}} if eager else {}), then and {**then, "compile": "no"}
    best, ms = {"eager": {**eager, "compile": "no"}}, None
    for value in dict(dims).get("compile", ["no"])[1:]:
        setting = {**eager, "compile": value}
        t = trials.get(text(setting, dims))
        if t is None:
            return best, setting
        if not isinstance(t, str) and (ms is None or t < ms):
            ms, best["compiled"] = t, setting
    return best, None


def environment(setting, base, cpus):
    """Of the process: without OPENBLAS_*, which may hold anything, and with what the setting says."""
    env = {
        k: v
        for k, v in base.items()
        if not k.startswith(("OPENBLAS_", "OMP_", "KMP_", "GOMP_", "MALLOC_", "GLIBC_TUNABLES"))
    }
    env["OMP_NUM_THREADS"] = str(cpus)
    preload = [setting[k] for k in ("openmp", "blas") if setting.get(k, "bundled") != "bundled"]
    malloc = setting.get("malloc", "default")
    if malloc in MALLOC:
        env.update(MALLOC[malloc])
    else:
        preload.append(malloc)
        if "jemalloc" in malloc:  # PyTorch's own advice for CPUs
            env["MALLOC_CONF"] = (
                "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"
            )
    env.update(BINDING[setting.get("binding", "none")])
    if "=" in setting.get("isa", ""):
        name, value = setting["isa"].split("=")
        env[name] = value
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    return env


def within(setting):
    """The part that torch_gpt.py is told."""
    return {k: v for k, v in setting.items() if k not in PROCESS}
