// gptc experiment: how files expand into runs, intervals over seeds, and a real experiment that fails, stops, goes on.
#include "runtime/train/run_folder.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tests/support/eventually.h"
#include "tests/support/harness.h"
#include "tools/study/experiment.h"
#include "tools/study/experiment_results.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

using namespace e2e;
using namespace gptc;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> namesOf(const Experiment &e) {
  std::vector<std::string> names;
  for (const ExperimentRun &r : e.runs)
    names.push_back(r.name);
  return names;
}

// ---- the file ----

TEST(ExperimentFile, AGridKeepsTheOrderOfTheFileAndTheLastKeyChangesFastest) {
  const Experiment e = parseExperiment("model = \"m.toml\"\nset = [\"eval.every=5\"]\nseeds = [7, 3]\n[grid]\n"
                                       "train.grad_clip = [1.0, 0.5]\nmodel.n_layer = [2, 4]\n",
                                       "/x/e.toml");
  EXPECT_EQ(namesOf(e), (std::vector<std::string>{"grad_clip=1.0,n_layer=2,seed=7", "grad_clip=1.0,n_layer=2,seed=3",
                                                  "grad_clip=1.0,n_layer=4,seed=7", "grad_clip=1.0,n_layer=4,seed=3",
                                                  "grad_clip=0.5,n_layer=2,seed=7", "grad_clip=0.5,n_layer=2,seed=3",
                                                  "grad_clip=0.5,n_layer=4,seed=7", "grad_clip=0.5,n_layer=4,seed=3"}));
  EXPECT_EQ(e.model, "/x/m.toml");
  EXPECT_EQ(e.runs[2].settings,
            (std::vector<std::string>{"eval.every=5", "train.grad_clip=1.0", "model.n_layer=4", "train.seed=7"}));
  EXPECT_EQ(e.runs[2].variant, e.runs[3].variant);
  EXPECT_NE(e.runs[1].variant, e.runs[2].variant);
}

TEST(ExperimentFile, VariantsHaveTheirNamesAndNoneIsTheModelItself) {
  const Experiment e = parseExperiment("model = \"m.toml\"\ntokens = \"1K\"\n[[variant]]\nname = \"a b\"\n[[variant]]\n"
                                       "name = \"hot\"\nset = [\"optimizer.lr=1e-2\"]\n",
                                       "e.toml");
  EXPECT_EQ(namesOf(e), (std::vector<std::string>{"a b", "hot"}));
  EXPECT_TRUE(e.runs[0].settings.empty());
  EXPECT_FALSE(e.runs[0].seed);
  EXPECT_EQ(e.budget.stepsFor(64), 15);
  EXPECT_EQ(e.budget.stepsFor(1e9), 1) << "a step at least";
  EXPECT_EQ(namesOf(parseExperiment("model = \"m.toml\"\n", "e.toml")), std::vector<std::string>{"model"});
}

