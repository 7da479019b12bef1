// gptc new: each model file compiles once its data are there.
#include "tests/support/harness.h"

#include "tools/commands/new_model.h"

#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

class New : public testing::Test {
protected:
  Workplace w;
  New() {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "It is a truth universally acknowledged, " + std::to_string(i) + ".\n";
    w.prepare(text, "char");
  }
};

TEST_F(New, EachModelCompiles) {
  for (const gptc::ModelTemplate &t : gptc::modelTemplates()) {
    const std::string file = w.path(std::string(t.name) + ".toml");
    Result r = w.gptc({"new", t.name, "--data", w.path("data"), "-o", file});
    ASSERT_EQ(r.code, 0) << r.output;
    std::vector<std::string> args = {"compile", file, "-o", w.path("plan")};
    for (const char *s : {"model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=16",
                          "model.n_kv_head=1", "train.global_batch_tokens=64", "train.steps=3"}) {
      args.push_back("--set");
      args.push_back(s);
    }
    if (std::string(t.name) == "small" || std::string(t.name) == "char")
      args.insert(args.end(), {"--set", "train.micro_batch=2"});
    r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << t.name << "\n" << r.output;
  }
}

// What the README says of a first model: it compiles as it is, and takes minutes.
TEST_F(New, TheFirstModelTakesMinutes) {
  ASSERT_EQ(w.gptc({"new", "--data", w.path("data"), "-o", w.path("mine.toml")}).code, 0);
  const Result r = w.gptc({"compile", w.path("mine.toml"), "-o", w.path("plan")});
  ASSERT_EQ(r.code, 0) << r.output;
  const size_t at = r.output.find("\nexpected    about ");
  ASSERT_NE(at, std::string::npos) << r.output;
  const std::string said = r.output.substr(at + 1, r.output.find('\n', at + 1) - at - 1);
  EXPECT_NE(said.find(" for 1400 steps, 0."), std::string::npos) << said;
  EXPECT_TRUE(said.find(" min for ") != std::string::npos || said.find(" s for ") != std::string::npos) << said;
}

TEST_F(New, PathsAreThoseFromTheFolderOfTheFile) {
  fs::create_directories(w.path("models/mine"));
  const std::string file = w.path("models/mine/m.toml"), odd = w.path("a \"quoted\" \\ folder");
  fs::rename(w.path("data"), odd);
  ASSERT_EQ(w.gptc({"new", "char", "--data", odd, "-o", file}).code, 0);
  Result r = w.gptc({"compile", file, "-o", w.path("plan"), "--set", "model.n_layer=1"});
  EXPECT_EQ(r.code, 0) << r.output;
  // A relative folder is the one seen from here, wherever the file goes.
  const std::string here = fs::relative(odd);
  ASSERT_EQ(w.gptc({"new", "char", "--data", here, "-o", file, "--force"}).code, 0);
  EXPECT_EQ(readFile(file).find(here), std::string::npos) << readFile(file);
  r = w.gptc({"compile", file, "-o", w.path("plan"), "--set", "model.n_layer=1"});
  EXPECT_EQ(r.code, 0) << r.output;
}

TEST_F(New, AFileThatIsThereStays) {
  writeFile(w.path("mine.toml"), "# mine\n");
  const Result r = w.gptc({"new", "gpt2", "-o", w.path("mine.toml")});
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_EQ(readFile(w.path("mine.toml")), "# mine\n");
  EXPECT_EQ(w.gptc({"new", "gpt2", "-o", w.path("mine.toml"), "--force"}).code, 0);
  EXPECT_NE(readFile(w.path("mine.toml")).find("preset = \"gpt2\""), std::string::npos);
}

}  // namespace
