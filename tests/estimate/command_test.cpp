// The commands as users call them: how long they take, and files that nobody would write.
#include "support.h"
#include "support/json.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gptc::estimate_test {
namespace {

struct Ran {
  int code = -1;  // -1: a signal ended it
  std::string out, err;
  double seconds = 0;  // of processors
};

Ran gptc(const std::string &arguments) {
  const std::string base = testing::TempDir() + fmt::format("gptc-estimate-{}", ::getpid());
  auto used = [] {
    rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * double(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  };
  const double before = used();
  const int status = std::system(fmt::format("cd '{}' && exec '{}/gptc' {} >'{}.out' 2>'{}.err'", GPTC_SOURCE_DIR,
                                             GPTC_BIN_DIR, arguments, base, base)
                                     .c_str());
  Ran r;
  r.seconds = used() - before;
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  auto take = [&](const std::string &file) {
    const std::string text = test::contentOf(file);
    std::filesystem::remove(file);
    return text;
  };
  r.out = take(base + ".out");
  r.err = take(base + ".err");
  return r;
}

// What a person waits for: the aim of 2 s is for a machine where nothing else runs (`ctest -C Speed`), and where others
// run, or sanitizers, one of that order.
const double patience = std::getenv("GPTC_TEST_SPEED") ? 2 : 20;

TEST(Command, AllStrategiesOf7BAnd70BTakeSeconds) {
  const std::string seventy = " --set model.n_layer=80 --set model.n_embd=8192 --set model.n_head=64";
  for (const std::string &size : {std::string(), seventy})
    for (const char *mode : {"", " --search"})
      for (const char *cluster : {"jean-zay", "8xh100"}) {
        const Ran r = gptc(fmt::format("estimate examples/bloom-7b1.toml --cluster examples/clusters/{}.toml --gpus "
                                       "1..64 --json{}{}",
                                       cluster, mode, size));
        ASSERT_EQ(r.code, 0) << r.err;
        EXPECT_LT(r.seconds, patience) << cluster << mode << size;
        const auto all = parseJson(r.out);
        ASSERT_EQ(all.size(), 7u);
        EXPECT_EQ(all.back()["gpus"], 64);
        EXPECT_GT(double(all.back()["tokens_per_s"]), 0);
      }
}

TEST(Command, OneNumberOfGpusIsOneObject) {
  const Ran r = gptc("estimate examples/bloom-7b1.toml --cluster examples/clusters/jean-zay.toml --gpus 16 --json "
                     "--set parallel.zero_stage=1 --set compile.remat=none --set accumulate=256");
  ASSERT_EQ(r.code, 0) << r.err;
  const auto j = parseJson(r.out);
  for (const char *key :
       {"gpus", "s_per_step", "tokens_per_s", "days", "mfu", "bytes_resident", "bytes_peak", "oom", "binds"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["gpus"], 16);
  EXPECT_EQ(j["oom"], false);
  EXPECT_NEAR(double(j["days"]), 57, 0.05 * 57);
  EXPECT_NEAR(double(j["days"]) * 86400 * double(j["tokens_per_s"]), 100e9, 1);
}

// What compile refuses runs nowhere: a tree takes a power of two of ranks.
TEST(Command, RanksThatAreNoTreeAreNoForecast) {
  for (const char *cluster : {"8xa100-80gb", "8xh100"}) {
    const std::string of =
        fmt::format("estimate examples/bloom-7b1.toml --cluster examples/clusters/{}.toml --gpus ", cluster);
    for (int n : {3, 12, 24, 63})
      for (const char *mode : {"", " --search"}) {
        const Ran r = gptc(fmt::format("{}{}{}", of, n, mode));
        EXPECT_EQ(r.code, 3) << n << mode << r.out;
        EXPECT_NE(r.err.find(fmt::format("{} ranks cannot add up in the order of a binary tree", n)), std::string::npos)
            << r.err;
        EXPECT_NE(r.err.find("parallel.reduce_order = \"fast\""), std::string::npos) << r.err;
        const Ran fast = gptc(fmt::format("{}{}{} --json --set parallel.reduce_order=fast", of, n, mode));
        ASSERT_EQ(fast.code, 0) << fast.err;
        EXPECT_GT(double(parseJson(fast.out)["tokens_per_s"]), 0);
      }
    const Ran some = gptc(of + "8,12");
    EXPECT_EQ(some.code, 0) << some.err;
    EXPECT_NE(some.out.find("12 ranks cannot add up in the order of a binary tree (8 or 16 ranks, or "),
              std::string::npos)
        << some.out;
    // 12 heads divide by 3.
    const Ran three = gptc(fmt::format("estimate examples/gpt2-124m.toml --cluster examples/clusters/{}.toml "
                                       "--gpus 6 --search --json --set parallel.tensor=auto --set accumulate=4",
                                       cluster));
    ASSERT_EQ(three.code, 0) << three.err;
    const auto j = parseJson(three.out);
    EXPECT_EQ(j["predicted_only"], false);
    EXPECT_EQ(j["tensor"], 3) << three.out;
    EXPECT_EQ(j["data"], 2);
  }
}

TEST(Command, WrittenRanksAndNumbersOfGpusAgree) {
  const std::string of = "estimate examples/bloom-7b1.toml --cluster examples/clusters/8xh100.toml ";
  const Ran r = gptc(of + "--gpus 8 --set parallel.data=4");
  EXPECT_EQ(r.code, 3) << r.out;
  EXPECT_NE(r.err.find("GPTC0209"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("--gpus 4 works"), std::string::npos) << r.err;
  EXPECT_NE(gptc(of + "--gpus 4 --set parallel.data=4 --set parallel.tensor=2").err.find("--gpus 8 works"),
            std::string::npos);
  EXPECT_EQ(gptc(of + "--gpus 8 --set parallel.data=4 --set parallel.tensor=2").code, 0);
  EXPECT_EQ(gptc(of + "--gpus 8 --set parallel.data=4 --pipeline 2").code, 0);
  EXPECT_EQ(gptc(of + "--gpus 8 --set parallel.data=auto").code, 0);
  const Ran some = gptc(of + "--gpus 4,8 --set parallel.data=4");
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_NE(some.out.find("parallel.data = 4 takes 4 GPUs, and --gpus says 8"), std::string::npos) << some.out;
}

// The batch is that of the ranks along `data`: of 10 GPUs in pipelines of 5 there are 2.
TEST(Command, StagesOfAPipelineShareABatch) {
  const std::string of = "estimate examples/bloom-7b1.toml --cluster examples/clusters/jean-zay.toml --json "
                         "--set train.micro_batch=1 --set model.block_size=1024 --pipeline 5 ";
  auto json = [&](const std::string &more) {
    const Ran r = gptc(of + more);
    EXPECT_EQ(r.code, 0) << more << r.err;
    return r.code ? nlohmann::json() : parseJson(r.out);
  };
  for (const char *batch : {"--set accumulate=8", "--set train.global_batch_tokens=16384"}) {
    const auto j = json(std::string("--gpus 10 ") + batch);
    EXPECT_EQ(j["data"], 2) << batch;
    EXPECT_EQ(j["pipeline"], 5) << batch;
    EXPECT_EQ(j["accumulate"], 8) << batch;
    EXPECT_EQ(j["tokens_per_step"], 2 * 8 * 1024) << batch;
  }
  const auto divided = json("--gpus 20 --set parallel.tensor=2 --set accumulate=3");
  EXPECT_EQ(divided["data"], 2);
  EXPECT_EQ(divided["accumulate"], 3);
  EXPECT_EQ(json("--set accumulate=1")["gpus"], 5) << "as many as it takes where none are named";
  const Ran some = gptc("estimate examples/bloom-7b1.toml --cluster examples/clusters/jean-zay.toml --pipeline 3 "
                        "--gpus 4,6");
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_NE(some.out.find("4 GPUs do not divide into groups of tensor x pipeline = 1 x 3 (--gpus 3 works)"),
            std::string::npos)
      << some.out;
}

TEST(Command, LessThanATenthOfADayIsHours) {
  const std::string folder = testing::TempDir() + fmt::format("gptc-hours-{}", ::getpid());
  for (const char *mode : {"", " --search"}) {
    const std::string of = "estimate examples/gpt2-124m.toml --cluster examples/clusters/jean-zay.toml --gpus 8 ";
    const Ran r = gptc(of + "--tokens 3e7 --svg '" + folder + "'" + mode);
    ASSERT_EQ(r.code, 0) << r.err;
    const double days = parseJson(gptc(of + "--tokens 3e7 --json" + mode).out)["days"];
    ASSERT_LT(days, 0.1);
    EXPECT_NE(r.out.find(fmt::format(" {:.2g} h ", 24 * days)), std::string::npos) << r.out;
    EXPECT_EQ(r.out.find(" 0.0 "), std::string::npos) << r.out;
    const std::string picture = test::contentOf(folder + "/days.svg");
    EXPECT_NE(picture.find(">Hours for 3e+07 tokens on "), std::string::npos) << picture;
  }
  std::filesystem::remove_all(folder);
  EXPECT_EQ(formatDays(0.1), "0.1");
  EXPECT_EQ(formatDays(12.34), "12.3");
  EXPECT_EQ(formatDays(0.0999), "2.4 h");
  EXPECT_EQ(formatDays(1e-4), "0.0024 h");
}

TEST(Command, SaysHowSureItIsAndWhatElseToTry) {
  const std::string of = "estimate examples/bloom-7b1.toml --gpus 16 --set train.micro_batch=2 --set accumulate=16 ";
  const Ran fit = gptc(of + "--cluster examples/clusters/jean-zay.toml --set parallel.zero_stage=1");
  ASSERT_EQ(fit.code, 0) << fit.err;
  EXPECT_NE(fit.out.find("16 GPUs, ZeRO-1: "), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("with 90% confidence: by the intervals of the scalars in "), std::string::npos) << fit.out;
  EXPECT_NE(fit.out.find("\n`--search` also tries "), std::string::npos) << fit.out;
  EXPECT_EQ(fit.out.find("never seen"), std::string::npos) << fit.out;
  const Ran none = gptc(of + "--cluster examples/clusters/8xh100.toml --set parallel.tensor=16");
  ASSERT_EQ(none.code, 0) << none.err;
  EXPECT_NE(none.out.find("with 90% confidence: a default, with no interval fitted: 142 published runs"),
            std::string::npos)
      << none.out;
  EXPECT_NE(none.out.find(" USD with 90% confidence"), std::string::npos) << none.out;
  EXPECT_NE(none.out.find(" *\n"), std::string::npos) << none.out;
  EXPECT_NE(none.out.find("* never seen: no log of 8xh100 has several nodes, tensor over nodes."), std::string::npos)
      << none.out;
}

TEST(Command, SearchShowsThreeStrategiesAndWhatBindsThem) {
  const std::string of = "estimate examples/bloom-7b1.toml --cluster examples/clusters/8xh100.toml --gpus 8 --search ";
  const Ran r = gptc(of);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out.find("`--search`"), std::string::npos) << r.out;
  const auto j = parseJson(gptc(of + "--json").out);
  ASSERT_GE(j["alternatives"].size(), 3u);
  EXPECT_EQ(j["strategy"], j["alternatives"][0]["strategy"]);
  for (size_t i = 0; i < 3; ++i) {
    const auto &one = j["alternatives"][i];
    EXPECT_EQ(one["predicted_only"], false);
    EXPECT_NE(one["binds"], "");
    EXPECT_NE(r.out.find(std::string(one["strategy"]) + " "), std::string::npos) << r.out;
    for (size_t k = 0; k < i; ++k)
      EXPECT_NE(one["strategy"], j["alternatives"][k]["strategy"]);
  }
}

TEST(Command, DaysToALoss) {
  const std::string of = "estimate examples/bloom-7b1.toml --cluster examples/clusters/jean-zay.toml --gpus 16 --set "
                         "parallel.zero_stage=1 --set train.micro_batch=2 --set accumulate=256 ";
  const Ran r = gptc(of);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("\nloss: 2.2 nats per token expected after 1e+11 tokens, by the law of Hoffmann et al. 2022"),
            std::string::npos)
      << r.out;
  EXPECT_NE(r.out.find("\nbatch: 8.39e+06 tokens a step (16 GPUs, ZeRO-1) are beyond the critical batch of 4.73e+06"),
            std::string::npos)
      << r.out;
  const auto at = parseJson(gptc(of + "--json").out), to = parseJson(gptc(of + "--json --loss 2.5").out);
  EXPECT_NEAR(double(at["loss"]["by_law"]), 2.1955, 1e-3);
  EXPECT_EQ(at["loss"]["beyond_critical_batch"], true);
  EXPECT_NEAR(double(to["loss"]["by_law"]), 2.5, 1e-9);
  EXPECT_EQ(to["loss"]["goal"], 2.5);
  EXPECT_LT(double(to["days"]), double(at["days"]));
  EXPECT_NEAR(double(to["days"]) / double(at["days"]), double(to["tokens"]) / double(at["tokens"]), 1e-9);
  EXPECT_EQ(gptc(of + "--loss 1.9").code, 3);
  for (const char *bad : {"--loss 0", "--loss nan", "--loss 2.5 --tokens 1B"})
    EXPECT_EQ(gptc(of + bad).code, 2) << bad;
}

// A folder says what its model is, and --set the rest; its context may be shorter.
TEST(Command, ModelsOfOtherProgramsAreForecastToo) {
  const std::string rest = "--cluster examples/clusters/jean-zay.toml --gpus 8 --set train.micro_batch=2 "
                           "--set accumulate=1 --set parallel.zero_stage=1 ",
                    of = "estimate tests/e2e/hf/llama " + rest;
  const Ran r = gptc(of);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out.find("llama: "), 0u) << r.out;
  EXPECT_EQ(parseJson(gptc(of + "--json").out)["tokens_per_step"], 8 * 2 * 20);
  EXPECT_EQ(parseJson(gptc(of + "--json --set model.block_size=10").out)["tokens_per_step"], 8 * 2 * 10);
  EXPECT_EQ(gptc("estimate tests/e2e/hf/nothing " + rest).code, 3);
}

TEST(Command, TokensTakeSuffixes) {
  const std::string of = "estimate examples/gpt2-124m.toml --cluster examples/clusters/8xh100.toml --gpus 8 --json "
                         "--set parallel.zero_stage=1 ";
  const auto j = parseJson(gptc(of + "--tokens 1.5T").out);
  EXPECT_EQ(double(j["tokens"]), 1.5e12);
  EXPECT_EQ(gptc(of + "--tokens 1500e9").out, gptc(of + "--tokens 1500b").out);
  EXPECT_EQ(gptc(of).out, gptc(of + "--tokens 100B").out);
  for (const char *bad : {"100G", "0", "-1", "''", "nan"})
    EXPECT_EQ(gptc(of + "--tokens " + bad).code, 2) << bad;
}

TEST(Command, NumbersOfGpusAreReadOnceAndNeverGuessed) {
  const std::string of = "estimate examples/bloom-7b1.toml --cluster examples/clusters/8xh100.toml ";
  EXPECT_EQ(gptc(of + "--gpus ''").code, 2);
  EXPECT_TRUE(parseJson(gptc(of + "--json --gpus 8,8").out).is_object());
}

TEST(Command, ColumnsStayApart) {
  const Ran r = gptc("estimate examples/bloom-7b1.toml --cluster examples/clusters/8xh100.toml --gpus 8 --tokens 1e18 "
                     "--set parallel.zero_stage=1");
  ASSERT_EQ(r.code, 0) << r.err;
  std::istringstream lines(r.out);
  std::string heads, line;
  std::getline(lines, line);
  std::getline(lines, line);
  std::getline(lines, heads);
  std::getline(lines, line);
  EXPECT_EQ(heads.find("bound by"), line.find("compute")) << heads << "\n" << line;
  EXPECT_EQ(line[heads.find("USD") + 3 - 11], ' ') << heads << "\n" << line;
}

TEST(Command, MemoryOfTheHostIsSaidToo) {
  const std::string file = testing::TempDir() + fmt::format("gptc-host-{}.toml", ::getpid());
  std::string text = readSource("examples/clusters/8xh100.toml");
  const size_t at = text.find("host_memory = ");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find('\n', at) - at, "host_memory = \"40 GiB\"");
  std::ofstream(file) << text;
  const Ran r = gptc("estimate examples/bloom-7b1.toml --cluster '" + file +
                     "' --gpus 8 --set parallel.zero_stage=1 --set parallel.offload=optimizer");
  std::filesystem::remove(file);
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("OUT OF HOST MEMORY"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("8 GPUs keep 102.1 GiB in the memory of their node, which has 40.0 GiB"), std::string::npos)
      << r.out;
}

