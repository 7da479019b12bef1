#include "runtime/cuda/library_tuner.h"

#include "codegen/codegen.h"
#include "codegen/cuda/libraries.h"
#include "codegen/object_cache.h"
#include "ir/facts.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/library_product.h"
#include "runtime/cuda/random_memory.h"
#include "runtime/device/binding.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"
#include "support/median.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>

namespace gptc::cuda {

namespace {

constexpr double secondsInAll = 2;
constexpr int turns = 5;
constexpr double turnMs = 0.2;  // milliseconds of a turn; one call may be shorter than events resolve
constexpr int mostCalls = 64;   // per turn
constexpr double tooSlow = 1.3;
constexpr double longMs = 1, hopeless = 2;  // a single call as long, and as many times the best, is not repeated
constexpr double noise = 0.03;
constexpr DevicePtr granule = DevicePtr(productAlignment);

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// A matmul of the plan, for all calls that differ only in names and places.
struct Product {
  const CublasLtMatmul *matmul;
  std::vector<Place> memory;  // of the first call: operands, results, workspace
  std::vector<Op *> ops;
  std::string text;

  double work() const { return double(matmul->m) * double(matmul->n) * double(matmul->k) * double(matmul->batch); }
};

/// A product's record: the index of the chosen algorithm, then one line with name and milliseconds per algorithm.
std::string recordText(const MatmulCall &call, unsigned chosen, llvm::ArrayRef<double> ms) {
  std::string text = fmt::format("{}\n", chosen);
  for (unsigned i = 0; i < call.algorithms(); ++i)
    text += fmt::format("{} {:.4f}\n", call.nameOf(i), ms[i]);
  return text;
}

/// nullopt if the text is no record, or lists other algorithms than the library proposes now.
std::optional<unsigned> readRecord(llvm::StringRef text, const MatmulCall &call) {
  llvm::SmallVector<llvm::StringRef, 10> lines;
  text.split(lines, '\n', -1, /*KeepEmpty=*/false);
  unsigned chosen = 0;
  if (lines.size() != call.algorithms() + 1 || lines[0].getAsInteger(10, chosen) || chosen >= call.algorithms())
    return std::nullopt;
  for (unsigned i = 0; i < call.algorithms(); ++i) {
    int64_t name = 0;
    if (lines[i + 1].split(' ').first.getAsInteger(10, name) || name != call.nameOf(i))
      return std::nullopt;
  }
  return chosen;
}

/// Times one product at a time, in memory large enough for every product.
class Tuner {
public:
  Tuner(const Gpu &gpu, llvm::ArrayRef<Product> products) : gpu(gpu), begin(gpu, eventDefault), end(gpu, eventDefault) {
    size_t bytes = granule;
    for (const Product &p : products)
      bytes = std::max(bytes, place(p, 0).second);
    memory = std::make_unique<DeviceMemory>(gpu, bytes);
    gpu.d.check(gpu.d.memsetBytes(memory->at, 0, bytes, gpu.stream), "cuMemsetD8Async");
    random = std::make_unique<RandomMemory>(gpu, bytes);
    lt.check(lt.create(&handle), "cublasLtCreate");
  }
  ~Tuner() {
    gpu.d.streamSynchronize(gpu.stream);
    lt.destroy(handle);
  }
  Tuner(const Tuner &) = delete;

  MatmulCall call(const Product &p) const {
    const std::vector<DevicePtr> at = place(p, memory->at).first;
    return MatmulCall(handle, *p.matmul, at, at.back(), size_t(p.memory.back().bytes));
  }

  /// Fills a product's operands with random numbers.
  void fill(const Product &p) const {
    const std::vector<DevicePtr> at = place(p, memory->at).first;
    const Op &op = *p.ops.front();
    for (unsigned i = 0; i < op.numOperands(); ++i)
      random->fill(at[i], size_t(p.memory[i].bytes), op.operand(i)->type.dtype);
  }

