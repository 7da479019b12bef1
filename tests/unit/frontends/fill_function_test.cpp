// @fill of an encoder, in float64: its logits are those of training.
#include "frontends/model_builder.h"
#include "ir/opdef.h"
#include "tests/support/interpreter_inputs.h"

#include <gtest/gtest.h>

using namespace gptc;

namespace {

constexpr int64_t T = 6, V = 11, C = 8;

/// In BERT's form, with types of tokens, or with norms before the layers and rotations.
Config encoder(bool isBert) {
  Config c;
  c.name = "small";
  c.model.nLayer = 2;
  c.model.nHead = c.model.nKvHead = 2;
  c.model.nEmbd = C;
  c.model.ffnDim = 16;
  c.model.vocabSize = V;
  c.model.blockSize = T;
  c.model.causal = false;
  c.model.headTransform = c.model.headBias = true;
  c.model.tieEmbeddings = isBert;
  if (isBert) {
    c.model.normPosition = NormPosition::post;
    c.model.embeddingNorm = true;
    c.model.tokenTypes = 2;
  } else {
    c.model.position = Position::rope;
  }
  c.train.microBatch = 1;
  c.train.globalBatchTokens = T;
  return c;
}

/// The logits of all tokens of a text, as @eval computes them.
std::vector<double> logitsOfTraining(const Module &m, StateMap states, const std::vector<double> &text) {
  const Function &f = *m.function("eval");
  const Value *scores = nullptr;
  for (const Op &op : f.body)
    if (op.is(OpKind::cross_entropy))
      scores = op.operand(0);
  const Tensor x = integers(Type(DType::i32, {1, T}), text);
  std::vector<double> logits;
  interpret(f, std::vector<Tensor>{x, x}, states, [&](const Op &op, llvm::ArrayRef<Tensor> results) {
    if (&op == scores->def)
      logits = results[0].data;
  });
  return logits;
}

TEST(FillFunction, GivesTheLogitsOfTraining) {
  for (const bool isBert : {true, false}) {
    const Config c = encoder(isBert);
    const auto trains = buildModel(c), fills = buildModel(c, {.embed = true, .fills = true});
    EXPECT_EQ(verify(*fills), std::vector<std::string>{});
    ASSERT_EQ(fills->functions.size(), 2u);
    ASSERT_TRUE(fills->function("embed_16") && fills->function("fill"));
    StateMap states = initialStates(*trains, 3), own;
    for (size_t i = 0; i < size_t(V); ++i)
      states["lm_head.bias"].data[i] = 0.1 * double(i);
    for (const auto &s : fills->states)
      own[s->name] = states.at(s->name);
    const std::vector<double> text = {4, 10, 1, 10, 7, 2};
    std::vector<double> tokens(16), positions(16), documents(32), types(16, 0);
    for (size_t i = 0; i < 16; ++i) {
      const bool within = i < size_t(T);
      tokens[i] = within ? text[i] : 3;
      positions[i] = within ? double(i) : 0;
      documents[2 * i] = within ? 0 : double(i);
      documents[2 * i + 1] = within ? double(T) : double(i + 1);
    }
    std::vector<Tensor> args = {integers(Type(DType::i32, {1, 16}), tokens),
                                integers(Type(DType::i64, {16}), positions),
                                integers(Type(DType::i64, {1, 16, 2}), documents)};
    if (isBert)  // pairs have types
      args.push_back(integers(Type(DType::i32, {1, 16}), types));
    ASSERT_EQ(fills->function("embed_16")->body.args.size(), args.size());
    const std::vector<Tensor> vectors = interpret(*fills->function("embed_16"), args, own);
    const std::vector<double> got = interpret(*fills->function("fill"), vectors, own)[0].data,
                              want = logitsOfTraining(*trains, states, text);
    ASSERT_EQ(got.size(), size_t(16 * V));
    ASSERT_EQ(want.size(), size_t(T * V));
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-9) << isBert << " " << i;
  }
}

}  // namespace
