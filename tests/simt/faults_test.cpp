// Faults in the text of loop trees: each barrier and each wait for the kernels in front taken out, each index of an
// access one too far, in kernels of the examples of every recipe that is one. At least 95 in a hundred must be noticed.
// Those of matmul and attention have their faults beside their tests.
#include "cases.h"
#include "examples.h"

#include "support/diagnostics.h"
#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

namespace gptc::test {
namespace {

struct Fault {
  std::string what;
  size_t at, length;  // in the text
  std::string by;
};

constexpr const char *indexFault = "an index one too far";

/// The end of the argument that begins at `at`.
size_t endOfArgument(const std::string &text, size_t at) {
  for (int depth = 0;; ++at)
    if (std::string_view("({[").find(text[at]) != std::string_view::npos)
      ++depth;
    else if (depth == 0 && (text[at] == ',' || text[at] == ')'))
      return at;
    else if (std::string_view(")}]").find(text[at]) != std::string_view::npos)
      --depth;
}

std::vector<Fault> faultsOf(const std::string &text) {
  std::vector<Fault> faults;
  const std::regex barrier("\\bbarrier\\(\\);"), wait("\\bwaitForPrevious\\(\\);"),
      access("\\b(load|store)(Vector<\\d+>)?\\(");
  for (std::sregex_iterator it(text.begin(), text.end(), barrier), end; it != end; ++it)
    // A row without a target: the barrier guards a load whose value it does not use.
    if (!std::regex_search(text.substr(0, size_t(it->position())), std::regex("else \\{\\s*$")))
      faults.push_back({"no barrier", size_t(it->position()), size_t(it->length()), ";"});
  for (std::sregex_iterator it(text.begin(), text.end(), wait), end; it != end; ++it)
    faults.push_back({"no wait", size_t(it->position()), size_t(it->length()), ";"});
  for (std::sregex_iterator it(text.begin(), text.end(), access), end; it != end; ++it) {
    const size_t begin = endOfArgument(text, size_t(it->position() + it->length())) + 1;
    const size_t length = endOfArgument(text, begin) - begin;
    faults.push_back({indexFault, begin, length, fmt::format("({}) + 1", text.substr(begin, length))});
  }
  return faults;
}

/// Two kernels of each recipe, of each number of barriers. `recipes` gets the names of the recipes.
std::vector<Case> someLoopTrees(std::set<std::string> &recipes) {
  std::map<std::pair<std::string, size_t>, int> taken;
  std::vector<Case> cases;
  const Target target = cudaTarget("cuda:sm_90a");
  // Rows of several warps: those of one need no barrier, as each lane folds what it has stored itself. And a cache with
  // more tokens than a block has threads, and ids of which some occur often.
  constexpr int64_t cached = 300, often = 40, vocabulary = 131;
  OneIn some(2);
  for (auto [compute, tokens] :
       {std::pair{"fp32", int64_t(9)}, {"bf16", int64_t(9)}, {"fp32", cached}, {"bf16", often}, {"fp32", often}}) {
    if (some.skips())
      continue;
    const std::unique_ptr<Module> m = exampleForTarget(
        "bloom-small",
        {"model.n_layer=1", "model.n_embd=160", "model.n_head=4", "model.ffn_dim=100",
         fmt::format("model.vocab_size={}", vocabulary), "model.dropout=0.1", "train.micro_batch=2",
         fmt::format("model.block_size={}", tokens), fmt::format("train.global_batch_tokens={}", 4 * tokens),
         fmt::format("precision.compute={}", compute)},
        target);
    for (const auto &f : m->functions)
      for (const Op &op : f->body) {
        if (!op.is(OpKind::fused))
          continue;
        const std::string kind = op.attrs.getString("kind");
        bool hasCache = false;
        for (const Op &member : *op.body)
          hasCache |= member.is(OpKind::attention_cached);
        // A choice is a long text of many places; random operands would make most of its faults no difference.
        if (kind == "matmul" || kind == "attention" || kind == "attention_grad" || kind == "choice" ||
            (kind == "scatter") != (tokens == often) ||
            (hasCache ? tokens != cached || op.operand(0)->type.dim(1) != 1 : tokens == cached))
          continue;
        Group g = alone(op);
        std::vector<Tensor> operands = randomOperands(g, unsigned(cases.size()), 3);
        // Any number not much below a row's maximum is as good. So every other row has a peak: without it, exp
        // overflows.
        if (kind == "row" && op.operand(0)->type.dim(-1) == vocabulary)
          for (size_t row = 1; row * vocabulary < operands[0].data.size(); row += 2)
            operands[0].data[row * vocabulary + row * 29 % vocabulary] = 200;
        if (tokens == often)
          for (size_t i = 0; i < operands[1].data.size(); ++i)
            operands[1].data[i] = i % 4 ? 1 : i % 16 / 4 ? 2 : 130;
        if (tokens == cached)
          for (Tensor &x : operands)
            if (x.type.dtype == DType::i64)
              x.data[0] = double(cached - op.operand(0)->type.dim(1));
        // Few threads, so that each adds several products, also of rows that others have made.
        std::optional<Schedule> schedule;
        if (kind == "row_matmul") {
          schedule = defaultSchedule(op, target);
          schedule->threads = 192;
          if (!schedule->mr)
            schedule->nc = 2 * schedule->nr;
        }
        Case c = makeCase(std::move(g), std::move(operands), schedule);
        const std::string text = emitCuda(c.gpu, "k").text;
        size_t barriers = 0;
        for (size_t at = 0; (at = text.find("barrier();", at)) != std::string::npos; ++at)
          ++barriers;
        if (++taken[{hasCache ? kind + " with a cache" : kind, barriers}] > 2)
          continue;
        recipes.insert(kind);
        cases.push_back(std::move(c));
      }
  }
  return cases;
}

TEST(LoopTrees, FaultsAreNoticed) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  std::set<std::string> recipes;
  const std::vector<Case> cases = someLoopTrees(recipes);
  EXPECT_GE(recipes.size(), 6u);

