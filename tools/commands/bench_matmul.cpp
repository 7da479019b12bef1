// gptc bench matmul: measures the products of a model's linear layers by themselves, for several numbers of tokens.
//
//   1. Compile the model to find its products: those of the forward pass, and both gradients of each.
//   2. For each number of tokens, replace the token extent and compile the product without prologue or epilogue, with
//      the recorded schedule or the default.
//   3. Run it between runs of the peak loop. A share of peak refers to the better of the two neighbours: products draw
//      so much power that within a second the clock falls by a tenth, and the rate of a rested machine does not measure
//      a schedule. Both rates are printed.
#include "codegen/cpu/peak.h"
#include "codegen/tuner/group_bench.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/commands/command_line.h"
#include "tools/commands/commands.h"
#include "tools/compiler/compile.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/variants.h"
#include "tools/study/step_ops.h"
#include "tools/study/step_runner.h"

#include <cmath>
#include <map>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

struct Product {
  Type a, b, y;
  bool ta = false, tb = false;
  int64_t fold = 0;  // of dw
  double calls = 0;  // per step

  /// Activations A times a weight B, stored or transposed; or activations A times a gradient B.
  const char *form() const { return ta ? "A'B" : tb ? "AB'" : "AB"; }
  int64_t m(int64_t tokens) const { return ta ? a.dim(-1) : tokens; }
  int64_t n() const { return y.dim(-1); }
  int64_t k(int64_t tokens) const { return ta ? tokens : a.dim(-1); }
  double flops(int64_t tokens) const { return 2.0 * double(m(tokens)) * double(n()) * double(k(tokens)); }
  /// The product with `tokens` tokens, as the body of a fused op.
  std::unique_ptr<Module> module(int64_t tokens) const {
    auto flat = [&](const Type &t, bool ofTokens) {
      return Type(t.dtype, {ofTokens ? Dim(tokens) : t.dims.front(), t.dims.back()});
    };
    const std::string left = flat(a, true).str(), right = flat(b, ta).str(), out = flat(y, !ta).str();
    std::string attrs = ta ? fmt::format("fold={}, ta=true", std::min(fold, tokens)) : tb ? "tb=true" : "";
    if (y.dtype != a.dtype)
      attrs += fmt::format("{}out=\"{}\"", attrs.empty() ? "" : ", ", nameOf(y.dtype));
    if (!attrs.empty())
      attrs = " {" + attrs + "}";
    return parseModule(
        fmt::format("func @f(%a: {0}, %b: {1}) -> ({2}) {{\n%r = fused %a, %b {{kind=\"matmul\"}} : {2} {{\n"
                    "^(%a: {0}, %b: {1})\n%y = matmul %a, %b{3} : {2}\nyield %y\n}}\nreturn %r\n}}",
                    left, right, out, attrs),
        "product");
  }
};

/// Products over the tokens of a micro-batch, equal ones once.
std::vector<Product> productsOf(const Module &planned) {
  std::map<std::string, size_t> known;
  std::vector<Product> all;
  forEachOpOfStep(planned, [&](const Op &op, double calls) {
    if (!op.is(OpKind::fused))
      return;
    for (const Op &member : *op.body) {
      if (!member.is(OpKind::matmul) || member.attrs.getInt("batch"))
        continue;
      Product p{member.operand(0)->type, member.operand(1)->type, member.result()->type};
      p.ta = member.attrs.getBool("ta");
      p.tb = member.attrs.getBool("tb");
      p.fold = member.attrs.getInt("fold");
      auto [it, added] =
          known.try_emplace(fmt::format("{} {} {} {}", p.form(), p.a.str(), p.b.str(), p.y.str()), all.size());
      if (added)
        all.push_back(p);
      all[it->second].calls += calls;
    }
  });
  return all;
}

struct Sum {
  double flops = 0, seconds = 0, atPeak = 0;  // atPeak: seconds at the peak measured beside each product
  void add(double times, double f, double t, double peak) {
    flops += times * f;
    seconds += times * t;
    atPeak += times * f / peak;
  }
};

struct Request {
  std::string modelFile;
  std::vector<std::string> settings;
  std::vector<int64_t> tokens = {256, 512, 1024, 2048, 4096};
  double seconds = 0.3, search = 0;
  unsigned threads = 0;
  bool cold = false, json = false;
};

