// Groups for the recipe row_fold: gradients of norms, with what stands around them.
#pragma once

#include "tests/support/recipe_harness.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace gptc::test {

struct RowsAndSums {
  std::string args, body;                     // body: without its yield
  std::vector<std::string> ofRows, ofTokens;  // results of either kind

  /// All in one group, whose results are those of rows, then those of tokens.
  Group together() const {
    std::vector<std::string> all = ofRows;
    all.insert(all.end(), ofTokens.begin(), ofTokens.end());
    return make("row_fold", all);
  }
  Group rows() const { return make("row", ofRows); }
  Group sums() const { return make("fold", ofTokens); }

private:
  /// `body` without the lines that `results` do not need: those of the other kind.
  Group make(const std::string &kind, const std::vector<std::string> &results) const {
    const bool rows = kind != "fold", sums = kind != "row";
    std::string lines, line;
    for (size_t at = 0; at < body.size(); at = body.find('\n', at) + 1) {
      line = body.substr(at, body.find('\n', at) - at);
      const bool ofSum = line.find("_params") != std::string::npos || line.find("reduce_sum") != std::string::npos,
                 ofBoth = line.find("cast") != std::string::npos;
      if (ofBoth || (ofSum ? sums : rows))
        lines += line + "\n";
    }
    std::string yielded;
    for (const std::string &r : results)
      yielded += (yielded.empty() ? "yield " : ", ") + r;
    return group(kind, args, lines + yielded);
  }
};

/// Widths that no vector divides, padding, narrow types, sums that go on, results of rows, sums of sums of a row, and
/// rows of which shared memory holds no eight.
inline std::vector<RowsAndSums> rowsAndSums() {
  std::vector<RowsAndSums> all;
  for (auto [rows, columns, fold] :
       {std::tuple{"4,16", "129->136", 16}, {"8", "64", 8}, {"2,24", "100", 24}, {"48", "72", 16}, {"16", "4001", 8}}) {
    const std::string wide = fmt::format("[{},{}]", rows, columns), each = fmt::format("[{}]", rows),
                      of = fmt::format("[{}]", columns);
    all.push_back({fmt::format("%dy: bf16{0}; %x: f32{0}; %g: f32{2}; %m: f32{1}; %r: f32{1}; %h: f32{0}; %ig: f32{2}; "
                               "%ib: f32{2}",
                               wide, each, of),
                   fmt::format("%d = cast %dy {{dtype=\"f32\"}} : f32{0}\n"
                               "%dg, %db = layernorm_grad_params %d, %x, %m, %r, %ig, %ib {{bias=true, fold={2}}} : "
                               "f32{1}, f32{1}\n"
                               "%dx = layernorm_grad %d, %x, %g, %m, %r : f32{0}\n"
                               "%s = add %h, %dx : f32{0}\n",
                               wide, of, fold),
                   {"%s"},
                   {"%dg", "%db"}});
    all.push_back({fmt::format("%d: f32{0}; %x: f32{0}; %g: f32{2}; %r: f32{1}", wide, each, of),
                   fmt::format("%dg = rmsnorm_grad_params %d, %x, %r {{fold={2}}} : f32{1}\n"
                               "%dx = rmsnorm_grad %d, %x, %g, %r : f32{0}\n"
                               "%n = row_sum %dx : f32{3}\n"
                               "%y = softmax %dx : f32{0}\n",
                               wide, of, fold, each),
                   {"%dx", "%n", "%y"},
                   {"%dg"}});
  }
  return all;
}

}  // namespace gptc::test
