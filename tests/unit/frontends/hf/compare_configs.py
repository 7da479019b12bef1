#!/usr/bin/env python3
"""Whether transformers reads two config.json files as the same model.

  compare_configs.py DIR     DIR/NAME-theirs.json and DIR/NAME-ours.json, for every NAME there

Exit status: 0 equal, 1 not, 77 transformers is missing. The test runs with whichever version is installed, 4 or 5."""
import json
import pathlib
import sys

try:
    import transformers
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

# What says nothing of logits, or is another spelling of what is compared.
IGNORED = {"_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "bos_token_id", "eos_token_id",
           "pad_token_id", "attention_dropout", "hidden_dropout", "classifier_dropout", "hidden_dropout_prob",
           "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout",
           "max_window_layers", "no_rope_layer_interval", "rope_interleaved", "use_mrope", "position_embedding_type",
           "attention_bias", "mlp_bias", "cls_token_id", "sep_token_id", "repad_logits_with_grad"}
# In these families the last two mean nothing, or one value.
WITH_BIAS = {"llama": {"attention_bias", "mlp_bias"}, "smollm3": {"attention_bias", "mlp_bias"}, "qwen3": {"attention_bias"},
             "olmo2": {"attention_bias"}, "gpt_neox": {"attention_bias"}, "gemma2": {"attention_bias"},
             "modernbert": {"attention_bias", "mlp_bias"}}


def read(path):
    values = json.loads(path.read_text())
    family = values.pop("model_type")
    read = transformers.CONFIG_MAPPING[family].from_dict(values).to_dict()
    ignored = IGNORED - WITH_BIAS.get(family, set())
    read = {k: v for k, v in read.items() if k not in ignored}
    for key in ("rope_scaling", "rope_parameters"):
        # Values that are transformers' own where they are not written.
        usual = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
        if isinstance(read.get(key), dict):
            read[key] = {**(usual if read[key].get("rope_type") == "yarn" else {}), **read[key]}
            read[key].pop("type", None)
    if transformers.__version__.startswith("4."):
        read.pop("rope_parameters", None)
        if family == "modernbert":  # which only 5 reads
            read.pop("layer_types", None)
    if read.get("rope_scaling") and "rope_theta" in read:
        read["rope_scaling"].pop("rope_theta", None)
    return family, read


def main():
    wrong = 0
    for theirs in sorted(pathlib.Path(sys.argv[1]).glob("*-theirs.json")):
        ours = theirs.with_name(theirs.name.replace("-theirs", "-ours"))
        (family, a), (other, b) = read(theirs), read(ours)
        if family == "gpt2" and a["n_inner"] is None:
            a["n_inner"] = 4 * a["n_embd"]
        for values in (a, b):
            if values.get("head_dim") is None and "hidden_size" in values:
                values["head_dim"] = values["hidden_size"] // values["num_attention_heads" if "num_attention_heads" in values else "n_head"]
            values["use_bidirectional_attention"] = bool(values.get("use_bidirectional_attention"))
            # The part of a head that is rotated: elements count.
            for of in (values, values.get("rope_parameters") or {}, values.get("rope_scaling") or {}):
                for key in ("partial_rotary_factor", "rotary_pct"):
                    if key in of:
                        of[key] = int(values["head_dim"] * of[key])
        if family != other:
            b["model_type"] = other
        for key in sorted(set(a) | set(b)):
            if a.get(key) != b.get(key):
                print(f"{theirs.name}: {key} is {a.get(key)} there and {b.get(key)} in ours")
                wrong += 1
    print(f"transformers {transformers.__version__}: {wrong} differences")
    sys.exit(wrong != 0)


main()
