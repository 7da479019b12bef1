#!/usr/bin/env python3
"""Makes what tests compare with: small models of each family with random weights, by transformers.

  make.py configs DIR    DIR/NAME-4.json or NAME-5.json, named by the installed transformers: what it writes as config.json
  make.py models DIR     DIR/NAME/: config.json, safetensors, and golden.json with ids, the logits of all but the last in
                         fp32, and the mean loss of what follows each
  make.py vectors DIR    DIR/vectors.json: for models there, texts of several lengths as ids, and the mean, the first and
                         the last of what the last norm gives for their tokens, in float64
  make.py labels DIR     DIR/two/ and DIR/five/: classifiers of so many labels, and golden.json with texts as ids and their
                         logits in float64; DIR/pair/, DIR/score/ and DIR/several/: one of pairs, a regression and one of
                         several labels at once, with tokenizers, and golden.json with texts, their ids and types, cut by
                         the tokenizer, and their logits; DIR/texts.json: what other tokenizers make of texts and pairs

No size fills a tile. Weights are larger than those of a training's start, so that every part of the model shows."""
import json
import pathlib
import sys
import tempfile

import transformers

MASKED = ("bert", "modernbert")  # the families that fill gaps
SIZES = dict(vocab_size=31, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=20, rms_norm_eps=1e-5)
EVERY = dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)


def rope(kind, **more):
    """A scaling of rotations, as either version of transformers takes it."""
    values = dict(rope_type=kind, **more)
    if transformers.__version__.startswith("4."):
        theta = values.pop("rope_theta", 10000.0)
        return dict(rope_scaling=values, rope_theta=theta)
    return dict(rope_parameters=dict(values))


def neox(part, **more):
    if transformers.__version__.startswith("4."):
        return dict(rotary_pct=part, **more)
    return dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=part), **more)


def models():
    llama = {**SIZES, "num_attention_heads": 3}
    plain = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
    return {
        "gpt2": ("gpt2", dict(vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=20)),
        "llama": ("llama", llama),
        "llama-odd": ("llama", {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
                                "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
                                "hidden_act": "gelu", "max_position_embeddings": 40,
                                **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                       original_max_position_embeddings=16, rope_theta=500.0)}),
        "llama-stretched": ("llama", {**llama, **rope("linear", factor=2.5, rope_theta=10000.0)}),
        "llama-yarn": ("llama", {**llama, **rope("yarn", factor=4.0, original_max_position_embeddings=8,
                                                 rope_theta=1000.0)}),
        "mistral": ("mistral", {**llama, "sliding_window": 5}),
        "mistral-full": ("mistral", {**llama, "sliding_window": None, "tie_word_embeddings": True}),
        "qwen2": ("qwen2", {**SIZES, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 5,
                            "max_window_layers": 1}),
        "qwen2-full": ("qwen2", {**SIZES, "tie_word_embeddings": True}),
        "qwen3": ("qwen3", {**SIZES, "head_dim": 8}),
        "smollm3": ("smollm3", {**SIZES, "num_hidden_layers": 4, "no_rope_layer_interval": 2}),
        "olmo2": ("olmo2", SIZES),
        "gpt_neox": ("gpt_neox", {**plain, **neox(0.34)}),
        "gpt_neox-serial": ("gpt_neox", {**plain, **neox(1.0), "use_parallel_residual": False,
                                         "hidden_act": "gelu_new", "attention_bias": False}),
        "bloom": ("bloom", dict(vocab_size=31, hidden_size=12, n_layer=2, n_head=3)),
        "phi": ("phi", {**plain, "num_key_value_heads": 1, "partial_rotary_factor": 0.7}),
        "gemma2": ("gemma2", {**SIZES, "num_hidden_layers": 3, "head_dim": 8, "sliding_window": 5,
                              "query_pre_attn_scalar": 10, "attn_logit_softcapping": 2.0,
                              "final_logit_softcapping": 3.0}),
        "bert": ("bert", {**plain, "pad_token_id": 0}),
        "modernbert": ("modernbert", dict(vocab_size=31, hidden_size=48, intermediate_size=20, num_hidden_layers=4,
                                          num_attention_heads=4, max_position_embeddings=64, local_attention=16,
                                          cls_token_id=2, sep_token_id=3)),
    }


def config_of(family, values):
    return transformers.CONFIG_MAPPING[family](**{**EVERY, **values})


