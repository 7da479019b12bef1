# Of tools/gpu-check: how fast it is. What counts most comes first, in case that the time does not last.

peak=989 # TFLOP/s of an H200 in bf16 without sparsity, by its data sheet

# Sizes: layers, heads, width.
sizes() {
  gib=$(grep -oE '[0-9.]+ GiB' <<<"$device" | head -n 1 | cut -d. -f1)
  gib=${gib:-0}
  # Of 1024 tokens 16 sequences take some 9 GiB, and more in PyTorch, and 64 some 29.
  gpt2_size=(12 12 768) block=1024 batch=16 large_batch=64 vocab=50257
  if [ "$gib" -lt 20 ]; then batch=4; fi
  gpt_1b3_size=(24 16 2048) gpt2_xl_size=(48 25 1600) xl_block=2048 xl_batch=4
  nano=(model.n_layer=6 model.n_head=6 model.n_embd=384 model.block_size=256 train.micro_batch=64
    train.global_batch_tokens=16384)
  nano_steps=200 steps=30 xl_steps=10
  if $small; then
    gpt2_size=(1 1 32) block=32 batch=2 large_batch=2 vocab=256
    gpt_1b3_size=(1 1 32) gpt2_xl_size=(1 1 32) xl_block=64 xl_batch=1
    nano=("${tiny[@]}") nano_steps=4 steps=3 xl_steps=2
  fi
}

# compile_gpt2 PLAN LAYERS HEADS C T MICRO-BATCH ACCUMULATED SETTINGS...: GPT-2 of that size on random tokens of the
# whole vocabulary. Compiling times cuBLASLt's algorithms, for two seconds; it is repeated until all are known.
compile_gpt2() {
  local plan=$1 layers=$2 heads=$3 c=$4 t=$5 micro=$6 accumulated=$7 turn known
  shift 7
  for turn in 1 2 3 4; do
    compile_for cuda gpt2-124m "$work/plan-$plan" "data.train=$work/random.bin" "data.val=$work/random.bin" \
      "data.tokenizer=$work/data/tokenizer.json" "out_dir=$work/out-$plan" "model.n_layer=$layers" \
      "model.n_head=$heads" "model.n_kv_head=$heads" "model.n_embd=$c" "model.ffn_dim=$((4 * c))" \
      "model.block_size=$t" "model.vocab_size=$vocab" "train.micro_batch=$micro" \
      "train.global_batch_tokens=$((micro * t * accumulated))" precision.compute=bf16 "${brief[@]}" "$@" || return
    known=$(grep -oE '[0-9]+ products: .*' "$work/plan-$plan.compile") || break
    # 25 products: 24 timed, 1 known, ...
    if awk '{exit !($1 == $3 + $5)}' <<<"$known"; then break; fi
  done
  calls_of "$work/plan-$plan"
}

# The median of the last tokens per second of a log.
median_rate() { # RUN COUNT
  sed -nE 's/.*"tokens_per_s": ([.0-9]+).*/\1/p' "$work/out-$1/log.jsonl" |
    tail -n "$2" | sort -n | awk '{a[NR] = $1} END {if (NR) printf "%.1f\n", (a[int((NR + 1) / 2)] + a[int(NR / 2) + 1]) / 2}'
}
# The share of the peak by the formula of nanoGPT: 6 N + 12 L C T operations for each token.
mfu_figure() { # AIM TOKENS/S LAYERS C T
  local aim=$1 rate=$2 share text
  share=$(awk -v rate="$rate" -v l="$3" -v c="$4" -v t="$5" -v v=$vocab -v peak=$peak 'BEGIN {
    n = l * (12 * c * c + 13 * c) + v * c + 2 * c
    printf "%.2f\n", rate * (6 * n + 12 * l * c * t) / (1e10 * peak)}')
  text="$rate tokens/s, $share% of $peak TFLOP/s"
  if [ -s "$work/product" ]; then
    text+=$(awk -v s="$share" -v peak=$peak '$1 > 0 {printf ", %.2f%% of what cuBLASLt reaches here", s * peak / $1}' \
      "$work/product")
  fi
  figure "$share" "$aim" "% MFU" "$text"
}

speed() { # TEST PATTERN: the number that a test of tests/device/speed_test.cpp has measured
  run_tests "Speed.$1" >&2 || return 1
  sed -nE "s/.*$2.*/\1/p" "$work/tests" | grep -m 1 .
}
bandwidth() {
  local rate
  rate=$(speed CopyBandwidth 'copies ([.0-9]+) GB\/s') || return 1
  echo "$rate" >"$work/bandwidth"
  figure "$rate" - GB/s "copies $rate GB/s, read and written"
}
product() {
  has cuBLASLt '[0-9]' || { echo "cuBLASLt is not here"; return 77; }
  local rate
  rate=$(speed LibraryProduct 'multiplies .* at ([.0-9]+) TFLOP\/s') || return 1
  echo "$rate" >"$work/product"
  figure "$rate" - TFLOP/s "$rate TFLOP/s, bf16, random operands"
}