TEST(ExperimentFile, RefusesWhatIsWrongByName) {
  const struct {
    std::string text, message;
    ErrorCode code;
  } cases[] = {
      {"steps = 3\n", "model is missing", ErrorCode::MissingKey},
      {"model = \"m\"\nstep = 3\n", "unknown key step", ErrorCode::UnknownKey},
      {"model = \"m\"\n[grids]\na = [1]\n", "unknown table [grids]", ErrorCode::UnknownKey},
      {"model = \"m\"\nset = [\"optimizer.rate=1\"]\n", "no key optimizer.rate", ErrorCode::UnknownKey},
      {"model = \"m\"\n[grid]\nmodel.layers = [1]\n", "no key model.layers", ErrorCode::UnknownKey},
      {"model = \"m\"\n[[variant]]\nname = \"a\"\nset = [\"train.stepz=1\"]\n", "no key train.stepz",
       ErrorCode::UnknownKey},
      {"model = \"m\"\nset = [\"optimizer.lr\"]\n", "optimizer.lr", ErrorCode::WrongType},
      {"model = \"m\"\nset = \"optimizer.lr=1\"\n", "set must be a list of texts", ErrorCode::WrongType},
      {"model = \"m\"\n[grid]\n", "[grid] has no key", ErrorCode::OutOfRange},
      {"model = \"m\"\n[grid]\nmodel.n_layer = []\n", "model.n_layer must be a list of at least one",
       ErrorCode::OutOfRange},
      {"model = \"m\"\n[grid]\nmodel.n_layer = 3\n", "model.n_layer must be a list", ErrorCode::WrongType},
      {"model = \"m\"\n[grid]\nmodel.n_layer = [2, 2]\n", "two runs are named", ErrorCode::Contradiction},
      {"model = \"m\"\nvariant = []\n", "variant is an empty list", ErrorCode::OutOfRange},
      {"model = \"m\"\n[[variant]]\nname = \"a\"\n[[variant]]\nname = \"a\"\n", "two variants are named \"a\"",
       ErrorCode::Contradiction},
      {"model = \"m\"\n[[variant]]\nname = \"a/b\"\n", "a run cannot be named \"a/b\"", ErrorCode::UnknownValue},
      {"model = \"m\"\n[[variant]]\nname = \"..\"\n", "a run cannot be named \"..\"", ErrorCode::UnknownValue},
      {"model = \"m\"\n[[variant]]\nname = \"results.jsonl\"\n", "cannot be named", ErrorCode::UnknownValue},
      {"model = \"m\"\n[[variant]]\nset = []\n", "variant.name is missing", ErrorCode::MissingKey},
      {"model = \"m\"\n[grid]\nmodel.n_layer = [1]\n[[variant]]\nname = \"a\"\n", "both [grid] and [[variant]]",
       ErrorCode::Contradiction},
      {"model = \"m\"\nsteps = 1\ntokens = 5\n", "steps and tokens both", ErrorCode::Contradiction},
      {"model = \"m\"\nsteps = 1\nset = [\"train.steps=2\"]\n", "train.steps is set, but steps",
       ErrorCode::Contradiction},
      {"model = \"m\"\nseeds = [1]\n[grid]\ntrain.seed = [2]\n", "train.seed is set, but seeds",
       ErrorCode::Contradiction},
      {"model = \"m\"\nseeds = []\n", "seeds must be a list", ErrorCode::OutOfRange},
      {"model = \"m\"\nseeds = [1, 1]\n", "seeds has 1 twice", ErrorCode::Contradiction},
      {"model = \"m\"\nseeds = [-1]\n", "at least 0", ErrorCode::WrongType},
      {"model = \"m\"\nseconds = 0\n", "seconds = 0 is out of range", ErrorCode::OutOfRange},
  };
  for (const auto &c : cases)
    try {
      parseExperiment(c.text, "e.toml");
      ADD_FAILURE() << c.text;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, c.code) << c.text << e.what();
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos) << c.text << e.what();
    }
}

TEST(ExperimentFile, ManyRunsHaveToBeAskedFor) {
  std::string text = "model = \"m\"\nseeds = [";
  for (int i = 0; i <= 1000; ++i)
    text += std::to_string(i) + ",";
  text += "]\n";
  EXPECT_EQ(parseExperiment(text, "e.toml", 2000).runs.size(), 1001u);
  try {
    parseExperiment(text, "e.toml");
    ADD_FAILURE();
  } catch (const UserError &e) {
    EXPECT_NE(std::string(e.what()).find("1001 runs"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--yes"), std::string::npos) << e.what();
  }
  // Where --yes would not help, it is not named.
  std::string grid = "model = \"m\"\n[grid]\n";
  for (const char *key : {"optimizer.lr", "optimizer.weight_decay", "train.grad_clip"}) {
    grid += fmt::format("{} = [", key);
    for (int i = 1; i <= 101; ++i)
      grid += std::to_string(i) + ".0,";
    grid += "]\n";
  }
  for (const int64_t most : {kManyRuns, kMostRuns})
    try {
      parseExperiment(grid, "e.toml", most);
      ADD_FAILURE();
    } catch (const UserError &e) {
      EXPECT_NE(std::string(e.what()).find("1030301 runs"), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find("--yes"), std::string::npos) << e.what();
    }
}

// ---- statistics ----

TEST(ExperimentStatistics, StudentsTIsThatOfTables) {
  for (auto [freedom, t] :
       {std::pair(1, 12.7062), {2, 4.30265}, {3, 3.18245}, {4, 2.77645}, {9, 2.26216}, {29, 2.04523}, {1000, 1.96234}})
    EXPECT_NEAR(studentT(freedom), t, 1e-4) << freedom;
  EXPECT_NEAR(studentT(5, 0.99), 4.03214, 1e-4);
}

TEST(ExperimentStatistics, IntervalsOfTheMean) {
  const SeedStatistics s = statisticsOf("a", {2, 4, 9});
  EXPECT_DOUBLE_EQ(s.mean, 5);
  EXPECT_NEAR(s.halfWidth, 4.30265 * std::sqrt(13.0 / 3), 1e-3);  // variance 13 with n - 1
  EXPECT_TRUE(std::isnan(statisticsOf("b", {2}).halfWidth)) << "of one value there is none";
}

TEST(ExperimentStatistics, RunsWithoutAValueAreCountedAndStandLast) {
  std::vector<RunResult> all(5);
  const double losses[] = {3, 5, 1, NAN, NAN};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].variant = i < 2 ? "sure" : i < 4 ? "hot" : "dead";
    all[i].valLoss = losses[i];
  }
  all[4].failed = true;
  const std::vector<SeedStatistics> found = SeedStatistics::of(all);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].variant, "sure");
  EXPECT_EQ(found[0].without, 0);
  EXPECT_EQ(found[1].variant, "hot");
  EXPECT_EQ(found[1].mean, 1);
  EXPECT_EQ(found[1].without, 1);
  EXPECT_EQ(found[2].variant, "dead");
  EXPECT_EQ(found[2].without, 1);
  EXPECT_TRUE(found[2].values.empty());
}

