#include "tests/support/rank_threads.h"

#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/pass.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/in_process.h"
#include "runtime/cuda/cuda_executor.h"
#include "runtime/device/arena.h"
#include "runtime/device/cpu_executor.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tools/planner/codegen_passes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <thread>

namespace gptc {

std::unique_ptr<Module> importedFor(const RankCut &c) {
  const int64_t batch = sequences / c.data / c.microBatches;
  std::vector<std::string> settings = {"model.preset=none",
                                       "model.n_layer=1",
                                       "model.n_head=2",
                                       "model.n_embd=64",
                                       fmt::format("model.vocab_size={}", vocabulary),
                                       fmt::format("model.block_size={}", block),
                                       "model.dropout=0.1",
                                       fmt::format("optimizer.name={}", c.optimizer),
                                       fmt::format("optimizer.lr={}", c.optimizer == "adafactor" ? 0.2
                                                                      : c.optimizer == "sgd"     ? 0.1
                                                                                                 : 0.01),
                                       "optimizer.momentum=0.9",
                                       "optimizer.first_moment=0.9",
                                       "optimizer.warmup_steps=1",
                                       fmt::format("train.micro_batch={}", batch),
                                       fmt::format("precision.compute={}", c.compute),
                                       fmt::format("train.global_batch_tokens={}", sequences / c.data * block),
                                       "compile.remat=none",
                                       fmt::format("compile.target={}", c.target)};
  settings.insert(settings.end(), c.settings.begin(), c.settings.end());
  std::unique_ptr<Module> m = buildModel(loadConfig("", settings, [](const std::string &) { return int64_t(0); }));
  m->attrs.set("mesh_data", c.data);
  m->attrs.set("mesh_tensor", c.tensor);
  m->attrs.set("zero_stage", c.stage);
  m->attrs.set("reduce_order", c.order);
  m->attrs.set("shards", c.order == "tree" ? logicalShards / c.data : int64_t(1));
  return m;
}

void fillBatch(int step, int64_t sequence, int64_t count, std::vector<int32_t> &x, std::vector<int32_t> &y) {
  x.resize(count * block);
  y.resize(count * block);
  for (int64_t i = 0; i < count * block; ++i) {
    const int64_t at = (step * sequences + sequence) * block + i;
    x[i] = int32_t(at * at % vocabulary), y[i] = int32_t((at + 1) * (at + 1) % vocabulary);
  }
}

namespace {

/// Cache of compiled kernels, which are the same on all ranks and for most cuts.
const std::string &cacheDir() { return test::sharedFolder("kernels-of-ranks"); }

/// The communicators of threads along both axes of a mesh.
class Axes {
public:
  explicit Axes(const Mesh &mesh) : mesh(mesh) {
    for (const char *axis : {"data", "tensor"})
      for (int64_t r = 0; r < mesh.ranks(); ++r)
        if (mesh.index(axis, r) == 0) {
          Group g{fmt::format("{}-of-{}", axis, r), {}};
          for (int64_t member : mesh.group(axis, r))
            g.members.push_back(int(member));
          groups[{axis, r}] = std::make_unique<InProcess>(g, std::chrono::seconds(20));
        }
  }
  std::unique_ptr<Communicator> join(const char *axis, int64_t rank) {
    return groups.at({axis, mesh.group(axis, rank)[0]})->join(int(mesh.index(axis, rank)));
  }

private:
  const Mesh mesh;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<InProcess>> groups;
};

/// Leaves a barrier, if there is one, at the end of a scope.
class Leaving {
public:
  explicit Leaving(std::barrier<> *meeting) : meeting(meeting) {}
  ~Leaving() {
    if (meeting)
      meeting->arrive_and_drop();
  }
  Leaving(const Leaving &) = delete;
  Leaving &operator=(const Leaving &) = delete;

private:
  std::barrier<> *const meeting;
};

}  // namespace

static Target targetOf(const RankCut &c) { return c.target == "cpu" ? hostTarget(1) : cudaTarget(c.target); }

std::unique_ptr<Module> plannedFor(const RankCut &c, const AttrMap &more) {
  registerCodegenPasses();
  const Target target = targetOf(c);
  std::unique_ptr<Module> m = importedFor(c);
  for (const auto &[name, value] : more)
    m->attrs.set(name, value);
  PipelineOptions options;
  options.reproFile = "";
  std::string passes = defaultPipeline();
  if (const std::string name = "overlap-collectives"; c.bucket)
    passes.insert(passes.find(name) + name.size(), fmt::format("{{bucket={}}}", c.bucket));
  if (c.slot)
    passes += fmt::format("{{slot={}}}", c.slot);  // plan-memory's, the last pass
  runPipeline(*m, parsePipeline(passes, &target), options);
  return m;
}

Contents contentsOf(Executor &executor) {
  Contents all;
  for (const auto &s : executor.planned().states) {
    const auto kind = kindOf(*s);
    if ((kind != StateKind::param && kind != StateKind::moment && kind != StateKind::anchor) ||
        s->type.dtype != DType::f32)
      continue;
    const StateView view = executor.view(*s, StateAccess::read);
    all[s->name].assign(view.as<float>(), view.as<float>() + s->type.paddedElements());
  }
  return all;
}

void onRanks(const Module &m, const Target &target, llvm::function_ref<void(int, Executor &)> work,
             std::barrier<> *meeting) {
  const Target host = hostTarget(1);
  const Mesh mesh = Mesh::of(m);
  InProcess together(int(mesh.ranks()), std::chrono::seconds(20));
  Axes axes(mesh);
  std::vector<std::string> problems(mesh.ranks());
  auto rank = [&](int r) {
    const std::unique_ptr<Communicator> all = together.join(r), data = axes.join("data", r),
                                        tensor = axes.join("tensor", r);
    ThreadPool pool(1);
    std::optional<Arena> arena;
    std::unique_ptr<Executor> made;
    if (target.isCuda())
      made = std::make_unique<cuda::CudaExecutor>(m, target, host, pool, cacheDir(), r);
    else
      made = std::make_unique<CpuExecutor>(m, target, host, arena.emplace(m.attrs.getInt("arena_bytes")), pool,
                                           cacheDir());
    Executor &executor = *made;
    executor.ranks = all.get(), executor.dataRanks = data.get(), executor.tensorRanks = tensor.get();
    work(r, executor);
    EXPECT_TRUE(executor.intact());
    executor.leave();
    data->finish();
    tensor->finish();
    all->finish();
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < int(mesh.ranks()); ++r)
    threads.emplace_back([&, r] {
      const Leaving leaving(meeting);
      try {
        rank(r);
      } catch (const UserError &e) {
        problems[r] = e.diagnostics[0].message;
      } catch (const std::exception &e) {
        problems[r] = e.what();
      }
    });
  for (std::thread &t : threads)
    t.join();
  for (size_t r = 0; r < problems.size(); ++r)
    EXPECT_EQ(problems[r], "") << "rank " << r;
}

EveryRanksResults runOnRanks(const std::string &text, const std::string &target) {
  registerCodegenPasses();
  const Target t = target == "cpu" ? hostTarget(1) : cudaTarget(target);
  const std::unique_ptr<Module> m = parseModule(text, "ranks.gir");
  const size_t ranks = size_t(Mesh::of(*m).ranks());
  EveryRanksResults all{std::vector<std::vector<std::vector<double>>>(ranks), {}};
  std::vector<std::vector<Tensor>> args(ranks);
  std::vector<std::vector<std::vector<float>>> memory(ranks);
  const Function &f = *m->function("f");
  for (size_t r = 0; r < ranks; ++r)
    for (const auto &arg : f.body.args) {
      Tensor &x = args[r].emplace_back(arg->type);
      for (size_t i = 0; i < x.data.size(); ++i)
        x.data[i] = double(100 * r + i);
      memory[r].emplace_back(x.data.begin(), x.data.end());
    }
  std::vector<StateMap> states(ranks);
  for (const std::vector<Tensor> &results : interpretRanks(f, args, states)) {
    std::vector<std::vector<double>> &values = all.reference.emplace_back();
    for (const Tensor &x : results)
      values.push_back(x.data);
  }
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(*m, parsePipeline(defaultPipeline("fuse"), &t), options);
  const Function &planned = *m->function("f");
  onRanks(*m, t, [&](int r, Executor &executor) {
    std::vector<const void *> in;
    for (const std::vector<float> &x : memory[size_t(r)])
      in.push_back(x.data());
    executor.run("f", in);
    for (unsigned i = 0; i < planned.body.back()->numOperands(); ++i) {
      const Type &type = planned.body.back()->operand(i)->type;
      const void *at = executor.result("f", i);
      std::vector<double> &values = all.got[size_t(r)].emplace_back();
      for (int64_t e = 0; e < type.elements(); ++e)
        values.push_back(type.dtype == DType::i64 ? double(static_cast<const int64_t *>(at)[e])
                                                  : double(static_cast<const float *>(at)[e]));
    }
  });
  return all;
}

RanksOutcome train(const RankCut &c, int steps) {
  const std::unique_ptr<Module> planned = plannedFor(c);
  const Module &m = *planned;
  const Mesh mesh = Mesh::of(m);
  const int64_t batch = sequences / c.data / c.microBatches, shards = m.attrs.getInt("shards");
  std::vector<RanksOutcome> of(c.ranks());
  onRanks(m, targetOf(c), [&](int r, Executor &executor) {
    initializeStates(executor, 7);
    std::vector<int32_t> x, y;
    for (int step = 0; step < steps; ++step) {
      const float targets = float(sequences * block);
      const char *last = c.microBatches > 1 ? "update" : "train_step";
      for (int64_t k = 0; k < c.microBatches; ++k) {
        const int64_t sequence = (mesh.index("data", r) * c.microBatches + k) * batch;
        fillBatch(step, sequence, batch, x, y);
        executor.run(c.microBatches > 1 ? "accumulate" : last, {x.data(), y.data(), &sequence, &targets});
        const int64_t perShard = c.microBatches / std::max<int64_t>(1, shards),
                      shard = k / std::max<int64_t>(1, perShard);
        if (shards > 1 && (k + 1) % perShard == 0 && shard + 1 < shards)
          executor.run(fmt::format("fold{}", std::countr_one(uint64_t(shard))), {&targets});
      }
      if (c.microBatches > 1)
        executor.run(last, {&targets});
      of[r].losses.push_back(*static_cast<const float *>(executor.result(last, 0)));
    }
    for (const auto &s : m.states)
      if (const std::string kind = s->attrs.getString("kind"); kind == "param" || kind == "moment") {
        std::vector<char> &whole = of[r].states[s->name];
        whole.resize(wholeType(*s).bytes());
        loadWhole(executor, *s, whole.data());
      }
  });
  for (int r = 0; r < c.ranks(); ++r)
    EXPECT_TRUE(of[r] == of[0]) << "rank " << r << " has another result than rank 0";
  return of[0];
}

}  // namespace gptc
