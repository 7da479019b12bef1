// kernel_bench [FILTER] [--threads N] [--bf16 | --f16] [--cold] [--schedule "matmul mr=.. .."] [--emit]: speed of the
// generated matmul and attention kernels at the shapes of GPT-2 124M (1024 tokens) and of the small character model,
// against the peak of the same core in the same moment.
//
// --bf16 and --f16 store all but weight gradients so; for bf16 the peak is that of dot products of pairs where there
// are any.
//
// --cold empties the caches before each measurement, as a training step does for most of what a kernel reads.
//
// With one thread it counts CPU time of the thread, so that other load on the machine disturbs little; with more it
// counts wall time on the pool. Each measurement stands between two runs of a loop of independent FMAs on registers.
#include "codegen/codegen.h"
#include "codegen/recipes/tile.h"
#include "ir/kernel/eval.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "support/median.h"
#include "support/thread_pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>

using namespace gptc;

namespace {

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

struct Runner {
  ThreadPool *pool = nullptr;  // null: this thread
  clockid_t clock() const { return pool ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID; }
  double seconds(const CompiledKernel &k, void *const *params) const {
    double t = now(clock());
    for (const CompiledPhase &p : k.phases) {
      if (!pool) {
        p.run(params, 0, p.tasks);
        continue;
      }
      struct Call {
        const CompiledPhase &p;
        void *const *params;
      } call{p, params};
      pool->run(
          p.tasks,
          [](void *c, int64_t b, int64_t e) { static_cast<Call *>(c)->p.run(static_cast<Call *>(c)->params, b, e); },
          &call);
    }
    return now(clock()) - t;
  }
};

/// FMAs, or dot products of pairs, on registers: `tasks` tasks of `steps` steps.
kir::Kernel peakKernel(const Target &target, bool pairs, int64_t tasks, int64_t steps) {
  using namespace kir;
  const int lanes = target.lanes(DType::f32), chains = int(target.vectorRegisters) - 4;
  Buffer out = makeBuffer("out", DType::f32, Storage::global, tasks * lanes, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, chains * lanes);
  auto every = [&](const std::function<Stmt(int, const Expr &)> &make) {
    return vectorLoop("j", imm(lanes), lanes, [&](const Expr &j) {
      std::vector<Stmt> all;
      for (int i = 0; i < chains; ++i)
        all.push_back(make(i, j));
      return all;
    });
  };
  Kernel k;
  k.name = "peak";
  k.params = {out};
  k.body = {parallel("t", tasks, [&](const Expr &t) {
    Stmt zero = every([&](int i, const Expr &j) { return store(acc, j + int64_t(i * lanes), fimm(i)); });
    Stmt steps_ = serial("k", imm(steps), [&](const Expr &) {
      Expr factor = load(out, t * lanes);
      return std::vector<Stmt>{bindTo("x", pairs ? pair(factor, factor) : factor, [&](const Expr &x) {
        return std::vector<Stmt>{every([&](int i, const Expr &j) {
          Expr at = j + int64_t(i * lanes);
          return store(acc, at, pairs ? dot(load(acc, at), x, x) : kir::fma(x, x, load(acc, at)));
        })};
      })};
    });
    Stmt sum = vectorLoop("j", imm(lanes), lanes, [&](const Expr &j) {
      Expr s = load(acc, j);
      for (int i = 1; i < chains; ++i)
        s = s + load(acc, j + int64_t(i * lanes));
      return std::vector<Stmt>{store(out, t * lanes + j, s)};
    });
    return std::vector<Stmt>{alloc(acc, {zero, steps_, sum})};
  })};
  return k;
}

struct Case {
  std::string name, args, body, kind;
  double flops = 0, bytes = 0;  // bytes: memory traffic that cannot be avoided, for cases that memory limits
};

std::string stored = "f32";  // or bf16, f16

std::string type(std::initializer_list<int64_t> dims, const std::string &dtype = stored) {
  std::string s = dtype + "[";
  for (int64_t d : dims)
    s += (s.back() == '[' ? "" : ",") + std::to_string(d);
  return s + "]";
}

Case product(const std::string &name, int64_t m, int64_t n, int64_t k, const std::string &kind, int64_t fold,
             const std::string &epilogue = "") {
  Case c;
  c.kind = "matmul";
  c.flops = 2.0 * double(m) * double(n) * double(k);
  if (m < 16)
    c.bytes = (stored == "f32" ? 4.0 : 2.0) * double(n) * double(k);
  bool ta = kind == "dw", tb = kind == "dx";
  c.name = fmt::format("{} {}x{}x{}{}{}{}", name, m, n, k, ta ? " ta" : "", tb ? " tb" : "",
                       epilogue.empty() ? "" : " " + epilogue);
  std::string a = ta ? type({k, m}) : type({m, k}), b = tb ? type({n, k}) : type({k, n}),
              y = type({m, n}, ta ? "f32" : stored);
  std::string at = ta ? fmt::format(" {{fold={}, out=\"f32\", ta=true}}", fold) : tb ? " {tb=true}" : "";
  c.args = fmt::format("%a: {}, %b: {}", a, b);
  c.body = fmt::format("%y = matmul %a, %b{} : {}\n", at, y);
  if (epilogue == "gelu_grad") {
    c.args += fmt::format(", %h: {}", y);
    c.body += fmt::format("%g = gelu_tanh_grad %y, %h : {}\nyield %g\n", y);
  } else if (epilogue == "bias+gelu") {
    c.args += fmt::format(", %c: {}", type({n}));
    c.body += fmt::format("%z = add %y, %c : {}\n%g = gelu_tanh %z : {}\nyield %z, %g\n", y, y);
  } else {
    c.body += "yield %y\n";
  }
  return c;
}

/// Of h heads of queries and `kv` (0: as many) of keys.
Case attention(const std::string &name, int64_t b, int64_t t, int64_t h, int64_t d, bool grad, double p = 0,
               int64_t kv = 0) {
  Case c;
  c.kind = grad ? "attention_grad" : "attention";
  c.name = fmt::format("{} B{} T{} H{}{} D{}{}", name, b, t, h, kv ? fmt::format("/{}", kv) : "", d,
                       p > 0 ? " dropout" : "");
  c.flops = 2.0 * double(b) * double(h) * double(t) * double(t) * double(d) * (grad ? 2.5 : 1);
  std::string qkv = type({b, t, (h + 2 * (kv ? kv : h)) * d}), o = type({b, t, h * d}), lse = type({b, h, t}, "f32");
  std::string at = fmt::format("{{n_head={}, n_kv_head={}{}}}", h, kv, p > 0 ? fmt::format(", p={}, stream=3", p) : "");
  std::string seeds = p > 0 ? ", %seed: i64[], %step: i64[], %seq: i64[]" : "",
              use = p > 0 ? ", %seed, %step, %seq" : "";
  if (grad) {
    c.args = fmt::format("%do: {}, %x: {}, %o: {}, %l: {}{}", o, qkv, o, lse, seeds);
    c.body = fmt::format("%d = attention_grad %do, %x, %o, %l{} {} : {}\nyield %d\n", use, at, qkv);
  } else {
    c.args = fmt::format("%x: {}{}", qkv, seeds);
    c.body = fmt::format("%o, %l = attention %x{} {} : {}, {}\nyield %o, %l\n", use, at, o, lse);
  }
  return c;
}

Case cached(int64_t s, int64_t h, int64_t d) {
  Case c;
  c.kind = "attention_cached";
  c.name = fmt::format("attention_cached S{} H{} D{}", s, h, d);
  c.flops = 4.0 * double(s) * double(h) * double(d);
  c.bytes = (stored == "f32" ? 8.0 : 4.0) * double(s) * double(h) * double(d);
  std::string cache = type({h, s, d});
  c.args = fmt::format("%x: {}, %k: {}, %v: {}, %pos: i64[]", type({1, 1, 3 * h * d}), cache, cache);
  c.body =
      fmt::format("%o, %k2, %v2 = attention_cached %x, %k, %v, %pos {{n_head={}}} : {}, {}, {}\nyield %o, %k2, %v2\n",
                  h, type({1, 1, h * d}), cache, cache);
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  auto linear = [&](const std::string &model, int64_t tokens, int64_t in, int64_t out, int64_t fold) {
    all.push_back(product(model + " y", tokens, out, in, "y", 0));
    all.push_back(product(model + " dx", tokens, in, out, "dx", 0));
    all.push_back(product(model + " dw", in, out, tokens, "dw", fold));
  };
  for (auto [in, out] : {std::pair<int64_t, int64_t>{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}})
    linear("gpt2", 1024, in, out, 256);
  all.push_back(product("gpt2 y", 1024, 3072, 768, "y", 0, "bias+gelu"));
  all.push_back(product("gpt2 dx", 1024, 3072, 768, "dx", 0, "gelu_grad"));
  all.push_back(product("gpt2 logits", 1024, 50257, 768, "dx", 0));
  all.push_back(product("gpt2 dlogits", 1024, 768, 50257, "y", 0));
  all.push_back(product("gpt2 dwte", 50257, 768, 1024, "dw", 256));
  for (auto [in, out] : {std::pair<int64_t, int64_t>{128, 384}, {128, 128}, {128, 512}, {512, 128}, {128, 65}})
    linear("char", 768, in, out, 64);
  all.push_back(product("char y", 768, 512, 128, "y", 0, "bias+gelu"));
  for (auto [in, out] : {std::pair<int64_t, int64_t>{768, 2304}, {3072, 768}})
    all.push_back(product("decode", 1, out, in, "y", 0));
  all.push_back(product("decode", 1, 50257, 768, "dx", 0));
  all.push_back(product("decode", 8, 50257, 768, "dx", 0));
  all.push_back(attention("attention", 4, 1024, 12, 64, false));
  all.push_back(attention("attention_grad", 4, 1024, 12, 64, true));
  all.push_back(attention("attention", 4, 1024, 12, 64, false, 0.2));
  all.push_back(attention("attention_grad", 4, 1024, 12, 64, true, 0.2));
  all.push_back(attention("attention", 1, 1024, 12, 64, false, 0, 1));
  all.push_back(attention("attention_grad", 1, 1024, 12, 64, true, 0, 1));
  all.push_back(attention("attention", 4, 256, 12, 64, false));
  all.push_back(attention("attention_grad", 4, 256, 12, 64, true));
  all.push_back(attention("attention", 12, 64, 4, 32, false));
  all.push_back(attention("attention_grad", 12, 64, 4, 32, true));
  all.push_back(cached(1024, 12, 64));
  return all;
}

std::unique_ptr<Module> moduleOf(const Case &c) {
  // Result types are those of what is yielded, found by parsing the body as a function first.
  std::string plain = c.body;
  plain.replace(plain.find("yield"), 5, "return");
  auto probe = parseModule(fmt::format("func @f({}) {{\n{}\n}}", c.args, plain), "bench");
  std::string types, results, names;
  unsigned n = 0;
  for (const Value *v : probe->functions[0]->body.back()->operands()) {
    types += (types.empty() ? "" : ", ") + v->type.str();
    results += fmt::format("{}%r{}", results.empty() ? "" : ", ", n++);
  }
  for (const auto &a : probe->functions[0]->body.args)
    names += (names.empty() ? "%" : ", %") + a->name;
  return parseModule(
      fmt::format("func @f({}) -> ({}) {{\n{} = fused {} {{kind=\"{}\"}} : {} {{\n^({})\n{}\n}}\nreturn {}\n}}", c.args,
                  types, results, names, c.kind, types, c.args, c.body, results),
      "bench");
}

}  // namespace

