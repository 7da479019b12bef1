// What kernels are called in images of a GPU.
#include "codegen/cuda/jit.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

kir::Kernel kernel(const std::string &name, int64_t size) {
  kir::Buffer a = kir::makeBuffer("a", DType::f32, kir::Storage::global, size);
  return {name, {a}, {}};
}

TEST(CudaSymbol, IsTheNameOfTheKernelAndAHashOfIt) {
  const std::string symbol = cudaSymbol(kernel("row_layernorm_grad", 8)), prefix = "row_layernorm_grad_";
  ASSERT_EQ(symbol.substr(0, prefix.size()), prefix);
  const std::string hash = symbol.substr(prefix.size());
  EXPECT_EQ(hash.size(), 8u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos) << hash;
  EXPECT_EQ(cudaSymbol(kernel("row_softmax", 8)), "row_softmax_" + hash) << "the hash knows no names";
  EXPECT_NE(cudaSymbol(kernel("row_layernorm_grad", 9)), symbol);
}

TEST(CudaSymbol, IsShortAndAnIdentifier) {
  auto name = [](const std::string &of) {
    const std::string symbol = cudaSymbol(kernel(of, 8));
    return symbol.substr(0, symbol.size() - 9);
  };
  EXPECT_EQ(name("matmul_matmul_add"), "matmul_add");
  EXPECT_EQ(name("attention_grad_attention_grad"), "attention_grad");
  EXPECT_EQ(name("attention_attention_grad"), "attention_grad");
  EXPECT_EQ(name("row_rowwise"), "row_rowwise");
  EXPECT_EQ(name("pointwise_reduce_sum_broadcast_layernorm_grad_multiply_add"),
            "pointwise_reduce_sum_broadcast_layernorm_grad");
  EXPECT_EQ(name(std::string(60, 'x')), std::string(48, 'x'));
  EXPECT_EQ(name("7 of\nmine"), "k7_of_mine");
  EXPECT_EQ(name(""), "k");
}

}  // namespace
}  // namespace gptc::test