void run(const Request &r) {
  const Config config = readConfigForBench(r.modelFile, r.settings);
  const Target target = hostTarget(r.threads);
  ThreadPool pool(target.threads);
  const std::vector<Product> products = productsOf(*runFrom(*buildModel(config), "canonicalize", target));
  TuningRecords records(config.compile.autotune == "off" ? "" : defaultCacheDir());
  TunedSchedules tuned(records, target, &pool);

  const DType operands = products.at(0).a.dtype;
  const double rested = measurePeakFlops(pool, target, operands);
  PeakLoop peak(pool, target, operands);
  json rows = json::array(), sums = json::array();
  if (!r.json)
    fmt::print("{:>6} {:<18} {:<4} {:>5} {:>9} {:>9} {:>8} {:>8}  {}\n", "tokens", "m x n x k", "", "calls", "ms",
               "GFLOP/s", "% beside", "% rested", "schedule");
  auto close = [&](const std::string &of, const std::string &form, const Sum &s) {
    if (r.json)
      return sums.push_back({{"tokens", of},
                             {"form", form},
                             {"gflops", s.flops / s.seconds * 1e-9},
                             {"of_peak_beside", s.atPeak / s.seconds},
                             {"of_rested_peak", s.flops / s.seconds / rested}});
    fmt::print("{:>6} {:<18} {:<4} {:>5} {:>9} {:>9.1f} {:>7.1f}% {:>7.1f}%\n", of, "all, by FLOPs", form, "", "",
               s.flops / s.seconds * 1e-9, 100 * s.atPeak / s.seconds, 100 * s.flops / s.seconds / rested);
  };
  Sum all;
  double most = 0;  // largest share of a peak
  std::map<std::string, Sum> byForm;
  for (int64_t tokens : r.tokens) {
    Sum sum;
    for (const Product &p : products) {
      const std::unique_ptr<Module> module = p.module(tokens);
      const Op &fused = *module->functions[0]->body.front();
      GroupBench bench(fused, target, pool, r.cold);
      Trial trial = bench.base();
      std::optional<Schedule> better = tuned.find(fused, target);
      if (r.search > 0) {
        SearchResult found = searchSchedules(fused, target, pool, {.seconds = r.search, .cold = r.cold});
        better = found.trials[found.best].schedule;
      }
      if (better)
        if (std::vector<Trial> t = bench.propose({*better}); !t.empty()) {  // empty: it gives the default's own kernel
          bench.build({&t[0]});
          if (t[0].outcome == Trial::Outcome::timed && bench.check(t[0], HUGE_VAL) == Trial::Outcome::timed)
            trial = t[0];
        }
      std::vector<double> times, peaks;
      for (double total = 0; times.size() < 5 || (total < r.seconds && times.size() < 1000); total += times.back()) {
        const double before = peak.run();
        times.push_back(bench.time(trial, 1, 0, HUGE_VAL).median);
        peaks.push_back(std::max(before, peak.run()));
      }
      const Spread t = spreadOf(times), beside = spreadOf(peaks);
      const double flops = p.flops(tokens), rate = flops / t.median;
      most = std::max({most, rate / beside.median, rate / rested});
      sum.add(p.calls, flops, t.median, beside.median);
      all.add(p.calls, flops, t.median, beside.median);
      byForm[p.form()].add(p.calls, flops, t.median, beside.median);
      const std::string shape = fmt::format("{}x{}x{}", p.m(tokens), p.n(), p.k(tokens));
      if (r.json)
        rows.push_back({{"tokens", tokens},
                        {"m", p.m(tokens)},
                        {"n", p.n()},
                        {"k", p.k(tokens)},
                        {"form", p.form()},
                        {"calls", p.calls},
                        {"ms", {{"median", 1e3 * t.median}, {"least", 1e3 * t.least}, {"most", 1e3 * t.most}}},
                        {"gflops", rate * 1e-9},
                        {"of_peak_beside", rate / beside.median},
                        {"of_rested_peak", rate / rested},
                        {"schedule", trial.schedule.str()}});
      else
        fmt::print("{:>6} {:<18} {:<4} {:>5} {:>9.3f} {:>9.1f} {:>7.1f}% {:>7.1f}%  {}\n", tokens, shape, p.form(),
                   p.calls, 1e3 * t.median, rate * 1e-9, 100 * rate / beside.median, 100 * rate / rested,
                   trial.schedule.str());
      std::fflush(stdout);
    }
    close(fmt::format("{}", tokens), "", sum);
  }
  for (const auto &[form, sum] : byForm)
    close("", form, sum);
  close("", "", all);
  if (r.json)
    fmt::print("{}\n", json{{"dtype", nameOf(operands)},
                            {"threads", target.threads},
                            {"rested_peak_gflops", rested * 1e-9},
                            {"products", rows},
                            {"sums", sums}}
                           .dump(2));
  else if (most > 1)
    fmt::print("above 100%: something else ran while the peak was measured\n");
}

}  // namespace

void addMatmulBench(Command &bench) {
  Command c = bench.command("matmul", "Measures the products of a model's linear layers by themselves");
  auto r = std::make_shared<Request>();
  addModel(c, r->modelFile, r->settings);
  c.option("--tokens", r->tokens, "Numbers of tokens [256,512,1024,2048,4096]")
      .separatedBy(',')
      .tokens(1, int64_t(1) << 20);
  c.option("--seconds", r->seconds, "Spent on each product, five runs at least [0.3]").within(0.0, 1e4);
  c.option("--search", r->search, "Seconds to search each product's schedule first, beyond what is on record [0]")
      .within(0.0, 1e4);
  c.flag("--cold", r->cold, "Empties the caches before each run, as most of a step does");
  c.option("--threads", r->threads, "Threads (0: all cores)").within(0, 4096);
  c.flag("--json", r->json, "Prints JSON instead of a table");
  c.run([r] { run(*r); });
}

}  // namespace gptc
