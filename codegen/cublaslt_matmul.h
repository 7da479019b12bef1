// A matmul group as one call of cuBLASLt, if the library has an epilogue for the group:
//
//   D = epilogue(op(A) op(B) + C)
//
// The library reads matrices in column-major order, so a row-major matrix of the group is its transpose. D is therefore
// the transpose of the group's result, A is made from the group's operand b, and B from a.
//
// Supported groups are a matmul with any of
//   - a bias of the type of the result, a residual of the type of the result, or both;
//   - gelu after the bias; its operand may be a result too, for the backward pass, in the type of the result;
//   - the derivative of gelu at a kept operand;
//   - the gradient of a bias beside that of the weight;
//   - of factors in f8e4m3 a scalar factor of the product, a bias and a residual, and no more.
// The library's types: both factors have one type (f32, bf16, f16, and below f8e4m3); sums are f32; C, D, the bias and
// gelu's operand have one type, which is that of the factors or f32 (cublasLt.h of CUDA 13:
// CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, _EPILOGUE_AUX_DATA_TYPE). So a group with an f32 bias and bf16 results is not
// supported. Factors in f8e4m3 (cuBLAS's documentation of cublasLtMatmul, "FP8 kernels"): C and D are bf16 or f32, the
// bias is bf16, k runs along the rows of both, and 16 divides k and m.
//
// The library chooses the order of sums. It is the same for one version, algorithm and GPU, but may change with the
// batch size. The order in generated kernels does not (docs/architecture.md).
#pragma once

#include "ir/graph.h"

#include <optional>

namespace gptc {

struct CublasLtMatmul {
  /// The CUBLASLT_EPILOGUE_ constant of the same name.
  enum class Epilogue { none, bias, gelu, geluBias, geluAux, geluAuxBias, geluGrad, biasGradA };
  /// `param` is a parameter of the group's kernel: operands come first, then results.
  struct Matrix {
    unsigned param = 0;
    DType dtype = DType::f32;
    bool transposed = false;          // op() of A and B
    int64_t rows = 0, cols = 0;       // as stored, before op()
    int64_t ld = 0, batchStride = 0;  // elements between columns, between matrices of a batch
  };

  int64_t m = 0, n = 0, k = 0, batch = 1;  // D is m x n
  Matrix a, b, d;
  std::optional<Matrix> c;
  bool tf32 = false;  // f32 factors may be rounded to tf32
  Epilogue epilogue = Epilogue::none;
  int bias = -1;   // param of m elements: written by biasGradA, else read; -1: none
  int scale = -1;  // param of an f32 scalar: the factor of op(A) op(B), for factors in f8e4m3; -1: none
  int aux = -1;    // param of gelu's operand, laid out as D: read by geluGrad, else written; -1: none
};

/// Bytes that a call may use: NVIDIA's recommendation for Hopper and later, which is more than earlier GPUs need.
constexpr int64_t libraryWorkspace = 32 << 20;

/// The call that computes the group, or nullopt if there is none (codegen/recipes/matmul/cublaslt.cpp).
std::optional<CublasLtMatmul> matchCublasLtMatmul(const Op &fused);

}  // namespace gptc
