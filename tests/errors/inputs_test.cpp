// What stands in the place of an input and never ends: a pipe without a writer, a device. And what a program does
// without standard error.
#include "tests/support/content.h"
#include "tests/support/shell.h"
#include "tests/unit/runtime/temp_dir.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

using namespace gptc;

namespace {

struct Ran {
  int code;
  std::string err;
};

/// A script in a folder with the smallest thing that trains: model.toml, data/, text.txt, tiny.plan.
class Inputs : public testing::Test {
protected:
  static TempDir *dir;
  static void SetUpTestSuite() {
    dir = new TempDir;
    ASSERT_EQ(run("tiny_plan").code, 0);
  }
  static void TearDownTestSuite() {
    delete dir;
    dir = nullptr;
  }
  static Ran run(const std::string &script) {
    std::ofstream(*dir / "script") << "set -e\n. \"$LIB/tiny.sh\"\n" << script << "\n";
    const std::string command =
        fmt::format("cd '{0}' && env -i PATH='{1}':/usr/bin:/bin HOME='{0}' LANG=C.UTF-8 LIB='{2}/tests/errors' "
                    "ASAN_OPTIONS=\"$ASAN_OPTIONS\" bash script >script.out 2>script.err </dev/null",
                    dir->path, GPTC_BIN_DIR, GPTC_SOURCE_DIR);
    const int code = test::exitCodeOf(command);
    return {code, test::contentOf(*dir / "script.err")};
  }
};
TempDir *Inputs::dir = nullptr;

// A program that waits is ended after a minute, with 124; none has to be that fast.
TEST_F(Inputs, NoneWaitsForAPipe) {
  ASSERT_EQ(
      run("mkfifo pipe.toml pipe.gir pipe.bin pipe.json pipe.txt pipe.jsonl pipe.safetensors pipe.gguf pipe.RData\n"
          "mkdir -p weights index resumed/checkpoints/step-00000001; mkfifo weights/config.json\n"
          "mkfifo index/model.safetensors.index.json resumed/checkpoints/step-00000001/manifest.json\n"
          "for file in manifest.json planned.gir joint.gir schedules.json; do\n"
          "  cp -r tiny.plan $file.plan; rm $file.plan/$file; mkfifo $file.plan/$file; done\n"
          "printf 'extends = \"pipe.toml\"\\n' > extends.toml\n"
          "cp -r data there; rm there/train.bin; mkfifo there/train.bin")
          .code,
      0);
  struct Case {
    const char *command;
    int code;
  };
  for (const Case &c : {
           Case{"gptc compile pipe.toml", 3},
           {"gptc compile extends.toml", 3},
           {"gptc compile pipe.gir", 3},
           {"gptc-opt pipe.gir", 3},
           {"gptc-reduce pipe.gir -o out.gir", 3},
           {"gptc compile model.toml --set data.tokenizer=pipe.json", 3},
           {"gptc compile model.toml --set model.init_from=hf:weights", 3},
           {"gptc compile model.toml --set model.init_from=gguf:pipe.gguf", 3},
           {"gptc calibrate pipe.toml", 3},
           {"mkdir -p c; cd c; . \"$LIB/cluster.sh\"; gptc calibrate cluster.toml --log ../pipe.jsonl", 3},
           {"gptc data prepare text.txt --tokenizer gpt2:pipe.txt --out made", 3},
           {"gptc data r-texts pipe.RData --out made", 3},
           {"gptc estimate model.toml --cluster pipe.toml --gpus 8", 3},
           {"gptc data prepare pipe.txt --tokenizer char --out made", 3},
           {"gptc data prepare text.txt --tokenizer pipe.json --out made", 3},
           {"gptc cache merge pipe.jsonl --out merged.jsonl", 3},
           {"gptc cache import pipe.jsonl", 3},
           {"gptrun manifest.json.plan", 5},
           {"gptrun planned.gir.plan", 5},
           {"gptrun joint.gir.plan", 5},
           {"gptrun schedules.json.plan", 5},
           {"gptc explain planned.gir.plan", 5},
           {"gptc compile model.toml -o t.plan --set data.train=there/train.bin >/dev/null; gptrun t.plan", 3},
           {"gptc compile model.toml -o t.plan --set model.init_from=hf:pipe.safetensors >/dev/null; gptrun t.plan", 3},
           {"gptc compile model.toml -o t.plan --set model.init_from=hf:index >/dev/null; gptrun t.plan", 5},
           {"gptrun tiny.plan --out-dir resumed", 5},
           {"gptc export resumed -o made", 5},
           {"gptc quantize pipe.gguf -o made.gguf --type q8_0", 3},
           {"mkdir -p tok; cp data/tokenizer.json tok; mkfifo tok/tokenizer_config.json; gptc compile model.toml "
            "--set data.tokenizer=tok/tokenizer.json",
            3},
           {"GPTC_TOKEN_FILE=pipe.txt GPTC_RANK=0 GPTC_WORLD=2 GPTC_RENDEZVOUS=127.0.0.1:9 gptrun tiny.plan", 3},
       }) {
    // The last command is the one in question.
    const std::string all = c.command;
    const size_t last = all.rfind("; ") == std::string::npos ? 0 : all.rfind("; ") + 2;
    const Ran r = run(all.substr(0, last) + "timeout 60 env " + all.substr(last));
    EXPECT_EQ(r.code, c.code) << c.command << "\n" << r.err;
    EXPECT_NE(r.err.find("error[GPTC"), std::string::npos) << c.command << "\n" << r.err;
    EXPECT_EQ(r.err.find("GPTC7001"), std::string::npos) << c.command << "\n" << r.err;
  }
}

TEST_F(Inputs, NoneReadsADevice) {
  for (const char *command :
       {"gptc compile /dev/zero", "gptc-opt /dev/zero", "gptc data prepare /dev/zero --tokenizer char --out made",
        "gptc compile model.toml --set data.tokenizer=/dev/zero", "gptc cache merge /dev/zero --out merged.jsonl"}) {
#ifdef __SANITIZE_ADDRESS__  // which reserves terabytes of addresses
    const char *limit = "true";
#else
    const char *limit = "ulimit -v 4000000";
#endif
    const Ran r = run(fmt::format("{}; timeout 60 {}", limit, command));
    EXPECT_EQ(r.code, 3) << command << "\n" << r.err;
    EXPECT_NE(r.err.find("it is a device, and only files are read"), std::string::npos) << command << "\n" << r.err;
  }
  const Ran pipe = run("mkfifo some; timeout 60 gptc compile some");
  EXPECT_NE(pipe.err.find("it is a pipe, and only files are read"), std::string::npos) << pipe.err;
}

// A warning that nobody can read is no reason to end.
TEST_F(Inputs, WarningsWithoutStandardError) {
  const char *warned = "gptc compile model.toml -o w.plan --set optimizer.warmup_steps=50 >/dev/null";
  const Ran r = run(warned);
  EXPECT_EQ(r.code, 0);
  ASSERT_NE(r.err.find("warning: the learning rate never reaches"), std::string::npos) << r.err;
  for (const char *to : {"2>&-", "2>/dev/full"})
    EXPECT_EQ(run(fmt::format("{} {}", warned, to)).code, 0) << to;
  EXPECT_EQ(run("gptc compile missing.toml 2>&-").code, 3) << "errors keep their code";
  EXPECT_EQ(run("gptc-opt tiny.plan/joint.gir --passes=cse --time-passes --emit=none 2>/dev/full").code, 0);
}

// Nor is one replaced by a file.
TEST_F(Inputs, OutputsLeavePipesAlone) {
  ASSERT_EQ(run("mkdir logs; mkfifo logs/forecast.jsonl out.toml; ln -s nowhere link.toml").code, 0);
  EXPECT_EQ(run("timeout 60 gptrun tiny.plan --steps 1 --out-dir logs").code, 0);
  EXPECT_NE(run("gptc new char --force -o out.toml").code, 0);
  EXPECT_NE(run("gptc new char -o link.toml").code, 0);
  EXPECT_EQ(run("test -p logs/forecast.jsonl; test -p out.toml; test -L link.toml").code, 0);
}

TEST_F(Inputs, NestedTooDeeply) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  ASSERT_EQ(run("cp -r tiny.plan deep.plan; gptrun tiny.plan --steps 1 --out-dir deep").code, 0);
  for (const char *file : {"deep.plan/manifest.json", "deep/checkpoints/step-00000001/manifest.json"})
    std::ofstream(*dir / file) << "{\"schema\": 2, \"x\": " << deep << "}";
  const std::string header = "{\"__metadata__\": " + deep + "}";
  const uint64_t length = header.size();
  ASSERT_EQ(run("mkdir theirs").code, 0);
  std::ofstream(*dir / "theirs/model.safetensors", std::ios::binary)
          .write(reinterpret_cast<const char *>(&length), sizeof length)
      << header;
  for (const char *command :
       {"gptrun deep.plan", "gptrun eval tiny.plan --data data/train.bin --out-dir deep",
        "gptrun tiny.plan --out-dir deep", "gptrun eval tiny.plan --data data/train.bin --checkpoint theirs"}) {
    const Ran r = run(command);
    EXPECT_EQ(r.code, 5) << command << "\n" << r.err;
    EXPECT_NE(r.err.find("error[GPTC"), std::string::npos) << command << "\n" << r.err;
  }
}