  // All in one program: names of one length, so that a fault is at one place in all of a kernel's texts.
  struct Planted {
    size_t of;
    Fault fault;
    CudaKernel kernel;
  };
  std::vector<Planted> all;
  std::string text;
  std::vector<std::string> symbols;
  auto add = [&](size_t of, const Fault &fault) {
    CudaKernel k = emitCuda(cases[of].gpu, fmt::format("k{:05}", all.size()));
    k.text.replace(fault.at, fault.length, fault.by);
    text += k.text;
    for (const CudaPhase &p : k.phases)
      symbols.push_back(p.symbol);
    all.push_back({of, fault, std::move(k)});
  };
  OneIn some(4);  // of indices, which are nine in ten; each fault is a text to compile
  for (size_t i = 0; i < cases.size(); ++i) {
    add(i, {"", 0, 0, ""});
    for (const Fault &fault : faultsOf(emitCuda(cases[i].gpu, "k00000").text))
      if (fault.what != indexFault || !some.skips())
        add(i, fault);
  }
  const simt::HostModule module(text, symbols);
  std::vector<std::vector<double>> right, inPlace;
  auto isCaught = [&](const Planted &p) {
    const Case &c = cases[p.of];
    return isNoticed(c, module, p.kernel, right) ||
           (!c.inPlace.empty() && isNoticed(c, module, p.kernel, inPlace, true));
  };
  struct Count {
    int caught = 0, tried = 0;
  };
  std::map<std::string, Count> counts;
  std::string missed;
  for (const Planted &p : all) {
    if (p.fault.what.empty()) {
      ASSERT_EQ(runOnShim(cases[p.of], module, p.kernel, false, false, right), "") << p.kernel.text;
      ASSERT_EQ(runOnShim(cases[p.of], module, p.kernel, false, true, inPlace), "") << p.kernel.text;
      ASSERT_FALSE(isCaught(p)) << p.kernel.text;
      continue;
    }
    const bool caught = isCaught(p);
    for (const std::string &key : {p.fault.what, std::string("all")})
      ++counts[key].tried, counts[key].caught += caught;
    if (!caught)
      missed += fmt::format("{}, of {}: {}\n", p.fault.what, cases[p.of].gpu.name,
                            p.kernel.text.substr(p.fault.at - std::min<size_t>(p.fault.at, 80), 120));
  }
  if (!missed.empty())
    std::printf("not noticed:\n%s", missed.c_str());
  for (const auto &[what, n] : counts) {
    std::printf("planted faults, loop trees, %s: %d of %d noticed\n", what.c_str(), n.caught, n.tried);
    EXPECT_GE(100 * n.caught, 95 * n.tried) << what;
  }
  EXPECT_GE(counts["no barrier"].tried, 10);
}

}  // namespace
}  // namespace gptc::test