TEST(ExperimentStatistics, ResultsReadBackAndTheBestStandsFirst) {
  const Workplace w;
  RunResult a, b, c;
  a.name = "a", a.variant = "v", a.seed = 3, a.settings = {"optimizer.lr=1"}, a.loss = 1, a.valLoss = 2.5;
  b.name = "b", b.failed = true, b.exit = 3, b.error = {"GPTC0204", "bad \xff text"};
  c.name = "c", c.loss = 2, c.valLoss = 2.25, c.valStep = 6;
  writeResults(w.path("r.jsonl"), {a, b, c});
  std::vector<RunResult> read = readResults(w.path("r.jsonl"));
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].json(), a.json());
  EXPECT_EQ(read[1].error.code, "GPTC0204");
  EXPECT_TRUE(std::isnan(read[1].valLoss));
  sortByLoss(read);
  EXPECT_EQ(read[0].name + read[1].name + read[2].name, "cab");
  writeFile(w.path("r.jsonl"), a.json().dump() + "\n{\"name\": 3}\n");
  try {
    readResults(w.path("r.jsonl"));
    ADD_FAILURE();
  } catch (const UserError &e) {
    EXPECT_NE(std::string(e.what()).find("r.jsonl:2"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(readResults(w.path("none.jsonl")).empty());
}

TEST(ExperimentStatistics, TheFirstStepAtWhichLossesDiffer) {
  const Workplace w;
  auto log = [&](const std::string &run, const std::string &text) {
    fs::create_directories(w.path(run));
    writeFile(w.path(run) + "/log.jsonl", text);
    return w.path(run);
  };
  const std::string a = log("a", "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"val_loss\": 9}\n"
                                 "{\"step\": 2, \"loss\": 3.25}\n{\"step\": 3, \"loss\": null}\n");
  const std::string b = log("b", "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"loss\": 3.2500002}\n");
  const std::string c = log("c", "{\"step\": 3, \"loss\": null}\n{\"step\": 4, \"loss\": 1}\n");
  const FirstDifference p = compareRuns(a, b);
  EXPECT_EQ(p.step, 2);
  EXPECT_EQ(p.shared, 2);
  EXPECT_EQ(p.first, 3.25f);
  EXPECT_EQ(compareRuns(a, c).step, -1) << "what is not finite in both is the same";
  EXPECT_EQ(compareRuns(a, c).last, 3);
  EXPECT_THROW(compareRuns(b, c), UserError);
  EXPECT_THROW(compareRuns(a, w.path("none")), UserError);
}

TEST(ExperimentStatistics, ErrorsAreFoundInWhatAProgramPrints) {
  const auto e = errorIn("warning: w\nerror[GPTC0206]: 32 is not 3 times\n  = help: x\nerror[GPTC0999]: y\n");
  ASSERT_TRUE(e);
  EXPECT_EQ(e->code, "GPTC0206");
  EXPECT_EQ(e->message, "32 is not 3 times");
  EXPECT_FALSE(errorIn("all is well\n"));
}

TEST(ExperimentStatistics, ALossIsFoundWithAllItsDigits) {
  EXPECT_EQ(valLossIn("note: x\nval loss 3.1234567890123457  perplexity 22.72  (x, 0.1 s)\n"), 3.1234567890123457);
  EXPECT_TRUE(std::isnan(valLossIn("val loss nan  perplexity nan\n").value()));
  EXPECT_FALSE(valLossIn("val loss is unknown\n"));
  EXPECT_FALSE(valLossIn("loss 3\n"));
}

// ---- the command ----

struct ExperimentTest : ::testing::Test {
  Workplace w;
  std::string file(const std::string &text) {
    writeFile(w.path("e.toml"), "model = \"tiny.toml\"\n" + text);
    return w.path("e.toml");
  }
  Result experiment(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"experiment", w.path("e.toml"), "--out", w.path("x"), "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return w.gptc(args);
  }
  /// The same with this shell script in gptrun's place, in which $REAL is the true one.
  Result withGptrun(const std::string &script) {
    const std::string bin = w.path("bin");
    std::error_code e;
    if (fs::create_directories(bin) && (fs::create_hard_link(GPTC_BIN_DIR "/gptc", bin + "/gptc", e), e)) {
      fs::copy_file(GPTC_BIN_DIR "/gptc", bin + "/gptc");  // on another file system
    }
    writeFile(bin + "/gptrun", "#!/bin/sh\nREAL=" GPTC_BIN_DIR "/gptrun\n" + script);
    fs::permissions(bin + "/gptrun", fs::perms::owner_all);
    return Process({bin + "/gptc", "experiment", w.path("e.toml"), "--out", w.path("x"), "--threads", "1"},
                   {{"GPTC_CACHE", cacheDir()}}, w.path("said"))
        .wait();
  }
  std::vector<RunResult> results() { return readResults(w.path("x/results.jsonl")); }
  /// An experiment of one run, x/a, in the background.
  Process startLong(const std::string &steps) {
    file("steps = " + steps + "\nset = [\"eval.every=0\", \"checkpoint.every=0\"]\n[[variant]]\nname = \"a\"\n");
    return w.start("gptc", {"experiment", w.path("e.toml"), "--out", w.path("x"), "--threads", "1"});
  }
  /// Waits until it has logged step 3, or has ended.
  bool isBeyondStep3(const Process &p) const {
    return gptc::test::eventually(
        [&] { return p.hasEnded() || readFile(w.path("x/a/log.jsonl")).find("\"step\": 3,") != std::string::npos; },
        std::chrono::minutes(5));
  }
};

TEST_F(ExperimentTest, AGridTrainsOnceAndEqualsRunsByHand) {
  file("tokens = 640\n[grid]\noptimizer.lr = [1e-2, 1e-3]\nmodel.n_layer = [1, 2]\n");
  const Result first = experiment();
  ASSERT_EQ(first.code, 0) << first.output;
  const std::vector<RunResult> all = results();
  ASSERT_EQ(all.size(), 4u);
  std::set<double> losses;
  for (const RunResult &r : all) {
    EXPECT_EQ(r.steps, 10) << r.name;
    EXPECT_EQ(r.tokens, 640) << r.name;
    EXPECT_FALSE(r.failed) << r.name;
    EXPECT_TRUE(std::isfinite(r.valLoss) && r.tokensPerSecond > 0 && r.seconds > 0) << r.name;
    losses.insert(r.loss);
  }
  EXPECT_EQ(losses.size(), 4u);
  EXPECT_EQ(all[1].name, "lr=0.01,n_layer=2");
  w.train(w.compile("hand", {"train.steps=10"}), "by-hand");
  EXPECT_EQ(logLines(w.path("x/lr=0.01,n_layer=2")), logLines(w.path("by-hand")));

  // Nothing is done again.
  const std::string before = readFile(w.path("x/lr=0.01,n_layer=2/log.jsonl"));
  const Result again = experiment({"--json"});
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(readFile(w.path("x/lr=0.01,n_layer=2/log.jsonl")), before);
  const nlohmann::json j = parseJson(again.output);
  ASSERT_EQ(j["runs"].size(), 4u);
  for (size_t i = 1; i < 4; ++i)
    EXPECT_LE(j["runs"][i - 1]["val_loss"], j["runs"][i]["val_loss"]);

  // More runs are done, and those that changed are refused, before anything runs.
  file("tokens = 640\n[grid]\noptimizer.lr = [1e-2, 1e-3]\nmodel.n_layer = [2, 3]\n");
  const Result more = experiment();
  ASSERT_EQ(more.code, 0) << more.output;
  EXPECT_NE(more.output.find("has changed since"), std::string::npos) << more.output;
  EXPECT_EQ(results().size(), 6u);
  EXPECT_EQ(readFile(w.path("x/lr=0.01,n_layer=2/log.jsonl")), before);
  file("tokens = 1280\n[grid]\noptimizer.lr = [1e-2, 1e-4]\nmodel.n_layer = [2]\n");
  const Result changed = experiment();
  EXPECT_EQ(changed.code, 3) << changed.output;
  EXPECT_NE(changed.output.find("GPTC0209"), std::string::npos) << changed.output;
  EXPECT_NE(changed.output.find("lr=0.01,n_layer=2 "), std::string::npos) << changed.output;
  EXPECT_FALSE(fs::exists(w.path("x/lr=0.0001,n_layer=2")));
}

TEST_F(ExperimentTest, AFailingVariantIsRecordedAndTheNextGoesOn) {
  const std::string good = "[[variant]]\nname = \"good\"\n",
                    bad = "[[variant]]\nname = \"bad\"\nset = [\"model.n_head=";
  file("steps = 4\nseeds = [1, 2]\n" + bad + "3\"]\n" + good);
  const Result r = experiment();
  EXPECT_EQ(r.code, 3) << r.output;
  std::vector<RunResult> all = results();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_TRUE(all[0].failed && all[1].failed);
  EXPECT_EQ(all[0].error.code, "GPTC0206") << all[0].error.message;
  EXPECT_NE(all[0].error.message.find("3 heads"), std::string::npos) << all[0].error.message;
  EXPECT_EQ(all[0].exit, 3);
  EXPECT_FALSE(all[2].failed || all[3].failed);
  EXPECT_NE(r.output.find("95% interval"), std::string::npos) << r.output;

  // Mended under its name, it is done; the good ones are not done again.
  file("steps = 4\nseeds = [1, 2]\n" + bad + "4\"]\n" + good);
  ASSERT_EQ(experiment().code, 0);
  all = results();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_FALSE(all[0].failed);
  EXPECT_EQ(all[0].steps, 4);

  fs::remove_all(w.path("x"));
  file("steps = 4\n" + bad + "3\"]\n" + good);
  EXPECT_EQ(experiment({"--stop-on-failure"}).code, 3);
  EXPECT_EQ(results().size(), 1u);
}

TEST_F(ExperimentTest, WhoeverMendsAModelNeedsNoOption) {
  const std::string model = readFile(w.modelFile());
  auto useRate = [&](const char *rate) {
    std::string text = model;
    text.replace(text.find("lr = 1e-2"), 9, fmt::format("lr = {}", rate));
    writeFile(w.modelFile(), text);
  };
  // One run compiles and then fails, the other's model is not valid.
  file("steps = 4\n[[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nset = [\"model.n_head=3\"]\n");
  EXPECT_EQ(withGptrun("exit 6\n").code, 6);
  ASSERT_EQ(results().size(), 2u);
  EXPECT_TRUE(results()[0].failed && results()[1].failed);
  EXPECT_EQ(experiment().code, 6) << "done again, though nothing has changed";
  EXPECT_TRUE(results()[0].failed);
  useRate("2e-2");
  EXPECT_EQ(experiment().code, 3) << "b is wrong still";
  ASSERT_EQ(results().size(), 2u);
  EXPECT_FALSE(results()[0].failed) << results()[0].error.message;
  EXPECT_TRUE(results()[1].failed);
  // What has ended well is refused.
  useRate("3e-2");
  const Result changed = experiment();
  EXPECT_EQ(changed.code, 3) << changed.output;
  EXPECT_NE(changed.output.find("GPTC0209"), std::string::npos) << changed.output;
}

TEST_F(ExperimentTest, ARunThatFailedAfterStepsOrStoppedBeforeThemMayBeCorrected) {
  auto rate = [&](const char *lr) {
    file(fmt::format("steps = 8\nset = [\"checkpoint.every=2\", \"optimizer.lr={}\"]\n", lr));
  };
  const std::string fails =
      "if mkdir " + w.path("once") + "; then $REAL \"$@\" --steps 4; exit 6; fi\nexec $REAL \"$@\"\n";
  rate("1e-2");
  EXPECT_EQ(withGptrun(fails).code, 6);
  ASSERT_EQ(results().size(), 1u);
  EXPECT_EQ(results()[0].steps, 4);
  rate("1e-3");
  const Result again = experiment();
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(results()[0].steps, 8);
  EXPECT_TRUE(fs::exists(w.path("x/model/old-1/log.jsonl"))) << again.output;
  w.train(w.compile("hand", {"train.steps=8", "checkpoint.every=2", "optimizer.lr=1e-3"}), "by-hand");
  EXPECT_EQ(logLines(w.path("x/model")), logLines(w.path("by-hand"))) << "from the beginning";

  fs::remove_all(w.path("x"));
  rate("1e-2");
  EXPECT_EQ(withGptrun("kill -INT $PPID; exec sleep 60\n").code, 130);
  EXPECT_TRUE(results().empty());
  rate("1e-3");
  EXPECT_EQ(experiment().code, 0);
  EXPECT_EQ(results()[0].steps, 8);
}

TEST_F(ExperimentTest, WaitsForARunThatStillWritesInItsFolder) {
  const std::string a = "steps = 4\n[[variant]]\nname = \"a\"\n";
  file(a);
  ASSERT_EQ(experiment().code, 0);
  file(a + "[[variant]]\nname = \"b\"\n");
  std::optional<RunLock> earlier(w.path("x/b"));  // as of a gptrun that has outlived its experiment
  Process p = w.start("gptc", {"experiment", w.path("e.toml"), "--out", w.path("x"), "--threads", "1"});
  ASSERT_TRUE(gptc::test::eventually([&] {
    return p.hasEnded() || readFile(w.path("output-1")).find("waiting for an earlier gptrun") != std::string::npos;
  }));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // in which it would begin
  EXPECT_FALSE(p.hasEnded());
  EXPECT_FALSE(fs::exists(w.path("x/b/compile.log"))) << "nothing is started";
  earlier.reset();
  const Result r = p.wait();
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("waiting"), r.output.rfind("waiting")) << "said once\n" << r.output;
  ASSERT_EQ(results().size(), 2u);
  EXPECT_FALSE(results()[1].failed);
  // Ctrl-C ends the waiting too.
  file(a + "[[variant]]\nname = \"c\"\n");
  earlier.emplace(w.path("x/c"));
  Process waiting = w.start("gptc", {"experiment", w.path("e.toml"), "--out", w.path("x")});
  ASSERT_TRUE(gptc::test::eventually([&] {
    return waiting.hasEnded() ||
           readFile(w.path("output-2")).find("waiting for an earlier gptrun") != std::string::npos;
  }));
  ::kill(waiting.pid(), SIGINT);
  EXPECT_EQ(waiting.wait().code, 130);
  EXPECT_EQ(results().size(), 2u);
}

TEST_F(ExperimentTest, AFolderThatCannotBeWrittenIsNoResultOfTheRun) {
  file("steps = 4\n");
  const Result r = withGptrun("echo 'error[GPTC0401]: cannot write in x: it is full of eels'\nexit 4\n");
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0401]: model: cannot write in x: it is full of eels"), std::string::npos)
      << r.output;
  EXPECT_TRUE(results().empty());
  // Taken by another at the very moment: it begins again.
  const Result again =
      withGptrun("if mkdir " + w.path("once") + "\nthen echo 'error[GPTC0401]: another run is writing in x'\n" +
                 "exit 4\nfi\nexec $REAL \"$@\"\n");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_TRUE(fs::exists(w.path("once")));
  ASSERT_EQ(results().size(), 1u);
  EXPECT_FALSE(results()[0].failed);
}

