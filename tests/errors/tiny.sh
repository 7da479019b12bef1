# For cases: the smallest thing that trains. `tiny_data` makes data/, `tiny_model` model.toml, `tiny_plan [--set ..]` both and tiny.plan.
tiny_data() {
  yes 'It is a truth universally acknowledged.' | head -n 100 > text.txt
  gptc data prepare text.txt --tokenizer char --out data > /dev/null
}
tiny_model() {
  cat > model.toml <<'END'
name = "tiny"
out_dir = "out"
[model]
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
vocab_size = 32
[train]
steps = 20
global_batch_tokens = 64
[data]
train = "data/train.bin"
[checkpoint]
every = 1
[log]
mfu_peak = 1e12
END
}
tiny_plan() {
  tiny_data
  tiny_model
  gptc compile model.toml -o tiny.plan "$@" > /dev/null
}
