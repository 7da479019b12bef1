#include "runtime/plan/plan.h"

#include "runtime/plan/manifest.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "temp_dir.h"

#include <functional>

using namespace gptc;
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

// A plan that runs no code: its step hands back three counters.
const char *kPlanned =
    R"(module {accumulate=1, arena_bytes=576, block_size=8, micro_batch=1, n_embd=4, n_head=2, n_layer=3, name="tiny", vocab_size=5} {
  state @wte.weight : f32[5,4] {at=0, init="normal", kind="param", std=0.02, stream=1}
  state @wpe.weight : f32[8,4] {at=128, init="zeros", kind="param"}
  state @loss : f32[] {at=256, kind="counter"}
  func @train_step(%x: i32[1,8], %y: i32[1,8], %seq0: i64[], %n_valid: f32[]) -> (f32[], f32[], f32[]) {args_at=[320, 384, 448, 512]} {
    %0 = read @loss : f32[]
    return %0, %0, %0
  }
}
)";

struct PlanTest : ::testing::Test {
  PlanTest() {
    plan.joint = parseModule(kPlanned, "joint");
    plan.planned = parseModule(kPlanned, "planned");
    plan.target.cpu = "generic";
    plan.run.outDir = "/somewhere/out";
    plan.run.trainData = "/somewhere/train.bin";
    plan.run.steps = 100;
    plan.run.traceSteps = {10, 12};
    writePlan(dir / "plan", plan);
  }
  int load(std::string *message = nullptr) {
    return codeThrown([&] { loadPlan(dir / "plan"); }, message);
  }
  /// Changes the manifest and gives it a right checksum again, as somebody with bad intent would.
  void forge(const std::function<void(json &)> &change) {
    writePlan(dir / "plan", plan);
    json j = parseJson<json>(readFile(dir / "plan/manifest.json"));
    change(j);
    j["blake3"] = manifestChecksum(j);
    writeFile(dir / "plan/manifest.json", j.dump(2));
  }
  TempDir dir;
  Plan plan;
};

TEST_F(PlanTest, RoundTrip) {
  Plan got = loadPlan(dir / "plan");
  EXPECT_EQ(print(*got.planned), print(*plan.planned));
  EXPECT_EQ(print(*got.joint), print(*plan.joint));
  EXPECT_EQ(got.run, plan.run);
  EXPECT_EQ(got.hash, plan.hash);
  EXPECT_EQ(got.hash, blake3(readFile(dir / "plan/planned.gir")));
  EXPECT_EQ(got.target.cpu, "generic");
  EXPECT_EQ(got.dir, dir / "plan");
  // From anywhere: a relative path in the manifest counts from the plan.
  plan.run.trainData = "data/train.bin";
  plan.run.initFrom = "hf:weights";
  writePlan(dir / "plan", plan);
  EXPECT_EQ(loadPlan(dir / "plan").run.trainData, dir / "plan/data/train.bin");
  EXPECT_EQ(loadPlan(dir / "plan").run.initFrom, "hf:" + (dir / "plan/weights"));
}

// Commands take a plan, a model file, or a folder of another program.
TEST_F(PlanTest, AFolderIsAPlanByWhatItHolds) {
  EXPECT_TRUE(isPlanFolder(dir / "plan"));
  EXPECT_TRUE(isGivenAsPlan(dir / "plan"));
  fs::remove(dir / "plan/manifest.json");
  EXPECT_TRUE(isPlanFolder(dir / "plan")) << "damaged";
  fs::create_directories(dir / "weights");
  for (const char *name : {"weights/manifest.json", "weights/config.json", "model.toml"})
    writeFile(dir / name, "{}");
  EXPECT_FALSE(isPlanFolder(dir / "weights"));
  EXPECT_TRUE(isGivenAsPlan(dir / "weights")) << "and no plan: loading says so";
  for (const std::string &path : {dir / "model.toml", dir / "nothing", std::string(5000, 'x')}) {
    EXPECT_FALSE(isPlanFolder(path));
    EXPECT_FALSE(isGivenAsPlan(path));
  }
}

