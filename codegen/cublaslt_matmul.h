// A matmul group as one call of cuBLASLt, where the library has what the group asks for:
//
//   D = epilogue(op(A) op(B) + C)
//
// Matrices are as the library sees them, column after column, so that what lies in memory row by row is its own
// transpose: with D the transpose of the group's result, A comes from the group's operand b and B from a.
//
// Taken are groups of a matmul with
//   - a bias of the type of the result, a residual of the type of the result, or both;
//   - gelu behind the bias, its operand kept for the backward pass (in the type of the result) or not;
//   - the derivative of gelu at a kept operand;
//   - the gradient of a bias beside that of the weight.
// The library's types: factors of one type (f32, bf16, f16), sums in f32, C, D, bias and what is kept of one type,
// which is that of the factors or f32 (cublasLt.h of CUDA 13: CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
// _EPILOGUE_AUX_DATA_TYPE). So a bias in f32 beside results in bf16 is no call.
//
// The order of sums is the library's: equal for one version, one algorithm and one GPU, and another one for another
// batch, where that of generated kernels stays (docs/architecture.md).
#pragma once

#include "ir/graph.h"

#include <optional>

namespace gptc {

struct CublasLtMatmul {
  /// cuBLASLt's CUBLASLT_EPILOGUE_ of that name.
  enum class Epilogue { none, bias, gelu, geluBias, geluAux, geluAuxBias, geluGrad, biasGradA };
  /// `param` counts the group's operands and then its results, as parameters of its kernel do.
  struct Matrix {
    unsigned param = 0;
    DType dtype = DType::f32;
    bool transposed = false;          // op() of A and B
    int64_t rows = 0, cols = 0;       // as stored: before op()
    int64_t ld = 0, batchStride = 0;  // elements between columns, between matrices of a batch
  };

  int64_t m = 0, n = 0, k = 0, batch = 1;  // D is m x n
  Matrix a, b, d;
  std::optional<Matrix> c;
  bool tf32 = false;  // factors of f32 may be rounded
  Epilogue epilogue = Epilogue::none;
  int bias = -1;  // param: m elements, read or, with biasGradA, written
  int aux = -1;   // param: gelu's operand, as D; read with geluGrad, else written
};

/// Memory that a call may use: what NVIDIA recommends for Hopper and later, more than earlier GPUs need.
constexpr int64_t libraryWorkspace = 32 << 20;

/// nullopt where the group is no such call (codegen/recipes/matmul/cublaslt.cpp).
std::optional<CublasLtMatmul> matchCublasLtMatmul(const Op &fused);

}  // namespace gptc
