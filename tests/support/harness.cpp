#include "tests/support/harness.h"

#include "runtime/checkpoint/tensor_files.h"
#include "support/json.h"
#include "tests/support/content.h"
#include "tests/support/json_lines.h"
#include "tests/support/whole_run.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace e2e {
namespace fs = std::filesystem;

namespace {

const char *kModel = R"(
schema = 1
name = "tiny"
out_dir = "out"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 16
vocab_size = 64
dropout = 0.1
[train]
steps = 12
global_batch_tokens = 64
micro_batch = 4
[optimizer]
lr = 1e-2
warmup_steps = 3
[data]
train = "train.bin"
val = "val.bin"
[eval]
every = 6
steps = 0
[checkpoint]
every = 3
keep = 2
[log]
every = 1
mfu_peak = 1e11
)";

/// A mostly deterministic walk through the vocabulary, in which each token depends on the one before, with a few jumps.
std::string makeTokens(int n, uint32_t seed) {
  std::vector<uint16_t> t(n);
  uint32_t state = seed;
  for (int i = 1; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    t[i] = (state >> 24) < 25 ? (state >> 8) % 64 : (t[i - 1] * 5 + 3) % 64;
  }
  return {reinterpret_cast<const char *>(t.data()), t.size() * 2};
}

}  // namespace

const std::string &cacheDir() {
  static const std::string &cache = gptc::test::sharedFolder("kernels");
  return cache;
}

std::string cacheShim() { return GPTC_BIN_DIR "/../lib/libcache_shim.so"; }

std::string readFile(const std::string &path) { return gptc::test::contentOf(path); }

void writeFile(const std::string &path, const std::string &content) {
  std::ofstream(path, std::ios::binary) << content;
}

