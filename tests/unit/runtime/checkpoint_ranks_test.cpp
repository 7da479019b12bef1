// Checkpoints of several ranks, which are threads here: what each writes, and that any other mesh reads it.
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/in_process.h"
#include "runtime/device/cpu_executor.h"
#include "runtime/plan/plan.h"

#include "support/diagnostics.h"
#include "support/json.h"
#include "temp_dir.h"

#include "llvm/ADT/STLExtras.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

/// A small model for a mesh: rows over "data", columns of three groups over "tensor", and what is not cut.
struct Cuts {
  int64_t data = 1, tensor = 1;
  bool wholeCopies = false;  // as in ZeRO's stages 1 and 2
  int64_t padded = 40;       // rows of the embedding, of which 37 are logical
  bool apart = false;        // ranks along "data" meet in outer steps alone: each has all, and moments of its own
};

/// Gives every state a place in the arena.
std::unique_ptr<Module> placed(const Cuts &c, const std::string &text) {
  std::unique_ptr<Module> m = parseModule(text, "test");
  m->attrs.set("mesh_data", c.data);
  m->attrs.set("mesh_tensor", c.tensor);
  int64_t at = 0;
  for (auto &s : m->states) {
    s->attrs.set("at", at);
    at += (s->type.bytes() + 63) / 64 * 64;
  }
  m->attrs.set("arena_bytes", at);
  return m;
}

/// As passes/outer_steps.cpp makes them.
std::unique_ptr<Module> moduleApart(const Cuts &c) {
  std::string text = "module {sync_every=5} {\n";
  for (const auto &[name, type, places] : {std::tuple{"wte.weight", fmt::format("f32[37->{},9]", c.padded), c.padded},
                                           {"qkv.weight", std::string("f32[8,48]"), int64_t(8)},
                                           {"ln.weight", std::string("f32[11]"), int64_t(11)},
                                           {"head.weight", std::string("f32[16,10]"), int64_t(16)}}) {
    const std::string cut = c.data == 1 ? "" : fmt::format(", cut_data=[0, {0}, {0}, {0}]", c.data * places);
    text += fmt::format("state @{0} : {1} {{kind=\"param\"}}\nstate @m.{0} : {1} {{kind=\"moment\"{2}}}\n"
                        "state @anchor.{0} : {1} {{kind=\"anchor\", of=\"{0}\"}}\n"
                        "state @outer.{0} : {1} {{kind=\"moment\"}}\n",
                        name, type, cut);
  }
  return placed(c, text + "state @step : i64[] {kind=\"counter\"}\n}");
}

std::unique_ptr<Module> moduleFor(const Cuts &c) {
  if (c.apart)
    return moduleApart(c);
  auto rows = [&](int64_t logical, int64_t padded) {
    return c.data == 1 ? fmt::format("{}{}", logical, padded == logical ? "" : fmt::format("->{}", padded))
                       : fmt::format("{}", padded / c.data);
  };
  const std::string rowCut = c.data > 1 ? fmt::format(", cut_data=[0, 37, {0}, {0}]", c.padded) : "";
  const std::string qkvCut = (c.tensor > 1 ? std::string(", cut_tensor=[1, 48, 48, 16, 16, 16]") : "") +
                             (c.data > 1 ? std::string(", cut_data=[0, 8, 8, 8]") : "");
  std::string text = "module {\n";
  for (const char *kind : {"param", "moment"}) {
    const std::string prefix = *kind == 'p' ? "" : "m.";
    text +=
        fmt::format("state @{}wte.weight : f32[{},9] {{kind=\"{}\"{}}}\n", prefix, rows(37, c.padded), kind, rowCut);
    text += fmt::format("state @{}qkv.weight : f32[{},{}] {{kind=\"{}\"{}}}\n", prefix, rows(8, 8), 48 / c.tensor, kind,
                        qkvCut);
    text += fmt::format("state @{}ln.weight : f32[11] {{kind=\"{}\"}}\n", prefix, kind);
    text += fmt::format("state @{}head.weight : f32[16,10] {{kind=\"{}\"}}\n", prefix, kind);
  }
  if (c.wholeCopies)
    text += fmt::format("state @whole.wte.weight : f32[37->{},9] {{kind=\"whole\", of=\"wte.weight\"}}\n", c.padded);
  return placed(c, text + "state @step : i64[] {kind=\"counter\"}\n}");
}

