// Plans that somebody changed and gave right checksums: refused, or run without harm; never a crash, never a report of
// a bug.
#include "tests/support/harness.h"

#include "runtime/plan/manifest.h"
#include "support/files.h"
#include "support/json.h"

#include <filesystem>
using namespace e2e;

namespace {

/// A compiled plan whose planned.gir can be replaced, with all that must agree with it.
class Forger {
public:
  Forger(Workplace &w, const std::vector<std::string> &settings)
      : w(w), plan(w.compile("plan", settings)), good(readFile(plan + "/planned.gir")),
        manifest(readFile(plan + "/manifest.json")), schedules(readFile(plan + "/schedules.json")) {}

  const std::string &planned() const { return good; }

  /// With the first `from` replaced by `to`.
  void expectRefused(const std::string &from, const std::string &to) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    const Result r = run(bad.replace(at, from.size(), to));
    EXPECT_EQ(r.code, 5) << from << " -> " << to << "\n" << r.output;
    EXPECT_NE(r.output.find("error[GPTC0503]"), std::string::npos) << from << " -> " << to << "\n" << r.output;
  }

  Result run(const std::string &bad) {
    writeFile(plan + "/planned.gir", bad);
    nlohmann::ordered_json j = gptc::parseJson<nlohmann::ordered_json>(manifest),
                           s = gptc::parseJson<nlohmann::ordered_json>(schedules);
    // Schedules are listed in the order of the kernels.
    size_t from = bad.find("func @");  // the module has an attribute of that name too
    for (auto &[name, text] : s.items()) {
      from = bad.find("schedule=\"", from) + 10;
      text = bad.substr(from, bad.find('"', from) - from);
    }
    std::string list = s.dump(1) + "\n";
    writeFile(plan + "/schedules.json", list);
    j["files"]["planned.gir"] = gptc::blake3(bad);
    j["files"]["schedules.json"] = gptc::blake3(list);
    j["blake3"] = gptc::manifestChecksum(j);
    writeFile(plan + "/manifest.json", j.dump(2));
    return w.gptrun({plan, "--resume", "never", "--out-dir", w.path("out")});
  }

private:
  Workplace &w;
  std::string plan, good, manifest, schedules;
};

TEST(ForgedPlan, ChangedNumbersDoNoHarm) {
  Workplace w;
  Forger forger(w, {"train.steps=1", "eval.every=0"});
  const std::string &good = forger.planned();
  uint32_t random = 1;
  int refused = 0, ran = 0;
  for (int i = 0; i < gptc::test::sized(16, 40); ++i) {
    std::string bad = good;
    size_t at;
    do {
      random = random * 1664525u + 1013904223u;
      at = (uint64_t(random) * good.size()) >> 32;
      // Every third change goes into a schedule: the memory plan is checked more strictly.
      if (i % 3 == 0) {
        at = good.find("schedule=\"", at);
        at = at == std::string::npos ? at : good.find('=', at + 12);
      }
    } while (at >= good.size() || (at = good.find_first_of("0123456789", at)) == std::string::npos);
    if (random >> 31)
      bad[at] = bad[at] == '9' ? '1' : bad[at] + 1;
    else
      bad.insert(at, "9");
    Result r = forger.run(bad);
    std::string line = bad.substr(bad.rfind('\n', at) + 1, bad.find('\n', at) - bad.rfind('\n', at) - 1);
    EXPECT_EQ(r.signal, 0) << line << "\n" << r.output;
    EXPECT_TRUE(r.signal || r.code == 0 || r.code == 3 || r.code == 4 || r.code == 5) << line << "\n"
                                                                                      << r.code << " " << r.output;
    refused += r.code != 0;
    ran += r.code == 0;
  }
  EXPECT_GT(refused, gptc::test::sized(3, 10));
  EXPECT_GT(ran, 0) << "all refused: the forgery itself is at fault";
}

/// `text` with the digits after each ` name=` replaced.
std::string withField(std::string text, const std::string &name, const std::string &value) {
  for (size_t at = 0; (at = text.find(" " + name + "=", at)) != std::string::npos;) {
    at += name.size() + 2;
    text.replace(at, text.find_first_not_of("0123456789", at) - at, value);
  }
  return text;
}

