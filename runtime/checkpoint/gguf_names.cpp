#include "runtime/checkpoint/gguf_names.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {
namespace {

struct Architecture {
  const char *name;
  bool fused;        // one tensor for queries, keys and values
  bool interleaved;  // rows of q and k in llama's order
};
constexpr Architecture kArchitectures[] = {{"gpt2", true, false},
                                           {"llama", false, true},
                                           {"qwen2", false, false},
                                           {"qwen3", false, false},
                                           {"bloom", true, false}};

/// Names of parameters without their ending, .weight or .bias; in a layer without "h.N.".
constexpr std::pair<const char *, const char *> kOutside[] = {{"wte", "token_embd"},
                                                              {"wpe", "position_embd"},
                                                              {"word_embeddings_layernorm", "token_embd_norm"},
                                                              {"ln_f", "output_norm"},
                                                              {"lm_head", "output"}};
constexpr std::pair<const char *, const char *> kInLayer[] = {
    {"ln_1", "attn_norm"},      {"attn.c_attn", "attn_qkv"},    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},       {"mlp.c_gate", "ffn_gate"},     {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"}, {"attn.q_norm", "attn_q_norm"}, {"attn.k_norm", "attn_k_norm"}};

std::optional<std::string> nameIn(llvm::ArrayRef<std::pair<const char *, const char *>> table, llvm::StringRef name) {
  for (const auto &[ours, theirs] : table)
    if (name == ours)
      return theirs;
  return std::nullopt;
}

}  // namespace

const std::vector<std::string> &ggufArchitectures() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Architecture &a : kArchitectures)
      names.push_back(a.name);
    return names;
  }();
  return all;
}

int64_t GgufPart::rowOf(int64_t r) const {
  if (!interleavedHeads)
    return r;
  const int64_t head = shape[0] / interleavedHeads, in = r % head;
  return r - in + in % 2 * (head / 2) + in / 2;
}

std::optional<std::vector<GgufPart>> ggufParts(const State &s, llvm::StringRef architecture, const GgufHeads &heads) {
  const auto *arch = llvm::find_if(kArchitectures, [&](const Architecture &a) { return architecture == a.name; });
  if (arch == std::end(kArchitectures))
    return std::nullopt;
  llvm::StringRef own = s.name;
  own.consume_front("low.");  // of sampling and evaluation, where the rounded copy is the parameter
  auto [stem, ending] = own.rsplit('.');
  const Type type = wholeType(s);
  std::vector<int64_t> shape;
  for (const Dim &d : type.dims)
    shape.push_back(d.logical);
  if (ending != "weight" && ending != "bias")
    return std::nullopt;
  std::string before;
  llvm::StringRef part = stem;
  const bool inLayer = part.consume_front("h.");
  if (inLayer) {
    const auto [layer, rest] = part.split('.');
    before = fmt::format("blk.{}.", layer.str());
    part = rest;
  }
  const auto theirs = nameIn(inLayer ? llvm::ArrayRef(kInLayer) : llvm::ArrayRef(kOutside), part);
  if (!theirs)
    return std::nullopt;
  const bool transposed = inLayer && shape.size() == 2;
  auto named = [&](const std::string &name, int64_t first, int64_t columns, int64_t interleaved) {
    std::vector<int64_t> own = shape;
    own.back() = columns;
    if (transposed)
      std::swap(own[0], own[1]);
    return GgufPart{fmt::format("{}{}.{}", before, name, ending.str()), first, std::move(own), transposed, interleaved};
  };
  if (*theirs != "attn_qkv" || arch->fused)
    return std::vector{named(*theirs, 0, shape.back(), 0)};
  // c_attn's columns are queries, keys, values, all with heads of one size.
  const int64_t all = heads.queries + 2 * heads.keys;
  if (heads.queries < 1 || heads.keys < 1 || shape.back() % all)
    return std::nullopt;
  const int64_t head = shape.back() / all, q = heads.queries * head, k = heads.keys * head;
  if (arch->interleaved && head % 2)
    return std::nullopt;
  return std::vector{named("attn_q", 0, q, arch->interleaved ? heads.queries : 0),
                     named("attn_k", q, k, arch->interleaved ? heads.keys : 0), named("attn_v", q + k, k, 0)};
}

}  // namespace gptc