def write_configs(folder):
    version = transformers.__version__.split(".")[0]
    for name, (family, values) in models().items():
        config = config_of(family, values)
        auto = transformers.models.auto.modeling_auto
        names = {**auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
        config.architectures = [names[family] if family != "bert" else "BertForMaskedLM"]
        with tempfile.TemporaryDirectory() as made:
            config.save_pretrained(made)
            text = (pathlib.Path(made) / "config.json").read_text()
        (folder / f"{name}-{version}.json").write_text(text if text.endswith("\n") else text + "\n")


def write_models(folder):
    import torch
    dtypes = {"gpt2": torch.float32, "llama": torch.float32, "mistral": torch.float16}
    for number, (name, (family, values)) in enumerate(models().items()):
        torch.manual_seed(number)
        auto = transformers.AutoModelForMaskedLM if family in MASKED else transformers.AutoModelForCausalLM
        config = config_of(family, values)
        config._attn_implementation = "eager"
        model = auto.from_config(config).eval()
        dtype = dtypes.get(name, torch.bfloat16)
        with torch.no_grad():
            for key, p in model.named_parameters():
                norm = p.dim() == 1 and key.endswith("weight")
                p.normal_(1.0 if norm and family != "gemma2" else 0.0, 0.2 if p.dim() == 1 else 0.3)
                p.copy_(p.to(dtype).float())
            tokens = values.get("max_position_embeddings", 20)
            ids = torch.randint(0, 31, (1, tokens + 1))
            logits = model(ids[:, :-1]).logits.float()[0]
            loss = torch.nn.functional.cross_entropy(logits.double(), ids[0, 1:])
        out = folder / name
        shard = "6KB" if name == "bloom" else "5GB"
        model.to(dtype).save_pretrained(out, max_shard_size=shard)
        (out / "generation_config.json").unlink(missing_ok=True)
        golden = dict(ids=ids[0].tolist(), loss=float(loss),
                      logits=[[float(f"{x:.8g}") for x in row] for row in logits.tolist()])
        (out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def write_vectors(folder):
    import torch
    said = {}
    for number, name in enumerate(("bert", "llama", "qwen3", "gemma2", "bloom", "modernbert")):
        torch.manual_seed(number)
        model = transformers.AutoModel.from_pretrained(folder / name, attn_implementation="eager", dtype=torch.float32).double().eval()
        said[name] = []
        # Texts that are longer than a window, too.
        for count in (1, 20, 2, 7, 13, 5, 20, 3, 3, 11) if name != "modernbert" else (1, 64, 2, 7, 33, 5, 20, 3, 49, 11):
            ids = torch.randint(4, 31, (1, max(count, 2) if name in MASKED else count))
            if name in MASKED:  # between its own tokens
                ids[0, 0], ids[0, -1] = 2, 3
            with torch.no_grad():
                h = model(ids).last_hidden_state[0]
            text = dict(ids=ids[0].tolist())
            for pooling, v in (("mean", h.mean(0)), ("cls", h[0]), ("last", h[-1])):
                text[pooling] = [float(f"{x:.9g}") for x in v.tolist()]
            said[name].append(text)
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(t, separators=(",", ":")) for t in texts) + "]"
             for name, texts in said.items()]
    (folder / "vectors.json").write_text("{" + ",\n".join(lines) + "}\n")


def write_labels(folder):
    import torch
    for number, (name, labels) in enumerate((("two", ["dull", "bright"]), ("five", ["a", "b", "c\u00e9", "d \"e\"", "f"]))):
        torch.manual_seed(number)
        config = transformers.BertConfig(
            vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
            max_position_embeddings=20, bos_token_id=1, eos_token_id=2, id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)}, problem_type="single_label_classification")
        config._attn_implementation = "eager"
        model = transformers.BertForSequenceClassification(config).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.normal_(1.0 if p.dim() == 1 and key.endswith("weight") else 0.0, 0.2 if p.dim() == 1 else 0.4)
        model.save_pretrained(folder / name)
        said = []
        exact = model.double()
        for count in (3, 20, 2, 7, 13, 5, 20, 3, 11, 4, 6, 8, 9, 10, 12, 14, 15, 16, 17):
            ids = torch.randint(4, 31, (1, count))
            ids[0, 0], ids[0, -1] = 2, 3
            with torch.no_grad():
                logits = exact(ids).logits[0]
            said.append(dict(ids=ids[0].tolist(), logits=[float(f"{x:.9g}") for x in logits.tolist()]))
        lines = ",\n".join(json.dumps(t, separators=(",", ":")) for t in said)
        (folder / name / "golden.json").write_text("[" + lines + "]\n")
    write_scorers(folder)
    write_texts(folder)