/// Runs `work` on every rank of a mesh; returns the codes of what they threw, 0 for nothing.
std::vector<int> onRanks(const Cuts &c, const std::function<void(Executor &)> &work) {
  const std::unique_ptr<Module> m = moduleFor(c);
  const Mesh mesh = Mesh::of(*m);
  std::vector<int> codes(mesh.ranks());
  InProcess all(int(mesh.ranks()), std::chrono::seconds(20));
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<InProcess>> axes;
  for (const char *axis : {"data", "tensor"})
    for (int64_t r = 0; r < mesh.ranks(); ++r)
      if (mesh.index(axis, r) == 0) {
        Group g{fmt::format("{}{}", axis, r), {}};
        for (int64_t member : mesh.group(axis, r))
          g.members.push_back(int(member));
        axes[{axis, r}] = std::make_unique<InProcess>(g, std::chrono::seconds(20));
      }
  std::vector<std::thread> threads;
  for (int r = 0; r < mesh.ranks(); ++r)
    threads.emplace_back([&, r] {
      auto join = [&](const char *axis) {
        return axes.at({axis, mesh.group(axis, r)[0]})->join(int(mesh.index(axis, r)));
      };
      const auto together = all.join(r), data = join("data"), tensor = join("tensor");
      ThreadPool pool(1);
      Arena arena(m->attrs.getInt("arena_bytes"));
      const Target host = hostTarget(1);
      CpuExecutor executor(*m, host, host, arena, pool, "");
      if (mesh.ranks() > 1)
        executor.ranks = together.get(), executor.dataRanks = data.get(), executor.tensorRanks = tensor.get();
      codes[r] = codeThrown([&] { work(executor); });
      if (codes[r])
        return;  // the others see it gone
      EXPECT_TRUE(arena.intact());
      data->finish();
      tensor->finish();
      together->finish();
    });
  for (std::thread &t : threads)
    t.join();
  return codes;
}

/// A value that belongs to a state and a logical place.
float valueOf(const std::string &state, int64_t place) { return float(place + 1000 * int64_t(state.size())); }

void fillStates(Executor &executor, int64_t step) {
  for (const auto &s : executor.planned().states) {
    const Type whole = wholeType(*s);
    if (s->type.dtype != DType::f32 || s->attrs.getString("kind") == "whole")
      continue;
    std::vector<float> dense(whole.elements()), padded(whole.paddedElements());
    for (size_t i = 0; i < dense.size(); ++i)
      dense[i] = valueOf(s->name, int64_t(i)) + float(step);
    copyToPadded(whole, dense.data(), padded.data());
    storeWhole(executor, *s, padded.data());
  }
  fillCopies(executor);
  writeCounter(executor, "step", step);
}

void expectStates(Executor &executor, int64_t step, const std::string &when, bool parametersOnly = false) {
  for (const auto &s : executor.planned().states) {
    const Type whole = wholeType(*s);
    if (s->type.dtype != DType::f32 || (parametersOnly && s->attrs.getString("kind") != "param"))
      continue;
    std::vector<float> padded(whole.paddedElements()), dense(whole.elements());
    loadWhole(executor, *s, padded.data());
    copyFromPadded(whole, padded.data(), dense.data());
    const std::string name = s->attrs.getString("of", s->name);
    for (size_t i = 0; i < dense.size(); ++i)
      ASSERT_EQ(dense[i], valueOf(name, int64_t(i)) + float(step)) << when << ": " << s->name << " " << i;
  }
}

std::vector<Cuts> meshes() {
  return {{1, 1}, {2, 1}, {4, 1}, {4, 1, true}, {1, 2}, {2, 2}, {1, 1, false, 64}, {4, 1, true, 64}};
}

std::string nameOf(const Cuts &c) {
  return fmt::format("data {} tensor {}{} padded {}", c.data, c.tensor, c.wholeCopies ? " whole copies" : "", c.padded);
}

const ModelIdentity &identity() {
  static const ModelIdentity id = modelIdentity(*moduleFor({}));
  return id;
}