// Weights to look at mean what the plan's model says, as weights to begin with do.
TEST_F(Inputs, AConfigBesideWeightsToLookAt) {
  ASSERT_EQ(run("gptrun tiny.plan --steps 1 --out-dir mine\nmkdir others\n"
                "cp mine/checkpoints/step-00000001/model.safetensors others/\ngptrun eval tiny.plan --data "
                "data/train.bin --checkpoint others")
                .code,
            0);
  std::ofstream(*dir / "others/config.json") << R"({"model_type": "bloom"})";
  for (const char *command :
       {"eval tiny.plan --data data/train.bin --checkpoint others", "sample tiny.plan --checkpoint others",
        "eval tiny.plan --data data/train.bin --checkpoint others/model.safetensors"}) {
    const Ran r = run(fmt::format("gptrun {}", command));
    EXPECT_EQ(r.code, 3) << command << "\n" << r.err;
    EXPECT_NE(r.err.find("others/config.json: model_type"), std::string::npos) << command << "\n" << r.err;
  }
}

TEST_F(Inputs, AMisspeltVariableIsTold) {
  EXPECT_EQ(run("GPTC_CAHCE=x gptc --version").err,
            "warning: the environment has GPTC_CAHCE, which no program reads; did you mean GPTC_CACHE?\n");
  EXPECT_EQ(run("GPTC_CAHCE=x RANK=1 gptc --version").err, "") << "one of several ranks says it";
  EXPECT_EQ(run("GPTC_CACHE=$PWD/cache GPTC_TEST_AT=1 gptc --version").err, "");
  // Once, not again by each rank.
  const std::string all = run("GPTC_CAHCE=x gptrun tiny.plan --steps 1 --out-dir told --ranks-per-node 2").err;
  const size_t first = all.find("GPTC_CAHCE");
  EXPECT_NE(first, std::string::npos) << all;
  EXPECT_EQ(all.find("GPTC_CAHCE", first + 1), std::string::npos) << all;
}

}  // namespace