Process::Process(std::vector<std::string> args, const std::map<std::string, std::string> &env,
                 const std::string &outputFile)
    : outputFile(outputFile) {
  std::vector<char *> argv;
  for (std::string &a : args)
    argv.push_back(a.data());
  argv.push_back(nullptr);
  child = ::fork();
  if (child == 0) {
    for (int number : {SIGHUP, SIGPIPE})  // which nohup and some CI runners ignore
      ::signal(number, SIG_DFL);
    int fd = ::open(outputFile.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    for (auto &[key, value] : env)
      ::setenv(key.c_str(), value.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

Process::~Process() {
  if (child > 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

Result Process::wait() {
  int status = 0;
  struct rusage usage{};
  ::wait4(child, &status, 0, &usage);
  child = 0;
  Result r;
  r.peakMemory = usage.ru_maxrss * 1024;
  if (WIFEXITED(status))
    r.code = WEXITSTATUS(status);
  else
    r.signal = WTERMSIG(status);
  r.output = readFile(outputFile);
  return r;
}

bool Process::hasEnded() const {
  siginfo_t info{};
  return ::waitid(P_PID, id_t(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

Workplace::Workplace() {
  std::string name = ::testing::TempDir() + "gptc-e2e-XXXXXX";
  dir = ::mkdtemp(name.data()) ? name : "";
  writeFile(path("train.bin"), makeTokens(2000, 1));
  writeFile(path("val.bin"), makeTokens(301, 2));
  writeFile(path("tiny.toml"), kModel);
}

Workplace::~Workplace() {
  std::error_code e;
  if (!::testing::Test::HasFailure())
    fs::remove_all(dir, e);
}

void Workplace::prepare(const std::string &text, const std::string &tokenizer, const std::vector<std::string> &more) {
  writeFile(path("text.txt"), text);
  std::vector<std::string> args = {"data",    "prepare", path("text.txt"), "--tokenizer",
                                   tokenizer, "--out",   path("data")};
  args.insert(args.end(), more.begin(), more.end());
  const Result prepared = gptc(args);
  EXPECT_EQ(prepared.code, 0) << prepared.output;
}

std::vector<std::string> Workplace::prepared() const {
  return {"data.train=" + path("data/train.bin"), "data.val=" + path("data/val.bin"),
          "data.tokenizer=" + path("data/tokenizer.json")};
}

void Workplace::useText(const std::string &text, const std::vector<std::string> &more) {
  prepare(text, "char", more);
  std::string file = readFile(modelFile());
  file = std::regex_replace(file, std::regex("vocab_size = 64\n"), "");
  file = std::regex_replace(file, std::regex("train = \"train.bin\""),
                            "train = \"data/train.bin\"\ntokenizer = \"data/tokenizer.json\"");
  file = std::regex_replace(file, std::regex("val = \"val.bin\""), "val = \"data/val.bin\"");
  writeFile(modelFile(), file);
}

void Workplace::useCats() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "the cat sat on the mats.\nit was a fat cat. ";
  useText(text);
}

Process Workplace::start(const std::string &program, std::vector<std::string> args,
                         const std::map<std::string, std::string> &env) {
  args.insert(args.begin(), std::string(GPTC_BIN_DIR) + "/" + program);
  std::map<std::string, std::string> all = env;
  all.try_emplace("GPTC_CACHE", cacheDir());
  return Process(std::move(args), all, path("output-" + std::to_string(runs++)));
}

Result Workplace::run(const std::string &program, std::vector<std::string> args,
                      const std::map<std::string, std::string> &env) {
  return start(program, std::move(args), env).wait();
}

std::string Workplace::compile(const std::string &name, const std::vector<std::string> &settings) {
  std::vector<std::string> args = {"compile", modelFile(), "-o", path(name)};
  for (const std::string &s : settings) {
    args.push_back("--set");
    args.push_back(s);
  }
  Result r = gptc(args);
  EXPECT_EQ(r.code, 0) << r.output;
  return path(name);
}

std::vector<std::string> Workplace::checkpoints(const std::string &outDir) const {
  std::vector<std::string> r;
  std::error_code e;
  for (const auto &entry : fs::directory_iterator(outDir + "/checkpoints", e))
    if (const std::string name = entry.path().filename(); name != "best" && name != "latest")
      r.push_back(name);
  std::sort(r.begin(), r.end());
  return r;
}

std::string Workplace::train(const std::string &plan, const std::string &out, const std::vector<std::string> &more,
                             const std::map<std::string, std::string> &env) {
  std::vector<std::string> args = {plan, "--out-dir", path(out)};
  args.insert(args.end(), more.begin(), more.end());
  const Result r = gptrun(args, env);
  EXPECT_EQ(r.code, 0) << r.output;
  const std::string state = finalState(path(out));
  EXPECT_FALSE(state.empty()) << r.output;
  return state;
}

std::string Workplace::finalState(const std::string &outDir) const {
  std::vector<std::string> all = checkpoints(outDir);
  if (all.empty())
    return "";
  std::map<std::string, std::vector<std::string>> files;  // by name prefix
  for (const auto &entry : fs::recursive_directory_iterator(outDir + "/checkpoints/" + all.back()))
    if (const std::string name = entry.path().filename(); entry.path().extension() == ".safetensors")
      files[name.substr(0, name.find_first_of("-."))].push_back(entry.path());
  std::string state = all.back();
  for (const auto &[kind, paths] : files) {
    const gptc::TensorFiles tensors(paths);
    for (const gptc::TensorInfo *t : tensors.all()) {
      state += t->name;
      const size_t at = state.size();
      state.resize(at + size_t(t->bytes()));
      tensors.read(*t, state.data() + at);
    }
  }
  return state;
}

std::string numberedCats() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "the " + std::to_string(i) + " cats sat on the mats. ";
  return text;
}

std::string catsWithNumbers() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "the cat sat on the mats.\nit was a fat cat number " + std::to_string(i) + ". ";
  return text;
}

std::vector<std::string> logLines(const std::string &outDir) {
  std::ifstream in(outDir + "/log.jsonl");
  std::vector<std::string> r;
  for (std::string line; std::getline(in, line);) {
    if (in.eof())  // a running program is still writing it
      break;
    nlohmann::json j = gptc::parseJson(line);
    std::string text;
    for (const char *key : {"step", "loss", "lr", "grad_norm", "val_loss"})
      if (j.contains(key))
        text += std::string(key) + "=" + j[key].dump() + " ";
    r.push_back(text);
  }
  return r;
}

double lastValLoss(const std::string &outDir) {
  double loss = NAN;
  for (const nlohmann::json &line : gptc::test::jsonLines(readFile(outDir + "/log.jsonl")))
    loss = line.value("val_loss", loss);
  return loss;
}

}  // namespace e2e