std::set<std::string> filesIn(const std::string &dir) {
  std::set<std::string> names;
  for (const auto &e : fs::directory_iterator(dir))
    names.insert(e.path().filename());
  return names;
}

TEST(CheckpointOfRanks, LoadsOnAnyMesh) {
  for (const Cuts &from : meshes())
    for (const bool beside : {true, false}) {
      TempDir dir;
      const CheckpointStore store(dir.path);
      auto saved = onRanks(from, [&](Executor &e) {
        fillStates(e, 3);
        const HfFiles none;
        CheckpointSaver saver(e, store, beside, none);
        saver.begin({3, "plan", identity(), "data", "", {}}, 2);
        fillStates(e, 4);  // steps go on
        saver.finish();
      });
      ASSERT_EQ(saved, std::vector<int>(saved.size(), 0)) << nameOf(from);
      ASSERT_EQ(filesIn(dir / "checkpoints"), (std::set<std::string>{"latest", "step-00000003"})) << nameOf(from);
      for (const Cuts &to : meshes()) {
        auto loaded = onRanks(to, [&](Executor &e) {
          auto info = store.loadNewest(e, identity(), false, [](const std::string &w) { ADD_FAILURE() << w; });
          ASSERT_TRUE(info);
          expectStates(e, 3, nameOf(from) + " -> " + nameOf(to));
        });
        EXPECT_EQ(loaded, std::vector<int>(loaded.size(), 0)) << nameOf(to);
      }
    }
}

// The moments of ranks that meet in outer steps alone are all in the checkpoint, padding and all. No other number of
// ranks has a use for them; the weights are anybody's.
TEST(CheckpointOfRanks, MomentsOfRanksApartLoadOnAsManyRanks) {
  for (const bool beside : {true, false}) {
    TempDir dir;
    const CheckpointStore store(dir.path);
    const Cuts from{.data = 2, .apart = true};
    EXPECT_EQ(verify(*moduleFor(from)), std::vector<std::string>());
    const auto saved = onRanks(from, [&](Executor &e) {
      fillStates(e, 3);
      const HfFiles none;
      CheckpointSaver saver(e, store, beside, none);
      saver.begin({3, "plan", identity(), "data", "", {}}, 2);
      fillStates(e, 4);
      saver.finish();
    });
    ASSERT_EQ(saved, std::vector<int>(2, 0));
    auto load = [&](const Cuts &to, bool parametersOnly) {
      return onRanks(to, [&](Executor &e) {
        fillStates(e, 9);
        const auto info =
            store.loadNewest(e, identity(), parametersOnly, [](const std::string &w) { ADD_FAILURE() << w; });
        ASSERT_TRUE(info);
        expectStates(e, 3, nameOf(to), parametersOnly);
      });
    };
    EXPECT_EQ(load(from, false), std::vector<int>(2, 0));
    // A rank may see that another has given up before it has looked itself.
    auto refuses = [&](const Cuts &to) {
      const std::vector<int> codes = load(to, false);
      const int mismatch = int(ErrorCode::CheckpointMismatch), gone = int(ErrorCode::RankFailed);
      return llvm::is_contained(codes, mismatch) &&
             llvm::all_of(codes, [&](int c) { return c == mismatch || c == gone; });
    };
    EXPECT_TRUE(refuses({.data = 4, .apart = true}));
    EXPECT_TRUE(refuses({.data = 1, .apart = true}));
    EXPECT_TRUE(refuses({.data = 2})) << "a plan whose ranks share their moments";
    EXPECT_EQ(load({}, true), std::vector<int>(1, 0));
    EXPECT_EQ(load({.data = 4, .apart = true}, true), std::vector<int>(4, 0));
  }
}