TEST_F(ExperimentTest, AnotherCallMustNotWriteAtTheSameTime) {
  const Process p = startLong("100000000");  // so that it goes on, however long the other call takes
  ASSERT_TRUE(isBeyondStep3(p));
  const Result other = experiment();
  EXPECT_EQ(other.code, 4) << other.output;
  EXPECT_FALSE(p.hasEnded());
  ::kill(p.pid(), SIGINT);
  EXPECT_TRUE(gptc::test::eventually([&] { return p.hasEnded(); }, std::chrono::minutes(5)));
}

TEST_F(ExperimentTest, CtrlCEndsARunInOrderAndTheNextCallGoesOn) {
  const std::string steps = "20000";
  Process p = startLong(steps);
  ASSERT_TRUE(isBeyondStep3(p));
  ::kill(p.pid(), SIGINT);
  const Result stopped = p.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.output;
  EXPECT_NE(stopped.output.find("1 run left"), std::string::npos) << stopped.output;
  EXPECT_TRUE(results().empty());
  const std::vector<std::string> saved = w.checkpoints(w.path("x/a"));
  ASSERT_EQ(saved.size(), 1u) << readFile(w.path("x/a/run.log"));
  const std::string plan = readFile(w.path("x/a/plan/manifest.json"));

  const Result done = experiment();
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_EQ(readFile(w.path("x/a/plan/manifest.json")), plan) << "compiled again";
  EXPECT_NE(readFile(w.path("x/a/run.log")).find(fmt::format("step {}/{}", steps, steps)), std::string::npos);
  ASSERT_EQ(results().size(), 1u);
  EXPECT_EQ(results()[0].steps, std::stoll(steps));
  // Each step is logged once: it went on where it stopped.
  const std::vector<std::string> lines = logLines(w.path("x/a"));
  EXPECT_EQ(lines.size(), size_t(std::stoll(steps)) + 1);  // and one evaluation
}

