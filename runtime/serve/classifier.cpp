#include "runtime/serve/classifier.h"

#include "ir/graph.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>

namespace gptc {

Classifier::Classifier(Executor &executor, Pooling pooling) : executor(executor), embedder(executor), pooling(pooling) {
  const Function *f = executor.planned().function("labels");
  if (!f)
    throw UserError(ErrorCode::PlanDamaged, "the plan names no labels: it has no @labels",
                    "name a folder with a classifier");
  rows = f->body.args[0]->type.dim(0);
  count = f->results()[0].dim(1);
  stride = f->results()[0].padded(1);
}

void Classifier::prepare() {
  embedder.prepare();
  executor.prepare({"labels"});
}

std::vector<std::vector<float>> Classifier::logits(llvm::ArrayRef<std::vector<int32_t>> texts,
                                                   llvm::ArrayRef<std::vector<int32_t>> types) {
  const std::vector<std::vector<float>> vectors = embedder.embed(texts, pooling, false, types);
  const int64_t width = embedder.width();
  std::vector<std::vector<float>> all;
  for (size_t begin = 0; begin < vectors.size(); begin += size_t(rows)) {
    const size_t end = std::min(vectors.size(), begin + size_t(rows));
    std::vector<float> together(size_t(rows * width));  // rows that are no text are 0
    for (size_t i = begin; i < end; ++i)
      std::copy(vectors[i].begin(), vectors[i].end(), together.begin() + int64_t(i - begin) * width);
    executor.run("labels", {together.data()});
    const auto *row = static_cast<const float *>(executor.result("labels", 0));
    for (size_t i = begin; i < end; ++i, row += stride) {
      std::vector<float> &one = all.emplace_back(row, row + count);
      if (!std::all_of(one.begin(), one.end(), [](float x) { return std::isfinite(x); }))
        throw UserError(ErrorCode::NonFinite, "the labels of a text are not finite",
                        "compute in a wider precision (--precision fp32); where that is fp32, the weights are damaged");
    }
  }
  return all;
}

}  // namespace gptc
