#include "runtime/serve/mask_filler.h"

#include "ir/graph.h"
#include "runtime/device/executor.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gptc {

MaskFiller::MaskFiller(Executor &executor) : executor(executor), embedder(executor) {
  const Function *f = executor.planned().function("fill");
  if (!f)
    throw UserError(ErrorCode::PlanDamaged, "the plan fills no masks: it has no @fill",
                    "name a folder with a head for masked tokens");
  rows = f->body.args[0]->type.dim(0);
  count = f->results()[0].dim(1);
  stride = f->results()[0].padded(1);
}

void MaskFiller::fill(llvm::ArrayRef<std::vector<int32_t>> texts, llvm::ArrayRef<std::vector<int32_t>> types,
                      llvm::ArrayRef<std::vector<int64_t>> places, Take take) {
  const std::vector<std::vector<float>> vectors = embedder.tokensAt(places, texts, types);
  const int64_t width = embedder.width();
  std::vector<std::pair<size_t, size_t>> all;  // texts, and the numbers of their places
  for (size_t text = 0; text < places.size(); ++text)
    for (size_t number = 0; number < places[text].size(); ++number)
      all.emplace_back(text, number);
  for (size_t begin = 0; begin < all.size(); begin += size_t(rows)) {
    const size_t end = std::min(all.size(), begin + size_t(rows));
    std::vector<float> together(size_t(rows * width));  // rows that are no place are 0
    for (size_t i = begin; i < end; ++i) {
      const auto [text, number] = all[i];
      std::copy_n(vectors[text].begin() + int64_t(number) * width, width,
                  together.begin() + int64_t(i - begin) * width);
    }
    executor.run("fill", {together.data()});
    const auto *row = static_cast<const float *>(executor.result("fill", 0));
    for (size_t i = begin; i < end; ++i, row += stride) {
      if (!std::all_of(row, row + count, [](float x) { return std::isfinite(x); }))
        throw UserError(ErrorCode::NonFinite, "the logits in place of a mask are not finite",
                        "compute in a wider precision (--precision fp32); where that is fp32, the weights are damaged");
      take(all[i].first, all[i].second, llvm::ArrayRef<float>(row, size_t(count)));
    }
  }
}

}  // namespace gptc