TEST(Command, BudgetsThatNothingMeetsAreNoForecast) {
  const std::string of = "estimate examples/gpt2-124m.toml --cluster examples/clusters/8xh100.toml --gpus ";
  const Ran r = gptc(of + "1 --set compile.remat=8MiB");
  EXPECT_EQ(r.code, 3) << r.out;
  EXPECT_NE(r.err.find("no plan fits into compile.remat = 8MiB"), std::string::npos) << r.err;
  EXPECT_EQ(gptc(of + "1 --search --set compile.remat=8MiB").code, 3);
  EXPECT_EQ(gptc(of + "1 --set compile.remat=60GiB").code, 0);
  const Ran some = gptc(of + "8 --search --json --set compile.remat=4GiB");
  ASSERT_EQ(some.code, 0) << some.err;
  const auto j = parseJson(some.out);
  EXPECT_LE(int64_t(j["bytes_peak"]) - int64_t(j["bytes"]["reserved"]), int64_t(4) << 30) << some.out;
}

TEST(Command, WhatIsLeftToAutoTakesSeconds) {
  const std::string seventy = " --set model.n_layer=80 --set model.n_embd=8192 --set model.n_head=64";
  for (const std::string &size : {std::string(), seventy})
    for (const char *cluster : {"8xa100-80gb", "8xh100"}) {
      const Ran r = gptc(fmt::format("estimate examples/bloom-7b1.toml --cluster examples/clusters/{}.toml --gpus "
                                     "1..64 --json --set parallel.tensor=auto --set parallel.offload=auto{}",
                                     cluster, size));
      ASSERT_EQ(r.code, 0) << r.err;
      EXPECT_LT(r.seconds, patience) << cluster << size;
      for (const auto &best : parseJson(r.out)) {
        EXPECT_TRUE(bool(best["oom"]) || best["memory_by"] == "plan") << best["gpus"] << best["strategy"];
        EXPECT_GT(best["alternatives"].size(), 1u);
      }
    }
}