// One rank may begin with outer steps at any checkpoint.
TEST(CheckpointOfRanks, OuterStepsBeginWithMomentsOfZero) {
  TempDir dir;
  const CheckpointStore store(dir.path);
  ASSERT_EQ(onRanks({},
                    [&](Executor &e) {
                      fillStates(e, 3);
                      store.save(e, {3, "plan", identity(), "data", "", {}});
                    }),
            std::vector<int>(1, 0));
  const auto loaded = onRanks({.apart = true}, [&](Executor &e) {
    fillStates(e, 9);
    const auto info = store.loadNewest(e, identity(), false, [](const std::string &w) { ADD_FAILURE() << w; });
    ASSERT_TRUE(info);
    EXPECT_EQ(info->notes,
              std::vector<std::string>{"not in the checkpoint: the moments of outer steps; starting at 0"});
    for (const auto &s : e.planned().states) {
      if (s->type.dtype != DType::f32)
        continue;
      std::vector<float> padded(s->type.paddedElements()), dense(s->type.elements());
      loadWhole(e, *s, padded.data());
      copyFromPadded(s->type, padded.data(), dense.data());
      const bool isNew = s->name.starts_with("outer.");
      for (size_t i = 0; i < dense.size(); ++i)
        ASSERT_EQ(dense[i], isNew ? 0 : valueOf(s->attrs.getString("of", s->name), int64_t(i)) + 3) << s->name;
    }
  });
  EXPECT_EQ(loaded, std::vector<int>(1, 0));
}

TEST(CheckpointOfRanks, DroppedMomentsOfOuterStepsAreSaid) {
  TempDir dir;
  const CheckpointStore store(dir.path);
  ASSERT_EQ(onRanks({.apart = true},
                    [&](Executor &e) {
                      fillStates(e, 3);
                      store.save(e, {3, "plan", identity(), "data", "", {}});
                    }),
            std::vector<int>(1, 0));
  for (const bool parametersOnly : {false, true}) {
    const auto loaded = onRanks({}, [&](Executor &e) {
      const auto info =
          store.loadNewest(e, identity(), parametersOnly, [](const std::string &w) { ADD_FAILURE() << w; });
      ASSERT_TRUE(info);
      std::vector<std::string> said;
      if (!parametersOnly)
        said.push_back("the moments of outer steps in the checkpoint are dropped: the plan has none");
      EXPECT_EQ(info->notes, said);
    });
    EXPECT_EQ(loaded, std::vector<int>(1, 0));
  }
  const auto same = onRanks({.apart = true}, [&](Executor &e) {
    const auto info = store.loadNewest(e, identity(), false, [](const std::string &w) { ADD_FAILURE() << w; });
    ASSERT_TRUE(info);
    EXPECT_EQ(info->notes, std::vector<std::string>());
  });
  EXPECT_EQ(same, std::vector<int>(1, 0));
}

