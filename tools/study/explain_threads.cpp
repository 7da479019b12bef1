#include "tools/study/explain_threads.h"

#include "codegen/codegen.h"
#include "ir/kernel/kernel.h"
#include "runtime/device/binding.h"
#include "runtime/device/profile.h"
#include "runtime/device/waves.h"
#include "support/diagnostics.h"
#include "support/thread_stack.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace gptc {

using json = nlohmann::ordered_json;

namespace {

constexpr size_t kRows = 8;  // of a table

/// Bytes of all stack buffers in a statement; those of statements side by side may share memory, and count all the
/// same.
int64_t stackBytesOf(const kir::StmtNode &s) {
  int64_t bytes = 0;
  if (s.kind == kir::StmtKind::Alloc && s.buffer->storage == kir::Storage::stack)
    bytes += s.buffer->size * int64_t(sizeOf(s.buffer->dtype));
  for (const auto *statements : {&s.body, &s.orelse})
    for (const kir::Stmt &inner : *statements)
      bytes += stackBytesOf(*inner);
  return bytes;
}

/// Collects the stretches of a function in the order in which the CPU's executor runs it.
class Collector {
public:
  Collector(FunctionOnThreads &f, unsigned threads) : f(f), threads(threads) {}

  void add(const BoundGroup &group) {
    // Ranks meet here: kernels before and after are not side by side.
    if (group.lowered->collectives || !group.waitsFor.empty())
      finish();
    if (group.lowered->collectives)
      return;
    CompiledKernel &code = codes.emplace_back();
    for (const kir::Stmt &phase : group.lowered->kernel.body)
      code.phases.push_back({nullptr, taskCount(*phase)});
    std::vector<void *> &params = memory.emplace_back();
    std::vector<int64_t> &bytes = sizes.emplace_back();
    for (const Place &p : group.memory) {
      params.push_back(reinterpret_cast<void *>(p.at));  // only compared
      bytes.push_back(p.bytes);
    }
    if (!waves)
      waves.emplace(threads);
    waves->add({&code, params, bytes, group.op->numOperands()});
    members.resize(waves->size());
    members.back().push_back({&group, &code});
  }

  void finish() {
    for (size_t wave = 0; wave < members.size(); ++wave) {
      const llvm::ArrayRef<WavePhase> phases = (*waves)[wave];
      for (size_t phase = 0; phase < phases.size(); ++phase)
        add(members[wave], phase, phases[phase].size());
    }
    waves.reset();
    members.clear();
  }

private:
  using Member = std::pair<const BoundGroup *, const CompiledKernel *>;

  void add(llvm::ArrayRef<Member> wave, size_t phase, int64_t pieces) {
    Stretch s{.pieces = pieces, .times = 1, .threads = threads};
    std::vector<const void *> key = {nullptr};
    int64_t most = 0;
    for (const auto &[group, code] : wave) {
      const int64_t tasks = phase < code->phases.size() ? code->phases[phase].tasks : 0;
      if (tasks == 0)
        continue;
      key.push_back(group->lowered);
      s.tasks += tasks;
      ++s.kernels;
      if (tasks > most)
        s.place = describe(*group->op), most = tasks;
    }
    if (s.kernels == 0)
      return;
    const auto [at, isNew] = known.try_emplace({phase, key}, f.stretches.size());
    if (isNew)
      f.stretches.push_back(std::move(s));
    else
      ++f.stretches[at->second].times;
  }

  FunctionOnThreads &f;
  const unsigned threads;
  std::deque<CompiledKernel> codes;  // what waves point to
  std::deque<std::vector<void *>> memory;
  std::deque<std::vector<int64_t>> sizes;
  std::optional<Waves> waves;                // since ranks met last
  std::vector<std::vector<Member>> members;  // of each of these waves
  std::map<std::pair<size_t, std::vector<const void *>>, size_t> known;
};

}  // namespace

double Stretch::busy() const {
  const int64_t rounds = (pieces + threads - 1) / threads;
  return double(pieces) / double(rounds * threads);
}

int64_t FunctionOnThreads::barriers() const {
  int64_t n = 0;
  for (const Stretch &s : stretches)
    n += s.pieces > 1 && s.threads > 1 ? s.times : 0;
  return n;
}

PlanOnThreads onThreads(const Plan &plan, unsigned threads) {
  if (plan.target.isCuda())
    throw UserError(ErrorCode::Usage, "the plan is for GPUs, and --threads is about CPUs",
                    "gptc explain PLAN --target H200 says what a step costs on that GPU");
  PlanOnThreads all{.threads = threads};
  Binder binder(*plan.planned, plan.target, plan.target);
  for (const auto &function : plan.planned->functions) {
    const BoundFunction bound = binder.bind(*function);
    FunctionOnThreads &f = all.functions.emplace_back();
    f.name = function->name;
    Collector collector(f, threads);
    for (const BoundGroup &group : bound.groups) {
      collector.add(group);
      for (const kir::Stmt &phase : group.lowered->kernel.body)
        all.stackBytes = std::max(all.stackBytes, stackBytesOf(*phase));
    }
    collector.finish();
  }
  return all;
}

std::string tableOf(const PlanOnThreads &all) {
  std::string text = fmt::format("threads     {} on paper, with the schedules of the plan\n", all.threads);
  text += fmt::format("memory      each thread has a stack of {}, of which kernels' buffers take at most {}\n",
                      formatBytes(double(kThreadStack)), formatBytes(double(all.stackBytes)));
  for (const FunctionOnThreads &f : all.functions) {
    text += fmt::format("\n{:<60} {:>8} {:>8} {:>10} {:>6}\n",
                        fmt::format("@{}: {} barriers; the least busy between two", f.name, f.barriers()), "times",
                        "tasks", "per thread", "busy");
    std::vector<const Stretch *> rows;
    for (const Stretch &s : f.stretches)
      rows.push_back(&s);
    llvm::stable_sort(rows, [](const Stretch *a, const Stretch *b) { return a->busy() < b->busy(); });
    for (const Stretch *s : llvm::ArrayRef(rows).take_front(kRows)) {
      const std::string more = s->kernels > 1 ? fmt::format(" and {} more", s->kernels - 1) : "";
      text += fmt::format("{:<60} {:>8} {:>8} {:>10.1f} {:>5.0f}%\n",
                          fmt::format("{:.{}}{}", s->place, 60 - more.size(), more), s->times, s->tasks,
                          double(s->tasks) / all.threads, 100 * s->busy());
    }
  }
  return text;
}

json jsonOf(const PlanOnThreads &all) {
  json functions = json::array();
  for (const FunctionOnThreads &f : all.functions) {
    json stretches = json::array();
    for (const Stretch &s : f.stretches)
      stretches.push_back({{"place", s.place},
                           {"kernels", s.kernels},
                           {"tasks", s.tasks},
                           {"pieces", s.pieces},
                           {"times", s.times},
                           {"busy", s.busy()}});
    functions.push_back({{"function", f.name}, {"barriers", f.barriers()}, {"between_barriers", stretches}});
  }
  return {{"threads", all.threads},
          {"stack_bytes", kThreadStack},
          {"stack_bytes_of_kernels", all.stackBytes},
          {"functions", functions}};
}

}  // namespace gptc
