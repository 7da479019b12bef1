# Of tools/gpu-check: what a GPU does against what it should do.

# ---- kernels

# FILTER: the last line says how many cases there were. What became of each is among the logs: one that fails hides no
# other, and after a CUDA error a new process goes on behind it.
run_tests() {
  "$device_test" --gtest_filter="$1" --gtest_brief=1 --case-seconds 20 --results "$keep/logs/cases-${1//[^A-Za-z]/}.jsonl" \
    >"$work/tests" 2>&1
  local code=$?
  cat "$work/tests"
  grep -hE ' cases of ' "$work/tests" | paste -sd ';'
  if [ $code -ne 0 ]; then grep '^failed: ' "$work/tests" || true; fi
  return $code
}
lanes() {
  run_tests 'DeviceLayer.*' || return
  echo "every function, every lane: as the shim says"
}

# Small cases of what shares memory between threads: matmul by tensor cores and by multiply-adds, attention forward and
# backward, sums over rows, scattered sums. initcheck has results and workspaces left uninitialised.
checked_cases='^(NarrowStorage/|Matmul/.* (35x37x39|33x35x100)|Attention/.* 19 tokens'
checked_cases+='|EveryOp/(embedding|embedding_grad|layernorm_grad|layernorm_grad_params|cross_entropy_grad) 0\.[01]$)'
sanitizer() {
  local tool kind options said=$work/sanitizer code
  tool=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null) ||
    { echo "compute-sanitizer is not here"; return 77; }
  for kind in memcheck racecheck initcheck; do
    options=(--one-process --cases "$checked_cases" --results "$keep/logs/cases-$kind.jsonl")
    if [ $kind = initcheck ]; then options+=(--uninitialised); fi
    timeout -k 2 38 "$tool" --tool $kind --error-exitcode 9 --print-limit 20 "$device_test" --gtest_filter='Device.*' \
      --gtest_brief=1 "${options[@]}" >"$said" 2>&1
    code=$?
    cat "$said"
    case $code in 0) continue ;; 124 | 137) echo "$kind takes longer than 38 s"; return 1 ;; esac
    # Where it does not start it has found nothing.
    if ! grep -qiE 'invalid|hazard|race reported|uninitialized|misaligned|^failed: ' "$said"; then
      grep -m 1 -iE 'not supported|unsupported' "$said" | sed -E 's/^=* *//' && return 77
    fi
    echo "$kind: $(grep -m 1 -iE 'invalid|hazard|race reported|uninitialized|misaligned|^failed: ' "$said" |
      sed -E 's/^=* *//') $(grep -oE '[A-Za-z0-9_]+_[0-9a-f]{8}_p[0-9]+' "$said" | sort -u | paste -sd ' ')"
    return 1
  done
  echo "memcheck, racecheck and initcheck are silent: $(grep -oE '^[A-Za-z]+: [0-9]+ cases' "$said" | paste -sd ',')"
}

# ---- training: ten steps on the GPU and on the CPU

losses() { sed -nE 's/.*"step": ([0-9]+), "loss": ([-+.0-9a-z]+).*/\1 \2/p' "$1/log.jsonl"; }

both_train() { # NAME EXAMPLE SETTINGS...: ten steps on either
  local plan=$1 example=$2 target
  shift 2
  for target in cuda cpu; do
    compile_for $target "$example" "$work/plan-$plan-$target" "${data[@]}" "out_dir=$work/out-$plan-$target" \
      train.steps=10 "${brief[@]}" "$@" || return
    run "$work/plan-$plan-$target" || return 1
  done
}
compare_losses() { # NAME BOUND relative|absolute
  paste <(losses "$work/out-$1-cuda") <(losses "$work/out-$1-cpu") | awk -v bound="$2" -v how="$3" '
    {d = $2 - $4; if (d < 0) d = -d; if (how == "relative") d /= $4; if (d > worst || d != d) worst = d
     n += $1 == $3; if (n == 1) first = $2; last = $2}
    END {printf "%d steps, losses differ by at most %.1e%s, bound %.1e\n", n, worst,
                how == "relative" ? "" : sprintf(" on the way from %.3f to %.3f", first, last), bound
         exit !(n == 10 && worst <= bound && (how == "relative" || last < first))}'
}

# The order of sums is the only difference there is in f32.
ten_steps() { # EXAMPLE SETTINGS...
  both_train "$1" "$@" || return
  compare_losses "$1" 1e-4 relative
}