  /// Median milliseconds of each algorithm over the turns it took part in; infinite if the library refuses to run it.
  /// Empty if no algorithm runs.
  std::vector<double> time(const MatmulCall &call) const {
    const unsigned n = call.algorithms();
    std::vector<std::unique_ptr<Calls>> calls(n);
    std::vector<bool> goesOn(n, true);
    std::vector<double> single(n, HUGE_VAL);
    for (unsigned i = 0; i < n; ++i) {
      const LtStatus first = call.tryEnqueue(gpu.stream, i);  // may load code, which must not happen during a capture
      gpu.wait();
      goesOn[i] = first == ltSuccess;
      if (!goesOn[i])
        continue;
      single[i] = once(Calls(gpu, call, i, 1));
      calls[i] = std::make_unique<Calls>(gpu, call, i, std::clamp(int(std::ceil(turnMs / single[i])), 1, mostCalls));
    }
    if (llvm::none_of(goesOn, [](bool runs) { return runs; }))
      return {};
    const double best = *std::min_element(single.begin(), single.end());
    for (unsigned i = 0; i < n; ++i)
      goesOn[i] = goesOn[i] && (single[i] < longMs || single[i] < hopeless * best);
    std::vector<std::vector<double>> ms(n);
    for (int turn = 0; turn < turns; ++turn) {
      for (unsigned i = 0; i < n; ++i) {
        if (!goesOn[i])
          continue;
        ms[i].push_back(once(*calls[i]));
      }
      // The lesser of two turns, because another process may have disturbed one.
      std::vector<double> least;
      for (unsigned i = 0; turn == 1 && i < n; ++i)
        least.push_back(ms[i].empty() ? HUGE_VAL : std::min(ms[i][0], ms[i][1]));
      for (unsigned i = 0; i < least.size(); ++i)
        goesOn[i] = least[i] < tooSlow * *std::min_element(least.begin(), least.end());
    }
    std::vector<double> medians;
    for (const std::vector<double> &all : ms)
      medians.push_back(all.empty() ? HUGE_VAL : medianOf(all));
    return medians;
  }

private:
  /// Several calls of one algorithm as a graph: the host cannot launch small products as fast as the GPU computes them.
  class Calls {
  public:
    Calls(const Gpu &gpu, const MatmulCall &call, unsigned algorithm, int count) : count(count), gpu(gpu) {
      gpu.d.check(gpu.d.streamBeginCapture(gpu.stream, captureThreadLocal), "cuStreamBeginCapture");
      for (int i = 0; i < count; ++i)
        call.enqueue(gpu.stream, algorithm);
      Graph captured = nullptr;
      gpu.d.check(gpu.d.streamEndCapture(gpu.stream, &captured), "cuStreamEndCapture");
      gpu.d.check(gpu.d.graphInstantiate(&graph, captured, 0), "cuGraphInstantiate");
      gpu.d.check(gpu.d.graphDestroy(captured), "cuGraphDestroy");
    }
    ~Calls() { gpu.d.graphExecDestroy(graph); }
    Calls(const Calls &) = delete;
    GraphExec graph = nullptr;
    const int count;

  private:
    const Gpu &gpu;
  };

  /// Milliseconds per call.
  double once(const Calls &calls) const {
    gpu.d.check(gpu.d.eventRecord(begin.event, gpu.stream), "cuEventRecord");
    gpu.d.check(gpu.d.graphLaunch(calls.graph, gpu.stream), "cuGraphLaunch");
    gpu.d.check(gpu.d.eventRecord(end.event, gpu.stream), "cuEventRecord");
    gpu.wait();
    float ms = 0;
    gpu.d.check(gpu.d.eventElapsedTime(&ms, begin.event, end.event), "cuEventElapsedTime");
    return std::max(double(ms), 1e-4) / calls.count;
  }

  /// Addresses of a product's memory from `from` on, a multiple of `granule`, and the total bytes. Alignment is as in
  /// the arena, and places that coincide there coincide here.
  static std::pair<std::vector<DevicePtr>, size_t> place(const Product &p, DevicePtr from) {
    std::map<int64_t, int64_t> bytes;  // by the place where they begin
    for (const Place &m : p.memory)
      bytes[m.at] = std::max(bytes[m.at], m.bytes);
    std::map<int64_t, DevicePtr> places;
    DevicePtr free = from;
    for (auto [at, n] : bytes) {
      places[at] = free + DevicePtr(at) % granule;
      free = (places[at] + DevicePtr(n) + granule - 1) / granule * granule;
    }
    std::vector<DevicePtr> at;
    for (const Place &m : p.memory)
      at.push_back(places[m.at]);
    return {at, size_t(free - from)};
  }