TEST_F(ExperimentTest, SecondsEndARunWhereverItIs) {
  file("seconds = 2\nset = [\"train.steps=100000000\", \"eval.every=0\", \"checkpoint.every=0\", \"log.every=7\"]\n");
  const Result r = experiment();
  ASSERT_EQ(r.code, 0) << r.output;
  ASSERT_EQ(results().size(), 1u);
  const RunResult one = results()[0];
  EXPECT_GT(one.steps, 0);
  EXPECT_LT(one.steps, 100000000);
  EXPECT_GE(one.seconds, 2);
  EXPECT_EQ(one.valStep, one.steps) << "evaluated at its end";
  const Result by = w.gptrun({"eval", w.path("x/model/plan"), "--out-dir", w.path("x/model"), "--exact"});
  EXPECT_EQ(one.valLoss, valLossIn(by.output)) << by.output;
  EXPECT_NE(fmt::format("{}", one.valLoss), fmt::format("{}", std::stod(fmt::format("{:.4f}", one.valLoss))))
      << "all digits";
  const Result again = experiment();
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(results()[0].json(), one.json());
}

TEST_F(ExperimentTest, AnEvaluationAtTheEndThatSaysNothingIsAFailure) {
  file("seconds = 1\nset = [\"train.steps=100000000\", \"eval.every=0\", \"checkpoint.every=0\"]\n");
  const Result r = withGptrun("case $1 in eval) echo \"$@\"; exit 0;; esac\nexec $REAL \"$@\"\n");
  EXPECT_EQ(r.code, 70) << r.output;
  ASSERT_EQ(results().size(), 1u);
  EXPECT_TRUE(results()[0].failed);
  EXPECT_NE(results()[0].error.message.find("no validation loss"), std::string::npos) << results()[0].error.message;
  EXPECT_GT(results()[0].steps, 0);
  EXPECT_NE(readFile(w.path("x/model/run.log")).find("--exact --threads 1\n"), std::string::npos)
      << "as many threads as the run\n"
      << readFile(w.path("x/model/run.log"));
}

