#include "runtime/cuda/library_product.h"

#include "llvm/ADT/STLExtras.h"

#include <fmt/format.h>

namespace gptc::cuda {

static std::string textOf(const CublasLtMatmul::Matrix &x) {
  return fmt::format("{} {} {} {}x{} {} {}", x.param, nameOf(x.dtype), x.transposed, x.rows, x.cols, x.ld,
                     x.batchStride);
}

std::string productText(const CublasLtMatmul &m, llvm::ArrayRef<Place> memory) {
  std::string s =
      fmt::format("{}x{}x{} {} tf32 {} epilogue {} {} {} a {} b {} c {} d {}", m.m, m.n, m.k, m.batch, m.tf32,
                  int(m.epilogue), m.bias, m.aux, textOf(m.a), textOf(m.b), m.c ? textOf(*m.c) : "none", textOf(m.d));
  if (m.scale >= 0)
    s += fmt::format(" scale {}", m.scale);
  for (const Place &p : memory) {
    const auto *same = llvm::find_if(memory, [&](const Place &q) { return q.at == p.at; });
    s += fmt::format(" {}+{}:{}", same - memory.begin(), p.at % productAlignment, p.bytes);
  }
  return s;
}

}  // namespace gptc::cuda