TEST(Examples, OfClustersForecastBloom) {
  int files = 0;
  for (const auto &entry : std::filesystem::directory_iterator(sourceFile("examples/clusters"))) {
    const ClusterConfig c = loadCluster(entry.path());
    const Estimate e = forecast(c, c.node.devices, {"parallel.zero_stage=1", "accumulate=8"}),
                   two = forecast(c, 2 * c.node.devices, {"parallel.zero_stage=1", "accumulate=8"});
    EXPECT_TRUE(e.fits() && two.fits()) << c.file;
    EXPECT_GT(e.mfu, 0.1) << c.file;
    EXPECT_LT(e.mfu, 0.9) << c.file;
    EXPECT_LT(two.days(1e11), e.days(1e11)) << c.file;
    ++files;
  }
  EXPECT_GE(files, 5);
}

TEST(Hostile, FilesEndInCodedErrors) {
  const std::string good = readSource("examples/clusters/8xa100-80gb.toml");
  auto with = [&](const std::string &from, const std::string &to) {
    const size_t at = good.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    const size_t end = good.find('\n', at);
    return good.substr(0, at) + to + good.substr(end);
  };
  std::string deep = "x = ", dotted = "a";
  for (int i = 0; i < 5000; ++i) {
    deep += '[';
    dotted += ".a";
  }
  const std::string row = "[[observation]]\nmodel = \"" + sourceFile("examples/bloom-7b1.toml") + "\"\ngpus = 8\n";
  const std::string texts[] = {
      "",
      "\n\n# nothing\n",
      std::string("\0\xff\xfe", 3),
      deep,
      dotted + " = 1",
      with("memory = ", "memory = nan"),
      with("memory = ", "memory = inf"),
      with("memory = ", "memory = \"nan GiB\""),
      with("memory = ", "memory = \"-80 GiB\""),
      with("memory = ", "memory = \"1e999 GiB\""),
      with("memory = ", "memory = \"\""),
      with("memory = ", "memory = [\"80 GiB\"]"),
      with("memory = ", "memory = {}"),
      with("memory = ", "memory = 99999999999999999999999999"),
      with("peak_bf16 = ", "peak_bf16 = \"0 TFLOP/s\""),
      with("peak_bf16 = ", "peak_bf16 = \"312 TFLOP\""),
      with("devices = ", "devices = 0"),
      with("devices = ", "devices = -8"),
      with("devices = ", "devices = 9223372036854775807"),
      with("devices = ", "devices = \"8\""),
      with("[node]", "[node]\nlatency = \"-1 us\""),
      with("[node]", "[[node]]"),
      with("[device]", "[device]\nmatmul = 0"),
      with("[device]", "[device]\nmatmul = nan"),
      with("[device]", "[device]\nefficiency = [[1, 2], 3]"),
      with("[device]", "[device]\nefficiency = []"),
      with("[network]", "[network]\neffective_interval = [\"9 GB/s\", \"1 GB/s\"]"),
      with("[limits]", "[limits]\nglobal_batch_tokens = -1"),
      good + "\n[observation]\ngpus = 1\n",
      good + "\n[[observation]]\n",
      good + "\n" + row,
      good + "\n" + row + "days = -1\n",
      good + "\n" + row + "days = nan\n",
      good + "\n" + row + "days = 1\nstep = \"3 s\"\n",
      good + "\n" + row + "days = 1\nzero_stage = 7\n",
      good + "\n" + row + "days = 1\nblock_size = -5\n",
      good + "\n" + row + "days = 1\nmicro_batch = 9223372036854775807\naccumulate = 1048576\n",
      good + "\n" + row + "days = 1\nset = [1]\n",
      good + "\n" + row + "days = 1\nset = \"model.n_layer=3\"\n",
      good + "\n" + row + "days = 1\nset = [\"model.n_layer\"]\n",
      good + "\n" + row + "days = 1\nset = [\"\"]\n",
      good + "\n" + row + "days = 1\ntensor = 3\n",
  };
  const std::string file = testing::TempDir() + fmt::format("gptc-hostile-{}.toml", ::getpid());
  for (const std::string &text : texts) {
    std::ofstream(file, std::ios::binary) << text;
    const Ran r = gptc("calibrate '" + file + "'");
    EXPECT_EQ(r.code, 3) << text.substr(0, 200) << "\n"
                         << text.substr(text.size() - std::min<size_t>(150, text.size())) << "\n"
                         << r.out << r.err;
    EXPECT_EQ(r.err.rfind("error[GPTC0", 0), 0u) << r.err;
  }
  std::filesystem::remove(file);
}