TEST_F(ExperimentTest, ABudgetOfSecondsSurvivesAKill) {
  file("seconds = 100000\nset = [\"train.steps=100000000\", \"eval.every=0\", \"checkpoint.every=0\"]\n");
  auto seconds = [&] {
    const nlohmann::json state = parseJsonOrDiscard(readFile(w.path("x/model/run.json")));
    return part(state, "seconds").is_number() ? state["seconds"].get<double>() : 0;
  };
  auto start = [&] {
    return w.start("gptc", {"experiment", w.path("e.toml"), "--out", w.path("x"), "--threads", "1"});
  };
  double least = 1e9;
  auto reaches = [&](Process &p, double more) {
    auto look = [&] {
      const double now = seconds();
      least = std::min(least, now);
      return p.hasEnded() || now > more;
    };
    return gptc::test::eventually(look, std::chrono::minutes(5)) && !p.hasEnded();
  };
  Process killed = start();
  ASSERT_TRUE(reaches(killed, 2.5)) << "nothing is noted while it runs";
  ::kill(killed.pid(), SIGKILL);
  killed.wait();
  const double before = seconds();
  EXPECT_GT(before, 2.5);
  // gptrun has lived on for a while; that is nobody's failure.
  least = before;
  Process next = start();
  ASSERT_TRUE(reaches(next, before));
  EXPECT_EQ(least, before) << "it counts from there on";
  ::kill(next.pid(), SIGINT);
  const Result stopped = next.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.output;
  EXPECT_GT(seconds(), before);
  EXPECT_TRUE(results().empty()) << results()[0].error.message;
}