int main(int argc, char **argv) {
  std::string filter, given;
  unsigned threads = 1;
  bool emit = false, cold = false;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i];
    if (a == "--threads" && i + 1 < argc)
      threads = unsigned(std::atoi(argv[++i]));
    else if (a == "--schedule" && i + 1 < argc)
      given = argv[++i];
    else if (a == "--bf16" || a == "--f16")
      stored = a.substr(2);
    else if (a == "--cold")
      cold = true;
    else if (a == "--emit")
      emit = true;
    else
      filter = a;
  }
  Target target = hostTarget(std::max(threads, 2u));
  Jit jit(target, "");
  std::unique_ptr<ThreadPool> pool;
  if (threads > 1)
    pool = std::make_unique<ThreadPool>(threads);
  Runner runner{pool.get()};

  const int64_t peakTasks = threads, peakSteps = 40000;
  const bool pairs = stored == "bf16" && target.bf16Dot;
  kir::Kernel peak = peakKernel(target, pairs, peakTasks, peakSteps);
  CompiledKernel peakCode = jit.compile({&peak})[0];
  std::vector<float> peakOut(size_t(peakTasks * target.lanes(DType::f32)), 1.0f);
  void *peakParams[] = {peakOut.data()};
  const double peakFlops =
      (pairs ? 4.0 : 2.0) * double(peakTasks * peakSteps) * target.lanes(DType::f32) * (target.vectorRegisters - 4);

  std::printf("%-44s %8s %9s %7s %7s  %s\n", "case", "ms", "GFLOP/s", "% peak", "GB/s", "schedule");
  for (const Case &c : cases()) {
    if (c.name.find(filter) == std::string::npos)
      continue;
    auto module = moduleOf(c);
    const Op &fused = *module->functions[0]->body.front();
    Schedule s = defaultSchedule(fused, target);
    if (!given.empty() && !Schedule::parse(given, s)) {
      std::fprintf(stderr, "bad schedule\n");
      return 2;
    }
    LoweredGroup low = lowerGroup(fused, s, target);
    if (emit) {
      std::puts(emitLLVM(low.kernel, target, true).c_str());
      continue;
    }
    CompiledKernel code = jit.compile({&low.kernel})[0];
    std::vector<std::unique_ptr<char, decltype(&std::free)>> memory;
    std::vector<void *> params;
    for (const kir::Buffer &b : low.kernel.params) {
      // Large pages, as the runtime's arena has.
      size_t bytes = size_t(roundUp(b->size * sizeOf(b->dtype), 2 << 20));
      memory.emplace_back(static_cast<char *>(std::aligned_alloc(2 << 20, bytes)), &std::free);
      (void)madvise(memory.back().get(), bytes, MADV_HUGEPAGE);
      params.push_back(memory.back().get());
      auto value = [](int64_t i) { return float((i * 2654435761u >> 16 & 1023) - 511) / 1024.0f; };
      if (b->dtype == DType::f32)
        for (int64_t i = 0; i < b->size; ++i)
          static_cast<float *>(params.back())[i] = value(i);
      else if (b->dtype == DType::bf16)
        for (int64_t i = 0; i < b->size; ++i)
          static_cast<uint16_t *>(params.back())[i] = kir::bitsOfBF16(kir::roundBF16(value(i)));
      else if (b->dtype == DType::f16)
        for (int64_t i = 0; i < b->size; ++i)
          static_cast<uint16_t *>(params.back())[i] = kir::bitsOfF16(kir::roundF16(value(i)));
      else
        std::memset(params.back(), 0, bytes);
      if (b->dtype == DType::i64)  // the position of a cached attention
        static_cast<int64_t *>(params.back())[0] = 1 << 20;
    }
    runner.seconds(code, params.data());
    std::vector<double> times, ratios;
    std::vector<char> swept(cold ? 4 * target.l3Bytes : 0);
    double total = 0;
    for (int r = 0; r < 200 && (r < 5 || total < 0.6); ++r) {
      if (cold)
        std::fill(swept.begin(), swept.end(), char(r));
      double before = runner.seconds(peakCode, peakParams);
      double t = runner.seconds(code, params.data());
      double after = runner.seconds(peakCode, peakParams);
      times.push_back(t);
      ratios.push_back(c.flops / t / (2 * peakFlops / (before + after)));
      total += t;
    }
    double t = medianOf(times);
    std::printf("%-44s %8.3f %9.1f %6.1f%% %7.1f  %s\n", c.name.c_str(), t * 1e3, c.flops / t * 1e-9,
                medianOf(ratios) * 100, c.bytes / t * 1e-9, s.str().c_str());
    std::fflush(stdout);
  }
}