  const Gpu &gpu;
  const CublasLt &lt = CublasLt::get();
  LtHandle handle = nullptr;
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<RandomMemory> random;
  EventHandle begin, end;
};

/// Whether the op is a cuBLASLt call without a pinned algorithm.
bool isUndecided(const Op &op) {
  Schedule s;
  return Schedule::parse(fact<&GroupFacts::schedule>(op), s) && s.recipe == RecipeKind::matmul && s.library &&
         !s.algorithm;
}

/// The products of all functions, those with the most arithmetic first.
std::vector<Product> productsOf(Module &planned, Binder &binder) {
  std::vector<Product> products;
  std::map<std::string, size_t> known;
  for (const auto &f : planned.functions) {
    const BoundFunction bound = binder.bind(*f);
    for (const BoundGroup &g : bound.groups) {
      if (!isUndecided(*g.op))
        continue;
      std::string text = productText(*g.lowered->call, g.memory);
      auto [it, isNew] = known.try_emplace(text, products.size());
      if (isNew)
        products.push_back({&*g.lowered->call, g.memory, {}, text});
      for (Op &op : f->body)
        if (&op == g.op)
          products[it->second].ops.push_back(&op);
    }
  }
  llvm::stable_sort(products, [](const Product &a, const Product &b) { return a.work() > b.work(); });
  return products;
}

}  // namespace

unsigned fastest(llvm::ArrayRef<double> times) {
  const double least = *std::min_element(times.begin(), times.end());
  return unsigned(llvm::find_if(times, [&](double t) { return t <= least * (1 + noise); }) - times.begin());
}

static void tune(LibraryTuning &result, Module &planned, const Target &target, const std::string &cacheDir) {
  if (llvm::none_of(kernelsOf(planned), [](const PlannedKernel &k) { return isUndecided(*k.op); }))
    return;
  const Gpu gpu(target);
  Binder binder(planned, target, hostTarget());
  const std::vector<Product> products = productsOf(planned, binder);
  result.products = int(products.size());
  const Tuner tuner(gpu, products);
  const ObjectCache cache(cacheDir);
  const std::string machine = fmt::format("cublaslt algorithms 3 {} {} {} {}", gpu.name, gpu.multiprocessors,
                                          CudaLibrary::get(CudaLibraryId::driver).version.str(),
                                          CudaLibrary::get(CudaLibraryId::cublasLt).version.str());
  const Clock::time_point until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(secondsInAll));
  // A product that was begun is finished: one that never is would never be known, nor those behind it.
  for (const Product &p : products) {
    const MatmulCall call = tuner.call(p);
    if (!call.algorithms())
      continue;
    const std::string key =
        contentHash({llvm::ArrayRef(machine.data(), machine.size()), llvm::ArrayRef(p.text.data(), p.text.size())});
    std::optional<unsigned> chosen;
    if (std::optional<std::vector<char>> record = cache.read(key))
      chosen = readRecord(llvm::StringRef(record->data(), record->size()), call);
    if (chosen) {
      ++result.reused;
    } else if (call.algorithms() == 1) {
      chosen = 0;
    } else if (Clock::now() < until) {
      tuner.fill(p);
      const std::vector<double> ms = tuner.time(call);
      if (ms.empty())
        continue;
      ++result.timed;
      chosen = fastest(ms);
      const std::string text = recordText(call, *chosen, ms);
      cache.write(key, llvm::ArrayRef(text.data(), text.size()));
    } else {
      continue;
    }
    result.notFirst += *chosen != 0;
    for (Op *op : p.ops) {
      Schedule s;
      GPTC_CHECK(Schedule::parse(fact<&GroupFacts::schedule>(*op), s), "schedule of {}", op->loc);
      s.algorithm = call.nameOf(*chosen);
      setFact<&GroupFacts::schedule>(*op, s.str());
    }
  }
}

LibraryTuning pinAlgorithms(Module &planned, const Target &target, const std::string &cacheDir) {
  LibraryTuning result;
  const Clock::time_point start = Clock::now();
  try {
    tune(result, planned, target, cacheDir);
  } catch (const UserError &e) {
    result.problem = e.diagnostics[0].message;
  }
  result.seconds = since(start);
  return result;
}

}  // namespace gptc::cuda