TEST(CheckpointOfRanks, EachWritesItsShareOnce) {
  TempDir dir;
  onRanks({4, 1}, [&](Executor &e) {
    fillStates(e, 3);
    CheckpointStore(dir.path).save(e, {3, "plan", identity(), "data", "", {}});
  });
  const std::string at = dir / "checkpoints/step-00000003";
  std::map<std::string, int> times;
  int64_t bytes = 0, most = 0;
  std::set<std::string> names = filesIn(at);
  for (const std::string &name : filesIn(at + "/state"))
    names.insert("state/" + name);
  for (const std::string &name : names)
    if (name.ends_with(".safetensors")) {
      const SafetensorsFile file(at + "/" + name);
      int64_t own = 0;
      for (const TensorInfo *t : file.all()) {
        const bool piece = file.metadata(pieceKey(t->name));
        EXPECT_EQ(piece, t->name == "m.wte.weight" || t->name == "m.qkv.weight") << name << " " << t->name;
        times[t->name] += piece ? 0 : 1;
        own += t->bytes();
      }
      bytes += own;
      most = std::max(most, own);
    }
  for (const auto &[name, n] : times)
    EXPECT_EQ(n, name.starts_with("m.wte") || name.starts_with("m.qkv") ? 0 : 1) << name;
  // Nothing is written twice, nor is anything left out.
  EXPECT_EQ(bytes, 2 * 4 * (37 * 9 + 8 * 48 + 11 + 160) + 8);
  EXPECT_LT(most, bytes / 3);
  // As other programs look for them.
  const nlohmann::json index = parseJson(readFile(at + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * (37 * 9 + 8 * 48 + 11 + 160));
  ASSERT_EQ(index["weight_map"].size(), 4u);
  for (const auto &[name, file] : index["weight_map"].items())
    EXPECT_TRUE(SafetensorsFile(at + "/" + file.get<std::string>()).find(name)) << name;
  // And as weights without a manifest.
  fs::remove(at + "/manifest.json");
  const std::vector<int> loaded = onRanks({}, [&](Executor &e) {
    loadWeights(e, at, modelIdentity(e.planned()));
    expectStates(e, 3, "weights", true);
  });
  EXPECT_EQ(loaded, std::vector<int>{0});
}

TEST(CheckpointOfRanks, DamageIsFoundByAll) {
  const Cuts four{4, 1};
  for (const char *name :
       {"model-00002-of-00003.safetensors", "state/optimizer-00003-of-00004.safetensors", "manifest.json"}) {
    TempDir dir;
    const CheckpointStore store(dir.path);
    onRanks(four, [&](Executor &e) {
      for (int64_t step : {3, 4}) {
        fillStates(e, step);
        store.save(e, {step, "plan", identity(), "data", "", {}});
      }
    });
    const std::string file = dir / "checkpoints/step-00000004/" + name;
    ASSERT_TRUE(fs::exists(file)) << file;
    damageFile(file, fs::file_size(file) - 3);
    std::atomic<int> warnings{0};
    auto codes = onRanks(four, [&](Executor &e) {
      auto info = store.loadNewest(e, identity(), false, [&](const std::string &) { ++warnings; });
      ASSERT_TRUE(info);
      EXPECT_EQ(info->step, 3);
      expectStates(e, 3, name);
    });
    EXPECT_EQ(codes, std::vector<int>(4, 0)) << name;
    EXPECT_EQ(warnings, 4) << name;
  }
}

TEST(CheckpointOfRanks, ARankThatSeesAnotherFolderSaysSo) {
  TempDir here, there;
  std::vector<int> codes = onRanks({2, 1}, [&](Executor &e) {
    fillStates(e, 3);
    CheckpointStore(e.ranks->rank ? there.path : here.path).save(e, {3, "plan", identity(), "data", "", {}});
  });
  EXPECT_EQ(codes[1], int(ErrorCode::RanksDiffer));
  EXPECT_EQ(codes[0], int(ErrorCode::RankFailed));
  EXPECT_EQ(filesIn(here / "checkpoints"), std::set<std::string>()) << "half a checkpoint is left";
}

TEST(CheckpointOfRanks, WhatIsGivenUpLeavesTheOneBefore) {
  TempDir dir;
  const CheckpointStore store(dir.path);
  onRanks({2, 1}, [&](Executor &e) {
    fillStates(e, 3);
    const HfFiles none;
    CheckpointSaver saver(e, store, true, none);
    saver.save({3, "plan", identity(), "data", "", {}}, 1);
    saver.begin({4, "plan", identity(), "data", "", {}}, 1);
  });
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{3}));
}

TEST(CheckpointOfRanks, MemoryIsThatOfACopyOfWhatARankWrites) {
  const int64_t whole = 2 * 4 * (37 * 9 + 8 * 48 + 11 + 160) + 8;
  EXPECT_EQ(memoryToSave(*moduleFor({}), false), 0);
  EXPECT_NEAR(double(memoryToSave(*moduleFor({}), true)), double(whole), 64 * 10);
  // The largest parameter that is gathered comes on top of a rank's share.
  const int64_t gathered = 4 * 8 * 48;
  EXPECT_LT(memoryToSave(*moduleFor({4, 1}), true), whole / 2 + gathered);
  EXPECT_GT(memoryToSave(*moduleFor({4, 1}), false), gathered);
}

TEST(CheckpointOfRanks, StatesThatShareATensorGoToOneFile) {
  const auto m = parseModule(R"(module {mesh_data=4} {
  state @a : f32[3,2] {kind="param"}
  state @gate : f32[30,2] {kind="param", hf="Wi", hf_transpose=true, hf_share=[0, 2]}
  state @fc : f32[30,2] {kind="param", hf="Wi", hf_transpose=true, hf_share=[1, 2]}
  state @b : f32[90,2] {kind="param"}
})",
                             "test");
  const Ownership owners(*m, true);
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(owners.writes(1, rank), owners.writes(2, rank)) << rank;
  EXPECT_TRUE(owners.writes(3, 2));
}