TEST(Hostile, NumbersAtTheirLimitsForecastOrAreRefused) {
  const std::string base = "estimate examples/bloom-7b1.toml --cluster examples/clusters/8xa100-80gb.toml ";
  for (const char *rest :
       {"--gpus 1048576", "--gpus 1..1048576", "--gpus 7", "--gpus 1,3,5,8", "--tokens 1e18",
        "--gpus 64 --search --set train.micro_batch=1", "--gpus 8 --set model.n_layer=100000",
        "--gpus 8 --set model.block_size=1048576 --set train.micro_batch=1", "--pipeline 30 --gpus 30",
        "--pipeline 7 --gpus 8", "--pipeline 1024 --gpus 8", "--gpus 8 --set accumulate=1000000000000000000",
        "--gpus 8 --set accumulate=1048576", "--gpus 8 --set model.vocab_size=2000000000",
        "--gpus 8 --set train.micro_batch=1000000000"}) {
    const Ran r = gptc(base + rest);
    EXPECT_TRUE(r.code == 0 || r.code == 2 || r.code == 3) << rest << ": " << r.code << r.out << r.err;
    EXPECT_EQ(r.out.find("nan"), std::string::npos) << rest << r.out;
    EXPECT_EQ(r.out.find("inf"), std::string::npos) << rest << r.out;
    EXPECT_EQ(r.out.find(" -"), std::string::npos) << rest << r.out;
    EXPECT_EQ(r.err.find("bug"), std::string::npos) << rest << r.err;
    EXPECT_LT(r.seconds, 10 * patience) << rest;
  }
}

}  // namespace
}  // namespace gptc::estimate_test