gpt2() { # PLAN BATCH AIM
  compile_gpt2 "$1" "${gpt2_size[@]}" $block "$2" 1 train.steps=$steps || return
  run --resume never "$work/plan-$1" || return 1
  local rate
  rate=$(median_rate "$1" $((steps * 2 / 3)))
  echo "$rate" >"$work/rate-$1"
  mfu_figure "$3" "$rate" "${gpt2_size[0]}" "${gpt2_size[2]}" $block
}
gpt2_large() {
  [ "$gib" -ge 40 ] || $small || { echo "needs a GPU of 40 GiB, and this one has $gib"; return 77; }
  gpt2 gpt2-large $large_batch 50 || return
  rm -rf "$work/out-gpt2-large/checkpoints"
}
xl() { # PLAN AIM LAYERS HEADS C
  local plan=$1 aim=$2 layers=$3 c=$5 code pid n=0
  shift 2
  [ "$gib" -ge 70 ] || $small || { echo "needs a GPU of 70 GiB, and this one has $gib"; return 77; }
  compile_gpt2 "$plan" "$@" $xl_block $xl_batch 4 train.steps=1000000 || {
    code=$?
    grep -E '^error\[GPTC0403\]' "$work/plan-$plan.compile" && return 77
    return $code
  }
  # Stopped after some steps: at its end it would write a checkpoint of 16 GB or more.
  mkdir -p "$work/out-$plan"
  "$bin/gptrun" --resume never "$work/plan-$plan" &
  pid=$!
  while kill -0 $pid 2>/dev/null && [ "$n" -lt $xl_steps ]; do
    sleep 0.2
    n=$(grep -c tokens_per_s "$work/out-$plan/log.jsonl" 2>/dev/null)
    n=${n:-0} # while there is no log
  done
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
  [ "$n" -ge $xl_steps ] || {
    echo "it ended after $n steps"
    name_failed "$log" --resume never "$work/plan-$plan"
    return 1
  }
  if grep '^warning: generated kernels take the place of' "$log" >"$work/replaced"; then cat "$work/replaced"; return 1; fi
  mfu_figure "$aim" "$(median_rate "$plan" $((xl_steps * 4 / 5)))" "$layers" "$c" $xl_block
}

