// Names and shapes of tensors, against the files that transformers wrote (tests/e2e/hf), for all families.
#include "frontends/hf/tensors.h"
#include "frontends/hf/write.h"
#include "frontends/hf_families.h"
#include "support/files.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using hf::json;
using Shape = std::vector<int64_t>;
using Shapes = std::map<std::string, Shape>;

const fs::path models = GPTC_SOURCE_DIR "/tests/e2e/hf";

/// Name and shape of each tensor, from the headers of the files in a folder.
Shapes inFiles(const fs::path &dir) {
  Shapes all;
  for (const auto &entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors")
      continue;
    const std::string bytes = readInput(entry.path().string(), "test");
    uint64_t size;
    std::memcpy(&size, bytes.data(), sizeof size);
    const json header = json::parse(bytes.substr(8, size));
    for (const auto &[name, tensor] : header.items())
      if (name != "__metadata__")
        all[name] = tensor.at("shape").get<Shape>();
  }
  return all;
}

/// The parameters of a model by our names, with our shapes.
Shapes parametersOf(const ModelConfig &m) {
  Shapes all;
  const int64_t E = m.nEmbd, D = m.headSize(), Q = m.nHead * D, K = m.nKvHead * D;
  auto linear = [&](const std::string &name, int64_t in, int64_t out, bool bias) {
    all[name + ".weight"] = {in, out};
    if (bias)
      all[name + ".bias"] = {out};
  };
  auto norm = [&](const std::string &name, int64_t n, bool bias) {
    all[name + ".weight"] = {n};
    if (bias)
      all[name + ".bias"] = {n};
  };
  const bool normBias = m.normBiased();
  all["wte.weight"] = {m.vocabSize, E};
  if (m.position == Position::learned)
    all["wpe.weight"] = {m.blockSize, E};
  if (m.tokenTypes)
    all["wtt.weight"] = {m.tokenTypes, E};
  if (m.embeddingNorm)
    norm("word_embeddings_layernorm", E, normBias);
  for (int64_t l = 0; l < m.nLayer; ++l) {
    const std::string h = fmt::format("h.{}.", l);
    for (const char *which : {"ln_1", "ln_2"}) {
      const bool first = which == std::string("ln_1");
      if (m.normPosition != NormPosition::output && !(m.sharedNorm && !first) && !(first && !l && !m.firstNorm))
        norm(h + which, E, normBias);
      if (m.normPosition == NormPosition::output || m.normPosition == NormPosition::both)
        norm(h + which + "_out", E, normBias);
    }
    linear(h + "attn.c_attn", E, Q + 2 * K, m.biased(m.qkvBias));
    linear(h + "attn.c_proj", Q, E, m.biased(m.attentionBias));
    if (m.qkNorm != QkNorm::none) {
      norm(h + "attn.q_norm", m.qkNorm == QkNorm::head ? D : Q, false);
      norm(h + "attn.k_norm", m.qkNorm == QkNorm::head ? D : K, false);
    }
    if (m.gated())
      linear(h + "mlp.c_gate", E, m.ffnDim, m.biased(m.mlpBias));
    linear(h + "mlp.c_fc", E, m.ffnDim, m.biased(m.mlpBias));
    linear(h + "mlp.c_proj", m.ffnDim, E, m.biased(m.mlpBias));
  }
  if (m.normPosition != NormPosition::post)
    norm("ln_f", E, normBias);
  if (m.headTransform) {
    linear("head.dense", E, E, m.biased(m.mlpBias));
    norm("head.norm", E, normBias);
  }
  if (!m.tieEmbeddings)
    all["lm_head.weight"] = {m.vocabSize, E};
  if (m.headBias)
    all["lm_head.bias"] = {m.vocabSize};
  return all;
}

TEST(HfTensors, HaveTheNamesAndShapesOfTransformers) {
  int folders = 0;
  for (const auto &entry : fs::directory_iterator(models)) {
    if (!entry.is_directory())
      continue;
    ++folders;
    const ModelConfig m = readHfConfig(entry.path().string());
    const hf::Family *family = hf::findFamily(
        json::parse(readInput((entry.path() / "config.json").string(), "test")).at("model_type").get<std::string>());
    Shapes named;
    for (const auto &[ours, shape] : parametersOf(m)) {
      const hf::FileName file = hf::fileNameOf(family, m, ours);
      llvm::SmallVector<llvm::StringRef, 3> parts;
      llvm::StringRef(file.names).split(parts, ',');
      EXPECT_EQ(parts.size(), std::max<size_t>(1, file.columns.size())) << ours;
      for (size_t i = 0; i < parts.size(); ++i) {
        Shape theirs = shape;
        if (!file.columns.empty())
          theirs.back() = file.columns[i];
        if (file.transposed)
          std::reverse(theirs.begin(), theirs.end());
        if (!file.share.empty())
          theirs[0] *= file.share[1];
        named[parts[i].split('|').first.str()] = theirs;
      }
    }
    EXPECT_EQ(named, inFiles(entry.path())) << entry.path();
  }
  EXPECT_EQ(folders, 19);
}

TEST(HfTensors, ThatHaveSeveralNames) {
  const ModelConfig bert = readHfConfig((models / "bert").string()),
                    neox = readHfConfig((models / "gpt_neox").string());
  EXPECT_EQ(hf::fileNameOf(hf::findFamily("bert"), bert, "h.1.ln_2.bias").names,
            "bert.encoder.layer.1.output.LayerNorm.bias|bert.encoder.layer.1.output.LayerNorm.beta");
  EXPECT_EQ(hf::fileNameOf(hf::findFamily("gpt_neox"), neox, "lm_head.weight").names,
            "embed_out.weight|lm_head.weight");
  EXPECT_EQ(hf::fileNameOf(hf::findFamily("gpt_neox"), neox, "h.0.attn.c_attn.bias").heads, 2);
  EXPECT_EQ(hf::fileNameOf(nullptr, neox, "h.0.attn.c_attn.bias").names, "transformer.h.0.attn.c_attn.bias");
}

}  // namespace