// What is said before a run is what its ranks then take.
TEST(CheckpointOfRanks, MemoryIsThatOfTheRankThatNeedsMost) {
  for (const Cuts &c : meshes())
    for (const bool beside : {true, false}) {
      const std::unique_ptr<Module> m = moduleFor(c);
      int64_t most = 0;
      for (int64_t r = 0; r < Mesh::of(*m).ranks(); ++r) {
        const OwnedFiles files = OwnedFiles::of(*m, r, beside);
        most = std::max(most, files.copyBytes + files.largestGathered);
      }
      EXPECT_EQ(memoryToSave(*m, beside), most) << nameOf(c);
    }
}

TEST(CheckpointOfRanks, WhatADiskLacksIsSaidInFittingUnits) {
  TempDir dir;
  std::string said;
  EXPECT_EQ(codeThrown([&] { CheckpointStore(dir.path).requireSpace(int64_t(1) << 60); }, &said),
            int(ErrorCode::DiskFull));
  EXPECT_EQ(said.rfind("a checkpoint needs 1073741824.0 GiB and ", 0), 0u) << said;
}

TEST(Pieces, AreLogicalPlacesOfTheWhole) {
  const std::unique_ptr<Module> m = moduleFor({4, 1});
  const Piece last = Piece::of(*m->state("wte.weight"), Mesh::of(*m), 3);
  EXPECT_EQ(last.ownShape(), (std::vector<int64_t>{7, 9})) << "three of ten rows are padding";
  const std::unique_ptr<Module> t = moduleFor({2, 2});
  const Piece p = Piece::of(*t->state("qkv.weight"), Mesh::of(*t), 3);  // data 1, tensor 1
  EXPECT_EQ(p.str(), R"({"shape":[8,48],"runs":[[[4,4]],[[8,8],[24,8],[40,8]]]})");
  EXPECT_EQ(Piece::parse(p.str())->str(), p.str());
  EXPECT_TRUE(p.meets(p));
  EXPECT_FALSE(p.meets(Piece::of(*t->state("qkv.weight"), Mesh::of(*t), 2)));
}

TEST(Pieces, BeyondTheirWholeAreRefused) {
  for (const char *text :
       {"", "{}", R"({"shape":[8],"runs":[]})", R"({"shape":[8],"runs":[[[0,9]]]})",
        R"({"shape":[8],"runs":[[[-1,2]]]})", R"({"shape":[8],"runs":[[[8,1]]]})", R"({"shape":[8],"runs":[[[0,0]]]})",
        R"({"shape":[-8],"runs":[[]]})", R"({"shape":[4611686018427387904,4],"runs":[[[0,1]],[[0,1]]]})",
        R"({"shape":[8],"runs":[[[9223372036854775807,9223372036854775807]]]})"})
    EXPECT_FALSE(Piece::parse(text)) << text;
}

TEST(TensorFiles, PiecesMustMakeTheWhole) {
  TempDir dir;
  auto write = [&](const char *name, const char *piece, int64_t rows) {
    SafetensorsWriter w(dir / name, {{"a", DType::f32, {rows, 2}}}, {{pieceKey("a"), piece}});
    w.write(std::vector<float>(size_t(2 * rows), float(rows)).data(), size_t(8 * rows));
    w.finish();
  };
  write("1", R"({"shape":[5,2],"runs":[[[0,2]],[[0,2]]]})", 2);
  write("2", R"({"shape":[5,2],"runs":[[[2,3]],[[0,2]]]})", 3);
  write("3", R"({"shape":[5,2],"runs":[[[2,2]],[[0,2]]]})", 2);
  write("4", R"({"shape":[5,2],"runs":[[[2,3]],[[0,2]]]})", 2);
  const TensorFiles both({dir / "1", dir / "2"});
  std::vector<float> got(10);
  both.read(*both.find("a"), got.data());
  EXPECT_EQ(got, (std::vector<float>{2, 2, 2, 2, 3, 3, 3, 3, 3, 3}));
  const int damaged = int(ErrorCode::CheckpointDamaged);
  EXPECT_EQ(codeThrown([&] { TensorFiles({dir / "1"}); }), damaged) << "a piece is missing";
  EXPECT_EQ(codeThrown([&] { TensorFiles({dir / "1", dir / "3"}); }), damaged) << "too little";
  EXPECT_EQ(codeThrown([&] { TensorFiles({dir / "1", dir / "4"}); }), damaged) << "not what it says";
}

}  // namespace