TEST_F(PlanTest, AMarkShowsWhoMadeIt) {
  const std::string before = plan.hash;
  EXPECT_FALSE(loadPlan(dir / "plan", "secret").madeHere) << "as plans of before, without a mark";
  writePlan(dir / "plan", plan, "secret");
  EXPECT_EQ(plan.hash, before);
  EXPECT_TRUE(loadPlan(dir / "plan", "secret").madeHere);
  EXPECT_FALSE(loadPlan(dir / "plan", "another").madeHere);
  EXPECT_FALSE(loadPlan(dir / "plan").madeHere);
  fs::rename(dir / "plan", dir / "moved");
  EXPECT_TRUE(loadPlan(dir / "moved", "secret").madeHere);
  // A copy that somebody changes has the mark of another text.
  json j = parseJson<json>(readFile(dir / "moved/manifest.json"));
  j["run"]["out_dir"] = "/elsewhere";
  j["blake3"] = manifestChecksum(j);
  writeFile(dir / "moved/manifest.json", j.dump(2));
  EXPECT_EQ(loadPlan(dir / "moved", "secret").run.outDir, "/elsewhere");
  EXPECT_FALSE(loadPlan(dir / "moved", "secret").madeHere);
  j["mark"] = manifestMark(j, "");
  j["blake3"] = manifestChecksum(j);
  writeFile(dir / "moved/manifest.json", j.dump(2));
  EXPECT_FALSE(loadPlan(dir / "moved", "").madeHere) << "who has no secret knows no mark";
}

TEST_F(PlanTest, ManifestsKeepTheirKeysAndNumbers) {
  RunSettings &r = plan.run;
  r = {"/out", 5, 7, "skip", "hf:/weights", "/train.bin", "/val.bin", "/t.json", true, 1, 2, 3, "It", 4};
  r.checkpointEvery = 6, r.checkpointKeep = 8, r.checkpointAsync = "true", r.logEvery = 9, r.tensorboard = true;
  r.traceSteps = {10, 12}, r.mfuPeak = 1e12;
  writePlan(dir / "plan", plan);
  const auto manifest = parseJson<nlohmann::ordered_json>(readFile(dir / "plan/manifest.json"));
  EXPECT_EQ(manifest["run"].dump(),
            R"({"out_dir":"/out","steps":5,"seed":7,"on_nonfinite":"skip","init_from":"hf:/weights",)"
            R"("train_data":"/train.bin","val_data":"/val.bin","tokenizer":"/t.json","parse_special":true,)"
            R"("eval_every":1,"eval_steps":2,)"
            R"("sample_every":3,"sample_prompt":"It","sample_tokens":4,"checkpoint_every":6,"checkpoint_keep":8,)"
            R"("checkpoint_async":"true","log_every":9,"tensorboard":true,"trace_steps":[10,12],)"
            R"("mfu_peak":1000000000000.0})");
  EXPECT_EQ(loadPlan(dir / "plan").run, r);
  // Plans of this schema from before there was the key.
  forge([](json &j) {
    j["run"].erase("checkpoint_async");
    j["run"].erase("parse_special");
  });
  EXPECT_EQ(loadPlan(dir / "plan").run.checkpointAsync, "auto");
  EXPECT_FALSE(loadPlan(dir / "plan").run.parseSpecial);
}

TEST_F(PlanTest, FormulaOfNanoGpt) {
  EXPECT_EQ(parameterCount(*plan.planned, false), 20 + 32);
  EXPECT_EQ(parameterCount(*plan.planned, true), 20);
  EXPECT_EQ(flopsPerToken(*plan.planned), 6.0 * 20 + 12.0 * 3 * 2 * 2 * 8);
}

