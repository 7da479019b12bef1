// panels_bench [--tokens N] [--bf16] [--threads N] [--rounds N]: the products of GPT-2 124M that read a weight, with
// the weight in panels against packing it themselves. Both kernels run in turn, at their default schedules, with the
// caches swept before each; the median of the ratios of neighbours, their quartiles, and what packing takes of an
// element.
#include "codegen/codegen.h"
#include "codegen/tuner/group_bench.h"
#include "ir/opdef.h"
#include "support/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

using namespace gptc;

namespace {

std::unique_ptr<Module> product(DType stored, int64_t m, int64_t n, int64_t k, bool tb, int64_t cols) {
  const Type a(stored, {Dim(m), Dim(k)}), b(stored, {Dim(tb ? n : k), Dim(tb ? k : n)}),
      y(DType::f32, {Dim(m), Dim(n)});
  const std::string operand = (cols ? *panelsOf(b, cols, tb) : b).str();
  const std::string unpack = cols ? fmt::format("%b = unpack %p {{tb={}}} : {}\n", tb, b.str()) : "";
  const std::string args = fmt::format("%a: {}, %{}: {}", a.str(), cols ? "p" : "b", operand);
  return parseModule(
      fmt::format("func @f({0}) -> ({1}) {{\n%y = fused %a, %{2} {{kind=\"matmul\"}} : {1} {{\n^({0})\n{3}"
                  "%y = matmul %a, %b {{out=\"f32\", tb={4}}} : {1}\nyield %y\n}}\nreturn %y\n}}",
                  args, y.str(), cols ? "p" : "b", unpack, tb),
      "bench");
}

double at(std::vector<double> v, double share) {
  std::sort(v.begin(), v.end());
  return v[size_t(share * double(v.size() - 1))];
}

}  // namespace

int main(int argc, char **argv) {
  int64_t tokens = 256, rounds = 25;
  unsigned threads = 2;
  DType stored = DType::f32;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    auto number = [&] { return i + 1 < argc ? std::atoll(argv[++i]) : 0; };
    if (a == "--tokens")
      tokens = number();
    else if (a == "--rounds")
      rounds = number();
    else if (a == "--threads")
      threads = unsigned(number());
    else if (a == "--bf16")
      stored = DType::bf16;
  }
  if (tokens < 5 || rounds < 1 || threads < 1) {
    fmt::print(stderr, "panels_bench: --tokens from 5, --rounds and --threads from 1\n");
    return 2;
  }
  const Target target = hostTarget(threads);
  ThreadPool pool(threads);
  fmt::print("{:<22} {:>9} {:>9} {:>7} {:^15} {:>13}  {}\n", "m x n x k", "packs ms", "panels ms", "ratio", "quartiles",
             "cycles/elem", "schedule with panels");
  double before = 0, now = 0;
  for (bool tb : {false, true})
    for (auto [in, out] :
         {std::pair<int64_t, int64_t>{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50257}}) {
      // The classifier's table is [out,in]: forward is AB', back is AB.
      const bool forward = tb == (out > 10000);
      const int64_t n = forward ? out : in, k = forward ? in : out;
      auto plain = product(stored, tokens, n, k, tb, 0),
           packed = product(stored, tokens, n, k, tb, tileColumns(target, tokens, n));
      GroupBench a(*plain->functions[0]->body.front(), target, pool, true);
      GroupBench b(*packed->functions[0]->body.front(), target, pool, true);
      std::vector<double> ratios, packs, panels;
      for (int64_t r = 0; r < rounds; ++r) {
        packs.push_back(a.time(a.base(), 1, 0, HUGE_VAL).median);
        panels.push_back(b.time(b.base(), 1, 0, HUGE_VAL).median);
        ratios.push_back(panels.back() / packs.back());
      }
      const double ratio = at(ratios, 0.5), p = at(packs, 0.5);
      before += p, now += p * ratio;
      fmt::print("{:<22} {:>9.3f} {:>9.3f} {:>7.3f} {:>6.3f} .. {:.3f} {:>13.2f}  {}\n",
                 fmt::format("{}x{}x{} {}", tokens, n, k, tb ? "AB'" : "AB"), 1e3 * p, 1e3 * at(panels, 0.5), ratio,
                 at(ratios, 0.25), at(ratios, 0.75), p * (1 - ratio) * threads * 4e9 / double(n * k),
                 b.base().schedule.str());
      std::fflush(stdout);
    }
  fmt::print("all: {:.3f}\n", now / before);
}