# Of the plan that the headline is measured with.
kernels() {
  local plan=$work/plan-gpt2-large
  [ -d "$plan" ] || plan=$work/plan-gpt2
  [ -d "$plan" ] || { echo "there is no GPT-2 to look at"; return 77; }
  run "$plan" --resume never --out-dir "$work/out-profile" --steps $((steps * 2 / 5)) --profile || return 1
  rm -rf "$work/out-profile/checkpoints"
  cp "$work/run" "$keep/profiles/${plan##*/plan-}.txt"
  # ms/step, share, kernels, GFLOP/s, GB/s, recipe, what
  awk '$2 ~ /^[0-9.]+%$/ && $NF == "kernels" {all = $1}
       $2 ~ /^[0-9.]+%$/ && $NF != "kernels" && ++n <= 3 {
         most = most ", " $7 " " $8 " " $2; if (n == 3) most = most " of it"}
       END {if (all == "") exit 1; printf "%s ms a step in kernels; most take%s\n", all, substr(most, 2)}' "$work/run" ||
    { echo "the profile has no kernels"; return 1; }
}
# The same plan's kernels, each in a graph on memory that no cache holds; a table, and JSON in the archive.
each_kernel() {
  local plan=$work/plan-gpt2-large
  [ -d "$plan" ] || plan=$work/plan-gpt2
  [ -d "$plan" ] || { echo "there is no GPT-2 to look at"; return 77; }
  "$bin/gptc" bench kernels "$plan" --json "$keep/profiles/each-kernel.json" || return
  grep '^step: ' "$log" | tail -n 1
}
norm_backward() {
  [ -s "$work/bandwidth" ] || { echo "the bandwidth is not known"; return 77; }
  local profile rate share
  profile=$(ls "$keep"/profiles/*.txt 2>/dev/null | head -n 1)
  [ -n "$profile" ] || { echo "there is no profile"; return 77; }
  rate=$(awk '/layernorm_grad/ {ms += $1; mb += $1 * $5} END {if (ms) printf "%.1f", mb / ms}' "$profile")
  [ -n "$rate" ] || { echo "the profile has no kernel of a norm backward"; return 1; }
  share=$(awk -v r="$rate" '{printf "%.1f", 100 * r / $1}' "$work/bandwidth")
  figure "$share" 80 "% of copies" "$rate GB/s, $share% of what copies reach"
}
sampling() {
  [ -s "$work/bandwidth" ] || { echo "the bandwidth is not known"; return 77; }
  [ -s "$work/rate-gpt2" ] || { echo "there is no GPT-2 to sample from"; return 77; }
  run sample "$work/plan-gpt2" --prompt "the" --max-tokens $((block * 3 / 4)) --time || return 1
  local rate share
  rate=$(sed -nE 's/.* ([.0-9]+) tokens\/s$/\1/p' "$work/run")
  # Each token needs every weight once, in two bytes.
  share=$(awk -v r="$rate" -v l="${gpt2_size[0]}" -v c="${gpt2_size[2]}" -v v=$vocab '{
    floor = 1e9 * $1 / (2 * (l * (12 * c * c + 13 * c) + v * c + 2 * c)); printf "%.2f", 100 * r / floor}' \
    "$work/bandwidth")
  figure "$share" 35 "% of the floor" "$rate tokens/s, $share% of what reading all weights once allows"
}
nano_gpt() {
  compile_for cuda shakespeare-char "$work/plan-nano" "${data[@]}" "out_dir=$work/out-nano" precision.compute=bf16 \
    model.dropout=0.2 train.steps=200 "${brief[@]}" "${nano[@]}" || return
  run "$work/plan-nano" --resume never --steps $nano_steps || return 1
  local rate
  rate=$(median_rate nano $((nano_steps * 3 / 4)))
  figure "$rate" 4000000 tokens/s "$rate tokens/s"
}

# What was timed in one compilation is known in the next.
tuning() {
  has cuBLASLt '[0-9]' || { echo "cuBLASLt is not here: no product is a call"; return 77; }
  local text
  compile_gpt2 gpt2 "${gpt2_size[@]}" $block $batch 1 train.steps=$steps || return
  if grep 'its own choice of algorithms' "$work/plan-gpt2.compile"; then return 1; fi
  text=$(grep -oE '[0-9]+ products: .*' "$work/plan-gpt2.compile") ||
    { echo "cuBLASLt is here, and no product is a call"; return 1; }
  if ! awk '{exit !($1 == $3 + $5)}' <<<"$text"; then echo "not all have been timed: $text"; return 1; fi
  echo "$text"
}
compared() {
  command -v python3 >/dev/null || { echo "python3 is not here"; return 77; }
  python3 "$parts/torch_gpt2.py" "$batch" | tee "$work/torch"
  local code=${PIPESTATUS[0]} theirs times
  [ "$code" -eq 0 ] || return "$code"
  theirs=$(tail -n 1 "$work/torch")
  if [ -s "$work/rate-gpt2" ]; then
    times=$(awk -v theirs="$theirs" '{printf "%.2f", $1 / theirs}' "$work/rate-gpt2")
    figure "$times" 1.25 times "torch.compile $theirs tokens/s; ours are $times times as many"
  else
    awk -v theirs="$theirs" 'BEGIN {printf "torch.compile %.0f tokens/s; none of ours to compare with\n", theirs}'
  fi
}

figures() {
  sizes
  # Two bytes each.
  printf '%b' "$(awk -v n=200000 -v v=$vocab 'BEGIN {srand(1)
    for (; n > 0; --n) {t = int(rand() * v); printf "\\0%03o\\0%03o", t % 256, t / 256}}')" >"$work/random.bin"
  check "copies" 20 bandwidth
  check "cuBLASLt, 8192^3" 30 product
  check "GPT-2 124M, 64 x 1024" 100 gpt2_large
  check "GPT-2 124M, 16 x 1024" 60 gpt2 gpt2 $batch 50
  check "GPT 1.3B, 4 x 2048" 90 xl gpt-1b3 - "${gpt_1b3_size[@]}"
  rm -rf "$work/out-gpt-1b3/checkpoints"
  check "GPT-2 1.5B, 4 x 2048" 100 xl gpt2-xl 58 "${gpt2_xl_size[@]}"
  check "kernels" 40 kernels
  check "each kernel" 90 each_kernel
  check "norm backward" 10 norm_backward
  check "sampling, GPT-2 124M" 30 sampling
  rm -rf "$work/out-gpt2/checkpoints"
  check "nanoGPT's 10.9M, bf16" 40 nano_gpt
  check "tuning" 30 tuning
  $small || check "against torch.compile" 150 compared
}