def word_tokenizer(processor):
    """The tokens of text "t4 t7" are 4 and 7; t2 and t3 stand around texts."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors
    t = tokenizers.Tokenizer(models.WordLevel({f"t{i}": i for i in range(31)}, unk_token="t1"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor == "bert":
        t.post_processor = processors.BertProcessing(("t3", 3), ("t2", 2))
    elif processor == "roberta":
        t.post_processor = processors.RobertaProcessing(("t3", 3), ("t2", 2))
    elif processor == "template":
        t.post_processor = processors.TemplateProcessing(
            single="t2 $A t3", pair="t2 $A t3 $B:1 t3:1", special_tokens=[("t2", 2), ("t3", 3)])
    return t


def write_scorers(folder):
    """Models whose tokenizers cut and type texts: by a template at the end, BERT's way at the beginning, and without types."""
    import torch
    sizes = dict(vocab_size=31, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
                 max_position_embeddings=20, type_vocab_size=2, bos_token_id=1, eos_token_id=2)
    types = ["input_ids", "token_type_ids", "attention_mask"]
    models = {
        "pair": (["entailment", "neutral", "contradiction"], None, "template",
                 dict(model_max_length=16, model_input_names=types)),
        "score": (["LABEL_0"], "regression", "bert",
                  dict(model_max_length=20, model_input_names=types, truncation_side="left")),
        "several": (["toxic", "insult", "threat", "spam"], "multi_label_classification", "template",
                    dict(model_max_length=20, model_input_names=["input_ids", "attention_mask"])),
    }
    for number, (name, (labels, problem, processor, settings)) in enumerate(models.items()):
        torch.manual_seed(10 + number)
        config = transformers.BertConfig(**sizes, id2label=dict(enumerate(labels)),
                                         label2id={label: i for i, label in enumerate(labels)}, problem_type=problem)
        config._attn_implementation = "eager"
        model = transformers.BertForSequenceClassification(config).eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.normal_(1.0 if p.dim() == 1 and key.endswith("weight") else 0.0, 0.2 if p.dim() == 1 else 0.5)
        out = folder / name
        model.save_pretrained(out)
        (out / "tokenizer.json").write_text(word_tokenizer(processor).to_str() + "\n")
        (out / "tokenizer_config.json").write_text(
            json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", **settings), indent=2) + "\n")
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        words = lambda n: " ".join(f"t{i}" for i in torch.randint(4, 31, (n,)).tolist())
        texts = [(words(n),) for n in (5, 0, 1, 18, 30)]
        texts += [(words(a), words(b)) for a, b in
                  ((2, 3), (0, 4), (1, 0), (30, 2), (2, 40), (25, 26), (26, 25), (9, 8), (6, 7), (7, 7), (8, 8))]
        lines, exact = [], model.double()
        for one in texts:
            encoded = tokenizer(*one, truncation=True, return_tensors="pt")
            with torch.no_grad():
                logits = exact(**encoded).logits[0]
            ids = encoded["input_ids"][0].tolist()
            kinds = encoded["token_type_ids"][0].tolist() if "token_type_ids" in encoded else [0] * len(ids)
            lines.append(json.dumps(dict(zip(("text", "text_pair"), one), ids=ids, types=kinds,
                                         logits=[float(f"{x:.9g}") for x in logits.tolist()]), separators=(",", ":")))
        (out / "golden.json").write_text("[" + ",\n".join(lines) + "]\n")


def write_texts(folder):
    """Texts of a and b words for each tokenizer, cut to several lengths at either side."""
    lines = []
    sizes = ((0, None), (3, None), (9, None), (2, 3), (0, 4), (5, 1), (3, 3), (4, 4), (4, 5), (9, 2), (2, 9), (9, 9))
    for processor in ("template", "bert", "roberta", "none"):
        for side in ("right", "left"):
            t = transformers.PreTrainedTokenizerFast(
                tokenizer_object=word_tokenizer(processor), truncation_side=side,
                model_input_names=["input_ids", "token_type_ids", "attention_mask"])
            texts = []
            for i, (a, b) in enumerate(sizes):
                one = [" ".join(f"t{4 + j}" for j in range(a))] + ([] if b is None else [" ".join(f"t{16 + j}" for j in range(b))])
                for most in (8, 9) if a + (b or 0) > 3 else (9,):
                    encoded = t(*one, truncation=True, max_length=most)
                    texts.append(dict(text=one, most=most, ids=encoded["input_ids"], types=encoded["token_type_ids"]))
            said = ",\n".join(json.dumps(x, separators=(",", ":")) for x in texts)
            lines.append(f'{{"side":"{side}","tokenizer":{word_tokenizer(processor).to_str()},"texts":[\n{said}]}}')
    (folder / "texts.json").write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    writers = dict(configs=write_configs, models=write_models, vectors=write_vectors, labels=write_labels)
    if len(sys.argv) != 3 or sys.argv[1] not in writers:
        sys.exit(__doc__)
    to = pathlib.Path(sys.argv[2])
    to.mkdir(parents=True, exist_ok=True)
    writers[sys.argv[1]](to)