TEST(FlopsOfAttention, FollowTheSizeOfHeadsAndTheWindow) {
  ModelFacts m;
  m.nLayer = 3, m.nHead = 4, m.nEmbd = 32, m.blockSize = 64;
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 3 * 32 * 64);
  m.headDim = 16;
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 3 * 64 * 64);
  m.window = 10;
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 3 * 64 * 10);
  m.layersWithoutWindow = {0, 2};
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 64 * (64 + 10 + 64));
  m.causal = false;  // so many to each side
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 64 * (64 + 19 + 64));
  m.window = 100;
  EXPECT_EQ(attentionFlopsPerToken(m), 12.0 * 3 * 64 * 64);
}

TEST_F(PlanTest, ReplacesPlansOnly) {
  plan.run.steps = 7;
  writePlan(dir / "plan", plan);
  EXPECT_EQ(loadPlan(dir / "plan").run.steps, 7);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()), 1);
  fs::create_directories(dir / "other");
  writeFile(dir / "other/precious.txt", "x");
  EXPECT_EQ(codeThrown([&] { writePlan(dir / "other", plan); }), int(ErrorCode::Unwritable));
  EXPECT_EQ(codeThrown([&] { writePlan(dir / "other/precious.txt", plan); }), int(ErrorCode::Unwritable));
  EXPECT_EQ(readFile(dir / "other/precious.txt"), "x");
}

TEST_F(PlanTest, DescribesTheModelToOtherPrograms) {
  plan.hf = {{"config.json", R"({"model_type": "gpt2"})"}, {"tokenizer.json", "{}"}};
  const std::string hash = plan.hash;
  writePlan(dir / "plan", plan);
  EXPECT_EQ(plan.hash, hash);
  EXPECT_EQ(loadPlan(dir / "plan").hf, plan.hf);
  const std::string file = dir / "plan/hf/config.json", text = readFile(file);
  for (size_t at = 0; at < text.size(); ++at) {
    damageFile(file, at);
    EXPECT_EQ(load(), int(ErrorCode::PlanDamaged)) << at;
    writeFile(file, text);
  }
  fs::remove(file);
  EXPECT_EQ(load(), int(ErrorCode::PlanDamaged));
  // What somebody adds is not taken along, and what they forge names no other files and no code.
  writePlan(dir / "plan", plan);
  writeFile(dir / "plan/hf/modeling.py", "x");
  EXPECT_EQ(loadPlan(dir / "plan").hf, plan.hf);
  std::string said;
  for (const auto &[name, text] : {std::pair("hf/modeling.py", "{}"),
                                   {"hf/../../secret", "{}"},
                                   {"hf/", "{}"},
                                   {"hf/config.json", R"({"auto_map": {"AutoModel": "mine.Model"}})"},
                                   {"hf/tokenizer_config.json", "[]"}}) {
    forge([&](json &j) {
      if (llvm::StringRef(name).ends_with("json"))
        writeFile(dir / "plan/" + name, text);
      j["files"][name] = blake3(text);
    });
    EXPECT_EQ(load(&said), int(ErrorCode::PlanDamaged)) << name;
  }
  EXPECT_NE(said.find("tokenizer_config.json is no JSON object"), std::string::npos) << said;
}

TEST_F(PlanTest, MissingIsNotDamaged) {
  EXPECT_EQ(codeThrown([&] { loadPlan(dir / "nothing"); }), int(ErrorCode::FileMissing));
  fs::create_directories(dir / "empty");
  EXPECT_EQ(codeThrown([&] { loadPlan(dir / "empty"); }), int(ErrorCode::FileMissing));
}

TEST_F(PlanTest, EveryFlippedBitIsFound) {
  for (const char *name : {"manifest.json", "joint.gir", "planned.gir", "schedules.json"}) {
    std::string path = dir / "plan" + "/" + name, text = readFile(path);
    for (size_t at = 0; at < text.size(); at += std::max<size_t>(1, text.size() / 60)) {
      damageFile(path, at);
      std::string message;
      int code = load(&message);
      // Blanks of the manifest may change without changing anything.
      bool blank = std::string(name) == "manifest.json" && std::isspace(text[at]) && std::isspace(readFile(path)[at]);
      EXPECT_TRUE(code == int(ErrorCode::PlanDamaged) || code == int(ErrorCode::NotBuiltYet) || (blank && code == 0))
          << name << " byte " << at << ": " << code << " " << message;
      writeFile(path, text);
    }
    fs::resize_file(path, text.size() / 2);
    EXPECT_EQ(load(), int(ErrorCode::PlanDamaged)) << name;
    fs::remove(path);
    EXPECT_EQ(load(), std::string(name) == "manifest.json" ? int(ErrorCode::FileMissing) : int(ErrorCode::PlanDamaged))
        << name;
    writeFile(path, text);
  }
  EXPECT_EQ(load(), 0);
}

