"""Folders of models, opened by transformers with nothing else. Where it or PyTorch is missing, importing this ends the program with
status 77."""
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification
    from transformers import AutoTokenizer
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)
warnings.simplefilter("ignore")


def opened(auto, folder, **how):
    """A model in fp32, without dropout. Ends the program if its tensors are not exactly those of the folder."""
    model, info = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **how)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{folder}: {kind}: {info[kind]}")
    return model.eval()
