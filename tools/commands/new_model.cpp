#include "tools/commands/new_model.h"

#include "support/diagnostics.h"
#include "support/words.h"

namespace gptc {

// The large models, with GPT-2 124M's sizes, need days on a CPU: for a GPU, or to be reduced.
static constexpr const char *large =
    R"(n_layer = 12                    # 6, with n_head = 6 and n_embd = 384, is a tenth of the work
n_head = 12                     # divides n_embd
n_embd = 768                    # the width
)";
static constexpr const char *manySteps = R"(steps = 19073                   # 10 billion tokens in all
global_batch_tokens = 524288    # of one step; gradients accumulate over as many passes as that takes
micro_batch = "auto"            # sequences of one pass
)";
static constexpr const char *slow = R"(lr = 6e-4
betas = [0.9, 0.95]
weight_decay = 0.1              # of matrices
schedule = "cosine"             # wsd linear constant
warmup_steps = 700
min_lr_ratio = 0.1              # of lr, at the end
)";

static const std::string gpt2 =
    std::string("preset = \"gpt2\"                 # learned positions, layer norms, GELU\n") + large +
    "block_size = 1024               # the context, in tokens\ndropout = 0.0\n";
static const std::string llama =
    std::string("preset = \"llama\"                # rotated queries and keys, RMS norms, a gated hidden layer\n") +
    large +
    "n_kv_head = 4                   # heads of keys and values, each for three of queries; n_head: no sharing\n"
    "block_size = 1024               # the context, in tokens\n";
static const std::string bloom =
    std::string("preset = \"bloom\"                # ALiBi for positions, a norm behind the embedding\n") + large +
    "block_size = 1024               # the context, in tokens\n";
static const std::string bert =
    std::string("preset = \"encoder\"              # reads both ways, and learns to fill in masked tokens\n") + large +
    "block_size = 512                # the context, in tokens\ndropout = 0.1\n";

llvm::ArrayRef<ModelTemplate> modelTemplates() {
  static const ModelTemplate all[] = {
      {"small", "a GPT of 3M parameters: minutes on two cores", "bpe:2048", R"(n_layer = 6
n_head = 6                      # divides n_embd
n_embd = 192                    # the width
block_size = 128                # the context, in tokens
dropout = 0.0
)",
       R"(steps = 1400
global_batch_tokens = 2048      # of one step: 16 sequences; on little text many small steps learn more than few large ones
micro_batch = 16                # sequences of one pass
)",
       R"(lr = 3e-3
betas = [0.9, 0.98]
weight_decay = 0.1              # of matrices
schedule = "cosine"             # wsd linear constant
warmup_steps = 100
min_lr_ratio = 0.05             # of lr, at the end
)",
       "fp32"},
      {"char", "nanoGPT's recipe for characters, 0.8M parameters: a minute on two cores", "char", R"(n_layer = 4
n_head = 4                      # divides n_embd
n_embd = 128                    # the width
block_size = 64                 # the context, in characters
bias = false
dropout = 0.0
)",
       R"(steps = 2000
global_batch_tokens = 768       # of one step: 12 sequences
micro_batch = 12                # sequences of one pass
)",
       R"(lr = 1e-3
betas = [0.9, 0.99]
weight_decay = 0.1              # of matrices
schedule = "cosine"             # wsd linear constant
warmup_steps = 100
min_lr_ratio = 0.1              # of lr, at the end
)",
       "fp32"},
      {"gpt2", "GPT-2 124M: for a GPU", "gpt2:MERGES.txt", gpt2.c_str(), manySteps, slow, "bf16"},
      {"llama", "Llama's family at that size: for a GPU", "bpe:32000", llama.c_str(), manySteps, slow, "bf16"},
      {"bloom", "BLOOM's family at that size: for a GPU", "bpe:32000", bloom.c_str(), manySteps, slow, "bf16"},
      {"bert", "an encoder at that size: for a GPU", "bpe:32000", bert.c_str(), manySteps, slow, "bf16"},
  };
  return all;
}

const ModelTemplate &modelTemplate(const std::string &name) {
  std::vector<std::string> names;
  for (const ModelTemplate &t : modelTemplates()) {
    if (name == t.name)
      return t;
    names.push_back(t.name);
  }
  const std::string near = nearestWord(name, names);
  throw UserError(
      ErrorCode::Usage, fmt::format("gptc new knows no model '{}'", name),
      fmt::format("{}there are {}", near.empty() ? "" : fmt::format("did you mean {}? ", near), quotedList(names)));
}

std::string textOf(const ModelTemplate &t, const std::string &data) {
  const std::string folder = data.empty() || data == "." ? "" : data + "/";
  // As a TOML basic string.
  std::string quoted;
  for (char c : folder)
    quoted += c == '"' || c == '\\' ? std::string("\\") + c
              : uint8_t(c) < ' '    ? fmt::format("\\u{:04x}", int(c))
                                    : std::string(1, c);
  return fmt::format(
      R"(# gptc new {name}: {what}.
# `gptc compile FILE` says how long it will take on this machine, `--set train.steps=100` overrides any key, and
# `gptc config --list` shows every key there is. Paths count from the folder of this file.

[model]                         # docs/model.md
{model}
[train]
{train}
[optimizer]                     # AdamW; docs/optimizers.md
{optimizer}
[precision]
compute = "{compute}"                # fp32 bf16 fp16: of products, and of what is kept between kernels

[data]                          # gptc data prepare YOUR.txt --tokenizer {tokenizer} --out {folder}
train = "{quoted}train.bin"
val = "{quoted}val.bin"
tokenizer = "{quoted}tokenizer.json"

[eval]
every = 200                     # steps; 0: only at the end
steps = 20                      # global batches of validation data each time

[checkpoint]
every = 400                     # steps; a run that was ended goes on from the newest
keep = 3
)",
      fmt::arg("name", t.name), fmt::arg("what", t.what), fmt::arg("model", t.model), fmt::arg("train", t.train),
      fmt::arg("optimizer", t.optimizer), fmt::arg("compute", t.compute), fmt::arg("tokenizer", t.tokenizer),
      fmt::arg("folder", quoted.empty() ? "." : quoted.substr(0, quoted.size() - 1)), fmt::arg("quoted", quoted));
}

}  // namespace gptc
