// The losses that the README shows of tools/quickstart are those of today: to step 20, and with tools/test --all to the
// last one. GPTC_AUSTEN names a folder with the novels; else data/austen/texts, where tools/quickstart keeps them, or
// what tools/fetch-austen brings.
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/json_lines.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

struct Shown {
  std::map<int, double> losses;  // by step, from lines such as `step 10/1400  loss 7.2070  ...`
  int steps = 0;                 // of the whole run
  double validation = 0;         // from the line `val loss 3.8804 ...`
};

Shown readmeShows() {
  Shown shown;
  std::ifstream in(GPTC_SOURCE_DIR "/README.md");
  for (std::string line; std::getline(in, line);) {
    int step = 0, of = 0;
    double loss = 0;
    if (std::sscanf(line.c_str(), " step %d/%d loss %lf", &step, &of, &loss) == 3)
      shown.losses[step] = loss, shown.steps = std::max(shown.steps, of);
    else if (std::sscanf(line.c_str(), " val loss %lf", &loss) == 1)
      shown.validation = loss;
  }
  return shown;
}

/// The folder of the novels, or "" and why there is none.
std::string novels(std::string &why) {
  const char *given = std::getenv("GPTC_AUSTEN");
  for (const std::string &folder : {std::string(given ? given : ""), std::string(GPTC_SOURCE_DIR "/data/austen/texts")})
    if (fs::exists(folder + "/persuasion.txt"))
      return folder;
  const std::string fetched = gptc::test::sharedFolder("austen"), log = fetched + "/log";
  if (std::system(
          fmt::format("timeout 120 '{}/tools/fetch-austen' '{}/texts' >'{}' 2>&1", GPTC_SOURCE_DIR, fetched, log)
              .c_str()) == 0)
    return fetched + "/texts";
  why = "no novels, GPTC_AUSTEN can name their folder: " + readFile(log);
  std::replace(why.begin(), why.end(), '\n', ' ');
  return "";
}

TEST(Readme, LossesOfTheQuickstartAreThoseOfToday) {
  const Shown shown = readmeShows();
  ASSERT_GE(shown.losses.size(), 3u) << "README.md shows no losses";
  ASSERT_TRUE(shown.losses.count(1) && shown.losses.count(20) && shown.losses.count(shown.steps));
  ASSERT_GT(shown.validation, 0);
  std::string why;
  const std::string texts = novels(why);
  if (texts.empty())
    GTEST_SKIP() << why;
  Workplace w;
  std::vector<std::string> prepare = {"data", "prepare"}, train;
  for (const auto &entry : fs::directory_iterator(texts))
    if (entry.path().extension() == ".txt" && entry.path().stem() != "persuasion")
      train.push_back(entry.path());
  std::sort(train.begin(), train.end());
  prepare.insert(prepare.end(), train.begin(), train.end());
  for (const std::string &a : {std::string("--val"), texts + "/persuasion.txt", std::string("--tokenizer"),
                               std::string("bpe:2048"), std::string("--out"), w.path("austen")})
    prepare.push_back(a);
  Result r = w.gptc(prepare);
  ASSERT_EQ(r.code, 0) << r.output;
  std::vector<std::string> compile = {"compile", GPTC_SOURCE_DIR "/examples/austen.toml", "-o", w.path("plan")};
  for (const std::string &s :
       {"data.train=" + w.path("austen/train.bin"), "data.val=" + w.path("austen/val.bin"),
        "data.tokenizer=" + w.path("austen/tokenizer.json"), "out_dir=" + w.path("run"), std::string("log.every=1")}) {
    compile.push_back("--set");
    compile.push_back(s);
  }
  r = w.gptc(compile);
  ASSERT_EQ(r.code, 0) << r.output;
  const int steps = gptc::test::sized(20, shown.steps);
  r = w.gptrun({w.path("plan"), "--steps", std::to_string(steps)});
  ASSERT_EQ(r.code, 0) << r.output;

  std::map<int, double> losses;
  for (const nlohmann::json &j : gptc::test::jsonLines(readFile(w.path("run/log.jsonl"))))
    if (j.contains("loss"))
      losses[j["step"]] = j["loss"];
  for (const auto &[step, loss] : shown.losses)
    if (step <= steps) {
      // Other instruction sets round otherwise, which grows with the steps.
      EXPECT_NEAR(losses[step], loss, step <= 20 ? 1e-3 : 2e-2) << "step " << step;
    }
  if (steps < shown.steps)
    return;
  r = w.gptrun({"eval", w.path("plan"), "--steps", "0"});
  ASSERT_EQ(r.code, 0) << r.output;
  double loss = 0;
  const size_t at = r.output.find("val loss ");
  ASSERT_TRUE(at != std::string::npos && std::sscanf(r.output.c_str() + at, "val loss %lf", &loss) == 1) << r.output;
  EXPECT_NEAR(loss, shown.validation, 2e-2);
}

}  // namespace
