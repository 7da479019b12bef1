# For golden texts: model.toml, and cluster.toml with all that it needs and nothing more.
cat > model.toml <<'END'
[model]
n_layer = 12
n_head = 12
n_embd = 768
vocab_size = 50257
block_size = 1024
[train]
micro_batch = 2
END
cat > cluster.toml <<'END'
[device]
peak_fp32 = "19.5 TFLOP/s"
peak_bf16 = "312 TFLOP/s"
memory = "80 GiB"
memory_bandwidth = "2039 GB/s"
[node]
devices = 8
bandwidth = "230 GB/s"
END