TEST(ForgedPlan, AbsurdSchedulesAreRefused) {
  Workplace w;
  // Four rows: the recipe that keeps a whole block of columns on the stack.
  Forger forger(
      w, {"train.steps=1", "eval.every=0", "model.block_size=4", "train.micro_batch=1", "train.global_batch_tokens=4"});
  for (auto [field, value, why] : {std::tuple{"nc", "4611686018427387904", "no valid schedule"},
                                   {"nr", "1073741824", "no valid schedule"},
                                   {"vec", "128", "no valid schedule"},
                                   {"nc", "1073741824", "bytes of stack buffers"}}) {
    std::string bad = withField(forger.planned(), field, value);
    ASSERT_NE(bad, forger.planned());
    Result r = forger.run(bad);
    EXPECT_EQ(r.code, 5) << field << "=" << value << " signal " << r.signal << "\n" << r.output;
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  }
}

TEST(ForgedPlan, WorkspacesOfAnotherSizeAreRefused) {
  Workplace w;
  Forger forger(w, {"train.steps=1", "eval.every=0"});
  std::string bad = forger.planned();
  size_t at = bad.find(" ws=[", bad.find("func @train_step"));
  while (at != std::string::npos && bad[at + 5] == ']')
    at = bad.find(" ws=[", at + 5);
  ASSERT_NE(at, std::string::npos) << "no kernel has a workspace";
  bad.replace(at + 5, bad.find_first_of(",]", at) - at - 5, "64");  // room that others use, too
  Result r = forger.run(bad);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("was planned with other workspaces"), std::string::npos) << r.output;
}

TEST(ForgedPlan, StatesTheRuntimeCannotFillAreRefused) {
  Workplace w;
  Forger forger(w, {"train.steps=1", "eval.every=0"});
  std::string bad = forger.planned();
  size_t at = bad.find("init=\"zeros\"", bad.find("@rng_seed"));
  ASSERT_LT(at, bad.find("func @"));
  bad.replace(at, 12, "init=\"normal\"");
  Result r = forger.run(bad);
  EXPECT_EQ(r.code, 5) << r.output;
  EXPECT_NE(r.output.find("cannot start as normal"), std::string::npos) << r.output;
  // Those of weights in few bits are made in memory only.
  for (const auto &[from, to] :
       {std::pair{"state @wpe.weight : f32[16,32] {", "state @wpe.weight : f32[16,32] {memory=\"files\", "},
        {"state @wpe.weight", "state @few : u32[1,8,1024] {init=\"zeros\", kind=\"quantized\", of=\"wte.weight\", "
                              "tb=true}\n  state @wpe.weight"}}) {
    bad = forger.planned();
    at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    r = forger.run(bad.replace(at, std::string(from).size(), to));
    EXPECT_EQ(r.code, 5) << r.output;
    EXPECT_NE(r.output.find("is one of serving"), std::string::npos) << r.output;
  }
}

// Pieces of states are copied by the number of the rank, functions called by the number of the shard.
TEST(ForgedPlan, AMeshThatIsNotThatOfThePlanIsRefused) {
  Workplace w;
  Forger forger(w, {"train.steps=1", "eval.every=0", "train.micro_batch=1", "parallel.data=2"});
  for (const auto &[from, to] : {std::pair<std::string, std::string>{"mesh_data=2", "mesh_data=1"},
                                 {"mesh_data=2", "mesh_data=4"},
                                 {"mesh_data=2", "mesh_data=-2"},
                                 {"mesh_data=2", "mesh_data=\"two\""},
                                 {"mesh_data=2", "mesh_data=2, mesh_tensor=2"},
                                 {"shards=1", "shards=2"},
                                 {"shards=1", "shards=3"},
                                 {"ranks=2", "ranks=4"},
                                 {"axis=\"data\"", "axis=\"tensor\""}})
    forger.expectRefused(from, to);
}

TEST(ForgedPlan, PartsOfHeadsAndFeaturesThatAreNotThoseOfTheMeshAreRefused) {
  Workplace w;
  Forger forger(w, {"train.steps=1", "eval.every=0", "train.micro_batch=1", "parallel.tensor=2"});
  for (const auto &[from, to] : {std::pair<std::string, std::string>{"mesh_tensor=2", "mesh_tensor=1"},
                                 {"mesh_tensor=2", "mesh_tensor=4"},
                                 {"mesh_tensor=2", "mesh_data=2"},
                                 {"tensor_sharded=true", "tensor_sharded=false"},
                                 {"cut_tensor=[1, ", "cut_tensor=[0, "},
                                 {"cut_tensor=", "cut_data="},
                                 {"ranks=2", "ranks=4"},
                                 {"axis=\"tensor\"", "axis=\"data\""}})
    forger.expectRefused(from, to);
}

}  // namespace