# In bf16 products are calls of cuBLASLt and attention is one of cuDNN where these are found. A sum in another order may
# round to the neighbour, 2^-8 off; a value goes through no more roundings than @eval has kernels. So logits, at most
# |row of wte| sqrt(C), are off by as many times 2^-8 of that, and the loss by twice as much. Of V rows of C normal
# elements of deviation 0.02 none is longer than 0.02 (sqrt(C) + 6), but for one case in 10^5; and each step of Adam
# moves an element by 1.1 lr at most.
bf16_steps() { # C: one layer of that width
  local c=$1 kernels how
  shift
  both_train bf16 shakespeare-char precision.compute=bf16 model.n_layer=1 model.n_head=2 model.n_embd="$c" \
    optimizer.lr=1e-3 model.block_size=128 train.micro_batch=6 train.global_batch_tokens=768 "$@" || return
  how=$(calls_of "$work/plan-bf16-cuda") || { echo "$how"; return 1; }
  kernels=$(grep -o '"eval\.[0-9]*"' "$work/plan-bf16-cpu/schedules.json" | wc -l)
  local bound
  bound=$(awk -v c="$c" -v kernels="$kernels" 'BEGIN {
    row = 0.02 * (sqrt(c) + 6) + 10 * 1.1e-3 * sqrt(c); print 2 * kernels / 256 * row * sqrt(c)}')
  echo "$(compare_losses bf16 "$bound" absolute); $how"
  compare_losses bf16 "$bound" absolute >/dev/null
}

# ---- sampling: the likeliest tokens by either, with weights that the GPU has trained

# In f32 logits differ by some 1e-6 of their size. After so many steps the two likeliest tokens are seldom as close.
same_tokens() { # EXAMPLE SETTINGS...
  local example=$1 target
  shift
  for target in cuda cpu; do
    compile_for $target "$example" "$work/plan-tokens-$target" "${data[@]}" "out_dir=$work/out-tokens" \
      "train.steps=$token_steps" "${brief[@]}" log.every=50 "$@" || return
  done
  run "$work/plan-tokens-cuda" --resume never || return 1
  for target in cuda cpu; do
    "$bin/gptrun" sample "$work/plan-tokens-$target" --out-dir "$work/out-tokens" --temperature 0 --max-tokens $tokens \
      --prompt the >"$work/tokens-$target" || return 1
  done
  rm -rf "$work/out-tokens"
  [ "$(wc -c <"$work/tokens-cuda")" -ge $tokens ] && cmp "$work/tokens-cuda" "$work/tokens-cpu" ||
    { head -c 300 "$work"/tokens-*; echo; echo "the GPU has chosen other tokens than the CPU"; return 1; }
  echo "$tokens tokens: those of the CPU"
}

# ---- several GPUs: in the order of a tree two give the bits of one

# Generated kernels: a library's may add in another order where a rank has another share of the batch.
two_ranks() {
  local gpus n newest states=() bytes
  gpus=$(grep -cE '^GPU [0-9]+ ' "$work/doctor")
  [ "$gpus" -ge 2 ] || { echo "$gpus GPU: nothing to compare"; return 77; }
  has NCCL '[0-9]' || { echo "NCCL is not here"; return 77; }
  compile_for cuda shakespeare-char "$work/plan-ranks" "${data[@]}" train.steps=10 "${brief[@]}" "${tiny[@]}" \
    compile.library_calls=off parallel.logical_shards=2 train.micro_batch=1 || return
  for n in 1 2; do
    run "$work/plan-ranks" --ranks-per-node $n --out-dir "$work/out-ranks-$n" || return 1
    # Two ranks write their parts. One more step on one, which is the same from the same state, writes the whole.
    run "$work/plan-ranks" --ranks-per-node 1 --steps 11 --out-dir "$work/out-ranks-$n" || return 1
    newest=$(ls -d "$work/out-ranks-$n"/checkpoints/step-* | sort -V | tail -1)
    states+=("$(cat "$newest"/*.safetensors | sha256sum)")
    bytes=$(cat "$newest"/*.safetensors | wc -c)
  done
  [ "$bytes" -gt 1000 ] && [ "${states[0]}" = "${states[1]}" ] ||
    { echo "after 10 steps two GPUs have other weights or moments than one"; return 1; }
  echo "10 steps: all $bytes bytes of weights and moments are those of one GPU"
}

proof() {
  local example width=128 tokens=200 token_steps=400
  if $small; then width=32 tokens=20 token_steps=10; fi
  check "device layer" 60 lanes
  check "conformance" 150 run_tests 'Device.*'
  check "ten steps, shakespeare-char" 60 ten_steps shakespeare-char "${tiny[@]}" model.dropout=0.1
  for example in llama-small bloom-small encoder-small; do
    check "ten steps, $example" 60 ten_steps $example "${tiny[@]}"
  done
  check "ten steps, bf16" 60 bf16_steps $width "${tiny[@]:3}"
  check "tokens, llama-small" 60 same_tokens llama-small "${tiny[@]}"
  $small || check "tokens, shakespeare-char" 60 same_tokens shakespeare-char
  check "ranks: two GPUs" 120 two_ranks
  check "compute-sanitizer" 120 sanitizer
}
