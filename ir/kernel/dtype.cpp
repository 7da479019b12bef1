#include "ir/kernel/dtype.h"

#include <array>

namespace gptc {

namespace {

struct DTypeInfo {
  const char *name;
  unsigned size;
};
// In the order of the enum.
constexpr std::array<DTypeInfo, 9> dtypes = {
    {{"f32", 4}, {"f64", 8}, {"bf16", 2}, {"f16", 2}, {"f8e4m3", 1}, {"i32", 4}, {"i64", 8}, {"u32", 4}, {"pred", 1}}};

}  // namespace

unsigned sizeOf(DType t) { return dtypes[size_t(t)].size; }
llvm::StringRef nameOf(DType t) { return dtypes[size_t(t)].name; }

std::optional<DType> parseDType(llvm::StringRef name) {
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (name == dtypes[i].name)
      return DType(i);
  return std::nullopt;
}

}  // namespace gptc