TEST_F(PlanTest, ForgedManifestsAreRefused) {
  const int damaged = int(ErrorCode::PlanDamaged);
  forge([](json &) {});
  EXPECT_EQ(load(), 0);
  forge([](json &j) { j["schema"] = 1; });
  EXPECT_EQ(load(), int(ErrorCode::NotBuiltYet));
  forge([](json &j) { j["target"]["name"] = "cuda:sm_1"; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["target"]["vector_bytes"] = 12; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["steps"] = -1; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["steps"] = "many"; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"].erase("seed"); });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["on_nonfinite"] = "panic"; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["checkpoint_keep"] = 0; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["checkpoint_async"] = "maybe"; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["mfu_peak"] = -2; });
  EXPECT_EQ(load(), damaged);
  forge([](json &j) { j["run"]["mfu_peak"] = -1; });  // "measured"
  EXPECT_EQ(load(), 0);
  forge([](json &j) {
    j = json::array({1});
    j = json{{"schema", 2}};
  });
  EXPECT_EQ(load(), damaged);
  writeFile(dir / "plan/manifest.json", std::string(2 << 20, ' '));
  EXPECT_EQ(load(), damaged);
}

TEST_F(PlanTest, ForgedModulesAreRefused) {
  auto with = [&](const std::string &from, const std::string &to) {
    std::string text = kPlanned;
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    forge([&](json &j) {
      writeFile(dir / "plan/planned.gir", text);
      j["files"]["planned.gir"] = blake3(text);
    });
    std::string message;
    int code = load(&message);
    EXPECT_EQ(code, int(ErrorCode::PlanDamaged)) << from << " -> " << to << ": " << message;
    return message;
  };
  with("block_size=8", "block_size=0");
  with("vocab_size=5", "vocab_size=\"5\"");
  with("arena_bytes=576", "arena_bytes=-448");
  with("arena_bytes=576", "arena_bytes=9007199254740993");
  with("@train_step", "@other");
  with("return %0, %0, %0", "return %0, %0, %0, %0");
  // Signatures: the trainer would hand over less memory than the function takes.
  with("%x: i32[1,8]", "%x: i32[2,8]");
  with("%seq0: i64[]", "%seq0: i32[]");
  with(", %n_valid: f32[])", ")");
  with("(f32[], f32[], f32[])", "(f32[], f32[])");
  // The memory plan: outside the arena, overlapping, missing, odd.
  with("at=128", "at=576");
  with("at=128", "at=64");
  with("at=256", "at=-64");
  with("at=256, ", "");
  with("at=256", "at=260");
  with("args_at=[320, 384, 448, 512]", "args_at=[320, 384, 448, 576]");
  with("args_at=[320, 384, 448, 512]", "args_at=[320, 384, 448]");
  // Facts: names, kinds and values.
  for (const auto &[attribute, problem] :
       {std::pair{"shrads=2", "a module has no attribute 'shrads'; did you mean 'shards'?"},
        {"shards=\"2\"", "module attribute shards must be an integer"},
        {"mesh_data=0", "module attribute mesh_data = 0 is out of range; 1 to 1048576 works"},
        {"compute=\"fp8\"", "module attribute compute = \"fp8\" is not known"}}) {
    const std::string message = with("block_size=8", fmt::format("block_size=8, {}", attribute));
    EXPECT_NE(message.find(fmt::format("planned.gir is invalid: {}", problem)), std::string::npos) << message;
  }
  with("{args_at=", "{arg_at=");
  with("kind=\"counter\"", "kind=\"count\"");
}

}  // namespace
