"""A model in llama.cpp, by the package llama_cpp, for programs that compare its logits with ours.

Everything is in F32: the cache too, and without flash attention. llama.cpp is to be built without GGML_GELU_FP16
(ggml-cpu/vec.h), whose table of GELU is good to 1e-3 only. ImportError where a package is missing.
"""
import ctypes

import llama_cpp
import numpy as np

quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(quiet, None)


class Model:
    """A GGUF file, and a context whose logits follow each token."""

    def __init__(self, file, context=256, threads=1):
        p = llama_cpp.llama_model_default_params()
        p.n_gpu_layers = 0
        p.use_extra_bufts = False  # weights repacked for AMX crash 0.3.36
        self.model = llama_cpp.llama_model_load_from_file(file.encode(), p)
        assert self.model, file
        c = llama_cpp.llama_context_default_params()
        c.n_ctx = c.n_batch = c.n_ubatch = context
        c.n_threads = c.n_threads_batch = threads
        c.type_k = c.type_v = 0  # GGML_TYPE_F32
        c.flash_attn_type = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, c)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def forget(self):
        """Begins another text."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def logits(self, tokens, first):
        """Logits after each of these tokens, of which `first` stand before them."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        assert llama_cpp.llama_decode(self.context, batch) == 0
        rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.size,)).astype(np.float64)
                for i in range(len(tokens))]
        llama_cpp.llama_batch_free(batch)
        return np.array(rows)

    def tokens(self, text):
        """Tokens of a text, without special ones."""
        data = text.encode()
        room = len(data) + 16
        ids = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, room, False, False)
        assert n >= 0, n
        return list(ids[:n])

    def piece(self, token):
        """The bytes of a token's text; none for a special token."""
        data = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(self.vocab, token, data, len(data), 0, False)
        assert n >= 0, n
        return data.raw[:n]

    def greedy(self, ours, given):
        """Continues the first `given` of these tokens greedily. Returns how many more are equal, and how far apart the
        logits of both choices are where one differs (None if none does)."""
        self.forget()
        row, at = self.logits(ours[:given], 0)[-1], given
        while at < len(ours):
            best = int(row.argmax())
            if best != ours[at]:
                return at - given, row[best] - row[ours[at]]
            row = self.logits([ours[at]], at)[0]
            at += 1
        return at - given, None


def losses(rows, targets):
    """Cross entropies of these targets under these logits."""
    most = rows.max(axis=1)
    return np.log(np.exp(rows - most[:, None]).sum(axis=1)) + most - rows[np.arange(len(targets)), targets]