TEST_F(ExperimentTest, FlopsBecomeSteps) {
  file("flops = 1e9\n");
  ASSERT_EQ(experiment().code, 0);
  const int64_t once = results()[0].steps;
  EXPECT_GT(once, 1);
  fs::remove_all(w.path("x"));
  file("flops = 2e9\n");
  ASSERT_EQ(experiment().code, 0);
  EXPECT_NEAR(double(results()[0].steps), 2.0 * double(once), 1.0);
}

TEST_F(ExperimentTest, TwoRunsAreCompared) {
  file("steps = 4\n[grid]\ntrain.grad_clip = [1.0, 1e-3]\n");
  const Result r = experiment();
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("losses first differ at step"), std::string::npos) << r.output;
  const Result same = w.gptc({"experiment", "--compare", w.path("x/grad_clip=1.0"), w.path("x/grad_clip=1.0")});
  EXPECT_EQ(same.code, 0);
  EXPECT_NE(same.output.find("losses of all 4 steps"), std::string::npos) << same.output;
  const Result named =
      w.gptc({"experiment", "--compare", "grad_clip=1.0", "grad_clip=0.001", "--out", w.path("x"), "--json"});
  ASSERT_EQ(named.code, 0) << named.output;
  EXPECT_GT(parseJson(named.output)["step"], 1);
}

