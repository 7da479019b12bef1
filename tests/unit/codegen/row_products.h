// Groups for the recipe row_matmul: products of few rows, with what stands before and behind them.
#pragma once

#include "tests/support/recipe_harness.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace gptc::test {

/// A product y [rows,N] of x [rows,K]; no operand but x and z has rows.
struct RowProduct {
  std::string args, body;  // with `{}` for the number of rows

  Group of(int64_t rows) const {
    return group("row_matmul", fmt::format(fmt::runtime(args), rows), fmt::format(fmt::runtime(body), rows));
  }
};

/// Both layouts of the matrix, widths that no vector divides, padding, norms of norms, matrices of few and of many
/// blocks, and more results than threads.
inline std::vector<RowProduct> rowProducts() {
  return {
      {"%x: f32[1,{0},100]; %w: f32[100,36]", "%y = matmul %x, %w : f32[1,{0},36]\nyield %y"},
      {"%x: bf16[{0},67]; %w: bf16[67,33->40]; %b: bf16[33->40]; %z: f32[{0},33->40]",
       "%y = matmul %x, %w {{out=\"f32\"}} : f32[{0},33->40]\n"
       "%c = cast %b {{dtype=\"f32\"}} : f32[33->40]\n"
       "%d = add %y, %c : f32[{0},33->40]\n"
       "%s = add %d, %z : f32[{0},33->40]\n"
       "yield %s"},
      {"%x: f32[{0},40]; %g: f32[40]; %b: f32[40]; %w: bf16[40,2056]",
       "%n, %m, %r = layernorm %x, %g, %b {{eps=1e-5}} : f32[{0},40], f32[{0}], f32[{0}]\n"
       "%a = cast %n {{dtype=\"bf16\"}} : bf16[{0},40]\n"
       "%y = matmul %a, %w {{out=\"f32\"}} : f32[{0},2056]\n"
       "%h = relu %y : f32[{0},2056]\n"
       "%o = cast %h {{dtype=\"bf16\"}} : bf16[{0},2056]\n"
       "yield %h, %o"},
      {"%x: f32[{0},5]; %g: f32[5]; %w: f32[5,16640]", "%n, %r = rmsnorm %x, %g {{eps=1e-5}} : f32[{0},5], f32[{0}]\n"
                                                       "%p, %q = rmsnorm %n, %g {{eps=1e-5}} : f32[{0},5], f32[{0}]\n"
                                                       "%y = matmul %p, %w : f32[{0},16640]\n"
                                                       "yield %y"},
      {"%x: bf16[{0},136]; %z: bf16[{0},136]; %w: bf16[1100,136]", "%u = silu %x : bf16[{0},136]\n"
                                                                   "%a = mul %u, %z : bf16[{0},136]\n"
                                                                   "%y = matmul %a, %w {{tb=true}} : bf16[{0},1100]\n"
                                                                   "yield %y"},
      {"%x: f32[{0},21->24]; %w: f32[4500,21->24]", "%y = matmul %x, %w {{tb=true}} : f32[{0},4500]\n"
                                                    "yield %y"},
      {"%x: f32[{0},1060]; %w: f32[3,1060]", "%y = matmul %x, %w {{tb=true}} : f32[{0},3]\nyield %y"},
      {"%x: f16[{0},1]; %w: f16[3,1]", "%y = matmul %x, %w {{tb=true}} : f16[{0},3]\nyield %y"},
  };
}

}  // namespace gptc::test