TEST_F(ExperimentTest, BadInputsEndBeforeAnythingRuns) {
  EXPECT_EQ(w.gptc({"experiment"}).code, 2);
  file("steps = 4\n");
  EXPECT_EQ(w.gptc({"experiment", w.path("e.toml")}).code, 2);
  EXPECT_EQ(w.gptc({"experiment", w.path("none.toml"), "--out", w.path("x")}).code, 3);
  file("set = [\"optimizer.rate=1\"]\n");
  EXPECT_EQ(experiment().code, 3);
  EXPECT_FALSE(fs::exists(w.path("x"))) << "nothing is made";
  // A folder of somebody else stays as it is.
  file("steps = 4\n");
  fs::create_directories(w.path("x"));
  writeFile(w.path("x/mine.txt"), "mine");
  const Result foreign = experiment();
  EXPECT_EQ(foreign.code, 4) << foreign.output;
  EXPECT_NE(foreign.output.find("GPTC0401"), std::string::npos) << foreign.output;
  EXPECT_EQ(std::distance(fs::directory_iterator(w.path("x")), fs::directory_iterator()), 1);
  fs::remove_all(w.path("x"));
  // A model that is not there is an error of the first call; mended, the same folder serves.
  writeFile(w.path("e.toml"), "model = \"other.toml\"\nsteps = 4\n");
  EXPECT_EQ(experiment().code, 3);
  fs::copy_file(w.modelFile(), w.path("other.toml"));
  const Result mended = experiment();
  EXPECT_EQ(mended.code, 0) << mended.output;
}

}  // namespace
