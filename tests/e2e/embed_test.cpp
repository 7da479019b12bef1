// gptrun embed: vectors of texts, against what transformers computes (hf/vectors.json, by hf/make.py).
#include "tests/support/harness.h"
#include "tests/support/headless.h"
#include "tests/support/http_client.h"
#include "tests/support/json_lines.h"
#include "tests/support/served.h"
#include "tests/support/whole_run.h"
#include "tests/support/word_models.h"

#include "support/json.h"

#include "llvm/ADT/StringExtras.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

using namespace e2e;
using gptc::test::ask;
using gptc::test::HttpReply;
using gptc::test::objectLines;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const std::string models = GPTC_SOURCE_DIR "/tests/e2e/hf/";

/// Whether texts stand between tokens of the tokenizer's own.
bool isBert(const std::string &name) { return name == "bert" || name == "modernbert"; }

struct EmbedTest : ::testing::Test {
  /// A copy of a model with a tokenizer.
  std::string folder(const std::string &name, bool headless = false) {
    const std::string to = w.path(headless ? name + "-headless" : name);
    copyWordModel(models + name, to, isBert(name));
    if (headless)
      writeFile(to + "/model.safetensors", withoutHead(readFile(to + "/model.safetensors")));
    return to;
  }

  /// The texts of these vectors, one a line.
  static std::vector<std::string> textsOf(const std::string &name) {
    std::vector<std::string> texts;
    for (const json &one : golden.at(name))
      texts.push_back(isBert(name) ? textBetween(one.at("ids")) : textOfTokens(one.at("ids")));
    return texts;
  }
  std::string fileOf(const std::vector<std::string> &texts) {
    const std::string file = w.path(fmt::format("texts-{}.txt", files++));
    writeFile(file, llvm::join(texts, "\n") + "\n");
    return file;
  }

  /// The lines of a run that must succeed.
  std::vector<json> embed(std::vector<std::string> args) {
    args.insert(args.begin(), "embed");
    const Result r = w.gptrun(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return objectLines(r.output);
  }
  /// The vectors of such a run as text, bit for bit.
  std::vector<std::string> vectorLines(std::vector<std::string> args) {
    std::vector<std::string> all;
    for (const json &line : embed(std::move(args)))
      all.push_back(line.at("vector").dump());
    return all;
  }
  /// The output of a run that must fail.
  std::string refusal(std::vector<std::string> args) {
    args.insert(args.begin(), "embed");
    const Result r = w.gptrun(args);
    EXPECT_NE(r.code, 0) << r.output;
    return r.output;
  }

  static inline const json golden = json::parse(readFile(models + "vectors.json"));
  Workplace w;
  int files = 0;
};

double distance(const json &got, const json &want) {
  double difference = 0, norm = 0;
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += std::pow(got[i].get<double>() - want[i].get<double>(), 2);
    norm += std::pow(want[i].get<double>(), 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(EmbedTest, VectorsAreThoseOfTransformers) {
  for (const char *name : {"bert", "llama", "qwen3", "gemma2", "bloom", "modernbert"})
    for (bool headless : {false, true}) {
      if (headless && !isBert(name))
        continue;
      const std::string dir = folder(name, headless), file = fileOf(textsOf(name));
      for (const char *pooling : {"mean", "cls", "last"}) {
        const std::vector<json> got = embed({dir, "--precision", "fp32", "--pooling", pooling, "--texts", file});
        ASSERT_EQ(got.size(), golden.at(name).size());
        for (size_t i = 0; i < got.size(); ++i) {
          const json &want = golden.at(name)[i];
          EXPECT_EQ(got[i].at("text"), i);
          EXPECT_EQ(got[i].at("tokens"), want.at("ids").size());
          EXPECT_LE(distance(got[i].at("vector"), want.at(pooling)), 1e-5) << name << " " << pooling << " " << i;
        }
      }
      const std::vector<json> unit = embed({dir, "--normalize", "--text", textsOf(name)[3]});
      double squares = 0;
      for (const double x : unit.at(0).at("vector"))
        squares += x * x;
      EXPECT_NEAR(squares, 1, 1e-6);
    }
}

TEST_F(EmbedTest, ATextHasTheSameBitsAloneAndAmongOthers) {
  gptc::test::OneIn some(3);  // by themselves: a process each
  for (const char *name : {"bert", "qwen3", "gemma2", "bloom", "modernbert"})
    for (const char *precision : {"fp32", "bf16"}) {
      const std::string dir = folder(name);
      std::vector<std::string> texts = textsOf(name);
      auto vectors = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {dir, "--precision", precision});
        return vectorLines(std::move(more));
      };
      const std::vector<std::string> together = vectors({"--texts", fileOf(texts)});
      ASSERT_EQ(together.size(), texts.size());
      for (size_t i = 0; i < texts.size(); ++i)
        if (!some.skips()) {
          EXPECT_EQ(vectors({"--text", texts[i]}), std::vector{together[i]}) << name << " " << precision << " " << i;
        }
      // Beside others, at other places.
      std::vector<std::string> many;
      uint32_t random = 1;
      auto next = [&](uint32_t below) { return ((random = random * 1664525 + 1013904223) >> 16) % below; };
      for (int i = 0; i < 400; ++i) {
        std::string text = "t4";
        for (uint32_t n = 1 + next(16); n-- > 0;)
          text += fmt::format(" t{}", 4 + next(27));
        many.push_back(text);
      }
      many.insert(many.end(), texts.begin(), texts.end());
      std::vector<std::string> first = vectors({"--texts", fileOf(many)});
      std::reverse(many.begin(), many.end());
      std::vector<std::string> last = vectors({"--threads", "1", "--texts", fileOf(many)});
      std::reverse(last.begin(), last.end());
      EXPECT_TRUE(first == last) << name << " " << precision;
      first.erase(first.begin(), first.end() - std::ptrdiff_t(texts.size()));
      EXPECT_EQ(first, together) << name << " " << precision;
    }
}

// Texts of many tiles of queries and panels of keys, in calls of up to 512 tokens.
TEST_F(EmbedTest, LongTextsToo) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("line {} of a text that goes on, ", i * i);
  w.useText(text);
  gptc::test::OneIn some(3);
  for (const char *precision : {"fp32", "bf16"})
    for (const char *preset : {"encoder", "gpt2", "bloom", "windows"}) {
      if (some.skips())
        continue;
      std::vector<std::string> settings = {fmt::format("precision.compute={}", precision), "model.block_size=512",
                                           "train.global_batch_tokens=512", "train.micro_batch=1", "train.steps=1"};
      if (preset == std::string("windows"))  // to both sides, over several tiles
        settings.insert(settings.end(), {"model.preset=encoder", "model.window=60", "model.layers_without_window=[0]",
                                         "model.position=rope", "model.window_rope_theta=500"});
      else
        settings.push_back(fmt::format("model.preset={}", preset));
      const std::string plan = w.compile(fmt::format("{}-{}", preset, precision), settings);
      const std::string out = plan + "-out";
      w.train(plan, fs::path(out).filename().string());
      std::vector<std::string> texts;
      for (size_t n : {500, 1, 33, 97, 130, 12, 255, 64, 300, 7})
        texts.push_back(text.substr(n, n));
      auto vectors = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {plan, "--out-dir", out});
        return vectorLines(std::move(more));
      };
      const std::vector<std::string> together = vectors({"--texts", fileOf(texts)});
      ASSERT_EQ(together.size(), texts.size());
      for (const size_t i : {0, 2, 4, 6, 9})
        EXPECT_EQ(vectors({"--text", texts[i]}), std::vector{together[i]}) << preset << " " << precision << " " << i;
      EXPECT_EQ(vectors({"--batch", "3", "--threads", "1", "--texts", fileOf(texts)}), together) << preset;
    }
}

TEST_F(EmbedTest, AFolderSaysHow) {
  const std::string dir = folder("bert", true), text = textsOf("bert")[3];
  auto module = [](const char *name, const char *path) {
    return json{
        {"idx", 0}, {"name", "0"}, {"path", path}, {"type", std::string("sentence_transformers.models.") + name}};
  };
  fs::create_directories(dir + "/1_Pooling");
  auto say = [&](const json &modules, const json &pooling) {
    writeFile(dir + "/modules.json", modules.dump());
    writeFile(dir + "/1_Pooling/config.json", pooling.dump());
  };
  const json modules = {module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")};
  const json ofFirst = {
      {"word_embedding_dimension", 12}, {"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", false}};
  say(modules, ofFirst);
  const std::string unit = embed({dir, "--text", text})[0].at("vector").dump();
  EXPECT_EQ(unit, embed({dir, "--pooling", "cls", "--normalize", "--text", text})[0].at("vector").dump());
  EXPECT_LE(distance(embed({dir, "--keep-length", "--precision", "fp32", "--text", text})[0].at("vector"),
                     golden.at("bert")[3].at("cls")),
            1e-5);
  say({modules[0], modules[1]}, {{"pooling_mode", "lasttoken"}});
  EXPECT_LE(
      distance(embed({dir, "--precision", "fp32", "--text", text})[0].at("vector"), golden.at("bert")[3].at("last")),
      1e-5);

  // Longer texts are cut, and end as others do.
  writeFile(dir + "/sentence_bert_config.json", R"({"max_seq_length": 4, "do_lower_case": false})");
  const Result cut = w.gptrun({"embed", dir, "--text", "t7 t8 t9 t10"});
  EXPECT_EQ(cut.code, 0);
  EXPECT_NE(cut.output.find("note: 1 text cut to 4 tokens"), std::string::npos) << cut.output;
  EXPECT_EQ(objectLines(cut.output).at(0).at("vector"), embed({dir, "--text", "t7 t8"}).at(0).at("vector"));

  writeFile(dir + "/sentence_bert_config.json", "{}");
  writeFile(dir + "/config_sentence_transformers.json",
            R"({"prompts": {"query": "t9 "}, "default_prompt_name": "query"})");
  EXPECT_EQ(embed({dir, "--text", "t7"})[0].at("tokens"), 4);
  for (const char *broken : {"[]", R"({"default_prompt_name": 3})", R"({"default_prompt_name": "document"})"}) {
    writeFile(dir + "/config_sentence_transformers.json", broken);
    EXPECT_NE(refusal({dir, "--text", text}).find("config_sentence_transformers.json"), std::string::npos) << broken;
  }
  fs::remove(dir + "/config_sentence_transformers.json");

  // What is not known is refused.
  say({modules[0], modules[1], module("Dense", "2_Dense")}, ofFirst);
  EXPECT_NE(refusal({dir, "--text", text}).find("a module Dense"), std::string::npos);
  say(modules, {{"pooling_mode_max_tokens", true}});
  EXPECT_NE(refusal({dir, "--text", text}).find("pooling by \"max_tokens\""), std::string::npos);
  EXPECT_EQ(embed({dir, "--pooling", "mean", "--text", text}).size(), 1u);
  say(modules, {{"pooling_mode", true}});
  EXPECT_NE(refusal({dir, "--text", text}).find("pooling by \"true\""), std::string::npos);
  say(modules, {{"pooling_mode_cls_token", true}, {"pooling_mode_mean_tokens", true}});
  EXPECT_NE(refusal({dir, "--text", text}).find("pooling by "), std::string::npos);
  say({modules[0], module("Pooling", "../elsewhere")}, ofFirst);
  EXPECT_NE(refusal({dir, "--text", text}).find("is not beside it"), std::string::npos);
  for (const char *broken :
       {"{}", "[3]", "[{\"type\": 3}]", "no json", "[{\"type\": \"x.Pooling\", \"path\": \"..\"}]"}) {
    writeFile(dir + "/modules.json", broken);
    EXPECT_NE(refusal({dir, "--text", text}).find("modules.json"), std::string::npos) << broken;
  }
  fs::remove(dir + "/modules.json");
  for (const char *broken : {"[]", "{\"max_seq_length\": -1}", "{\"max_seq_length\": 18446744073709551615}",
                             "{\"do_lower_case\": true}", "{\"max_seq_length\": \"long\"}"}) {
    writeFile(dir + "/sentence_bert_config.json", broken);
    EXPECT_NE(refusal({dir, "--text", text}).find("sentence_bert_config.json"), std::string::npos) << broken;
  }
}

TEST_F(EmbedTest, AnArrayHasAllVectors) {
  const std::string dir = folder("llama"), file = fileOf(textsOf("llama")), out = w.path("vectors.npy");
  const std::vector<json> lines = embed({dir, "--texts", file});
  embed({dir, "--texts", file, "--out", out});
  const std::string array = readFile(out);
  ASSERT_EQ(array.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = size_t(uint8_t(array[8])) + (size_t(uint8_t(array[9])) << 8);
  fs::create_symlink("elsewhere", w.path("link.npy.tmp"));
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_EQ(array.substr(10, header).find("{'descr': '<f4', 'fortran_order': False, 'shape': (10, 12), }"), 0u);
  EXPECT_EQ(array[9 + header], '\n');
  ASSERT_EQ(array.size(), 10 + header + 10 * 12 * 4);
  for (size_t i = 0; i < 120; ++i) {
    float x;
    std::memcpy(&x, &array[10 + header + 4 * i], 4);
    EXPECT_EQ(x, lines[i / 12].at("vector")[i % 12].get<float>());
  }
  embed({dir, "--texts", file, "--out", w.path("link.npy")});
  EXPECT_FALSE(fs::exists(w.path("elsewhere")));
  EXPECT_EQ(readFile(w.path("link.npy")), array);
  // An array is there whole or not at all.
  const std::string bad = fileOf({"t4", "", "t5"});
  EXPECT_NE(refusal({dir, "--texts", bad, "--out", w.path("none.npy")}).find("line 2 has no tokens"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(w.path("none.npy")));
  EXPECT_NE(refusal({dir, "--texts", file, "--out", w.path("")}).find("GPTC"), std::string::npos);
  EXPECT_NE(refusal({dir, "--texts", file, "--out", w.path("no/such/folder.npy")}).find("no/such"), std::string::npos);
}

TEST_F(EmbedTest, PlansToo) {
  w.useText("the dog is by the door, the fox is in the box, no cub is here");  // its vocabulary lacks letters
  const std::string decoder = w.compile("decoder", {"train.steps=2"});
  const std::string encoder = w.compile("encoder", {"train.steps=2", "model.preset=encoder"});
  const std::string text = "the dog";
  for (const std::string &plan : {decoder, encoder}) {
    w.train(plan, "out-" + fs::path(plan).filename().string());
    const std::string out = w.path("out-" + fs::path(plan).filename().string());
    const std::vector<json> last = embed({plan, "--out-dir", out, "--text", text}),
                            first = embed(
                                {plan, "--out-dir", out, "--checkpoint", out + "/checkpoints/latest", "--text", text});
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].at("tokens"), 7);
    EXPECT_EQ(last[0], first.at(0));
  }
  EXPECT_NE(refusal({decoder, "--context", "8", "--text", text}).find("--context"), std::string::npos);
}

TEST_F(EmbedTest, RefusedInput) {
  const std::string dir = folder("llama");
  EXPECT_NE(refusal({dir}).find("which texts?"), std::string::npos);
  EXPECT_NE(refusal({dir, "--texts", w.path("none.txt")}).find("cannot read"), std::string::npos);
  EXPECT_NE(refusal({dir, "--text", "t4", "--texts", "-"}).find("excludes"), std::string::npos);
  EXPECT_NE(refusal({dir, "--text", "t4", "--pooling", "max"}).find("max"), std::string::npos);
  // Vectors of the lines before a bad one are written.
  const Result r = w.gptrun({"embed", dir, "--texts", fileOf({"t4", "t5", " ", "t6"})});
  EXPECT_NE(r.code, 0);
  EXPECT_EQ(objectLines(r.output).size(), 2u);
  EXPECT_NE(r.output.find("line 3 has no tokens"), std::string::npos) << r.output;
  // A vector that is no number.
  std::string weights = readFile(dir + "/model.safetensors");
  std::fill(weights.end() - 4 * 12, weights.end(), '\xff');
  writeFile(dir + "/model.safetensors", weights);
  EXPECT_NE(refusal({dir, "--text", "t30 t4"}).find("is not finite"), std::string::npos);
  // An encoder without its head gives no tokens.
  const Result sample = w.gptrun({"sample", folder("bert", true), "--prompt", "t4"});
  EXPECT_NE(sample.code, 0);
  EXPECT_NE(sample.output.find("models that only encode have none, and `gptrun embed` takes them"), std::string::npos)
      << sample.output;
}

/// A server of vectors.
struct EmbeddingsServerTest : EmbedTest {
  void SetUp() override {
    if (!Served::isBuilt())
      GTEST_SKIP() << "gptrun serve needs cpp-httplib";
  }
  void serve(const std::string &dir, const std::vector<std::string> &more = {}) {
    std::vector<std::string> args = {dir, "--embeddings"};
    args.insert(args.end(), more.begin(), more.end());
    server.emplace(args, w.path("serve.log"));
    ASSERT_NE(server->port(), 0);
    port = server->port();
  }
  HttpReply post(const json &object) const { return ask(port, "/v1/embeddings", object.dump()); }
  /// The vectors of an answer, in the order of the texts.
  std::vector<json> vectorsOf(const json &object) const {
    const HttpReply r = post(object);
    EXPECT_EQ(r.status, 200) << r.body;
    std::vector<json> all;
    if (r.status != 200)
      return all;
    const json whole = r.json();
    for (const json &one : whole.at("data")) {
      EXPECT_EQ(one.at("index"), all.size());
      EXPECT_EQ(one.at("object"), "embedding");
      all.push_back(one.at("embedding"));
    }
    return all;
  }
  std::optional<Served> server;
  int port = 0;
};

TEST_F(EmbeddingsServerTest, GivesWhatEmbedGives) {
  const std::string dir = folder("bert", true);
  const std::vector<std::string> texts = textsOf("bert");
  std::vector<json> want;
  for (const json &line : embed({dir, "--normalize", "--texts", fileOf(texts)}))
    want.push_back(line.at("vector"));
  serve(dir, {"--normalize"});
  EXPECT_EQ(vectorsOf({{"input", texts}, {"model", "bert-headless"}, {"user", "x"}, {"dimensions", 12}}), want);
  std::vector<std::vector<int64_t>> ids;
  int64_t tokens = 0;
  for (const json &one : golden.at("bert")) {
    ids.push_back(one.at("ids"));
    tokens += int64_t(ids.back().size());
  }
  EXPECT_EQ(vectorsOf({{"input", ids}}), want);
  EXPECT_EQ(vectorsOf({{"input", ids[3]}}), std::vector{want[3]});
  const json usage = post({{"input", texts}}).json().at("usage");
  EXPECT_EQ(usage, (json{{"prompt_tokens", tokens}, {"total_tokens", tokens}}));

  // As bytes.
  const std::string text = vectorsOf({{"input", texts[3]}, {"encoding_format", "base64"}}).at(0);
  EXPECT_EQ(text.size(), 64u);
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    for (size_t j = 0; j < 4; ++j)
      group = group << 6 | uint32_t(alphabet.find(text[i + j]));
    for (int shift : {16, 8, 0})
      bytes.push_back(char(group >> shift & 0xff));
  }
  for (size_t x = 0; x < 12; ++x) {
    float v;
    std::memcpy(&v, &bytes[4 * x], 4);
    EXPECT_EQ(v, want[3][x].get<float>());
  }

  // Many at once, each as alone.
  std::vector<std::thread> clients;
  std::atomic<int> wrong = 0;
  for (size_t c = 0; c < 16; ++c)
    clients.emplace_back([&, c] {
      for (size_t n = 0; n < 8; ++n) {
        const size_t a = (c + n) % texts.size(), b = (3 * c + n) % texts.size();
        wrong += vectorsOf({{"input", {texts[a], texts[b]}}}) != std::vector{want[a], want[b]};
      }
    });
  for (std::thread &client : clients)
    client.join();
  EXPECT_EQ(wrong, 0);

  const json model = ask(port, "/v1/models").json().at("data")[0];
  EXPECT_EQ(model.at("dimensions"), 12);
  EXPECT_EQ(model.at("max_model_len"), 20);
  const std::string metrics = ask(port, "/metrics").body;
  EXPECT_NE(metrics.find("gptc_embedding_seconds_count 133\n"), std::string::npos) << metrics;
  EXPECT_EQ(metrics.find("gptc_slots"), std::string::npos);
  EXPECT_EQ(server->stop().code, 0);
}

TEST_F(EmbeddingsServerTest, TheFolderSaysHowLongTextsAre) {
  const std::string dir = folder("bert", true);
  writeFile(dir + "/sentence_bert_config.json", R"({"max_seq_length": 6})");
  serve(dir);
  EXPECT_EQ(post({{"input", "t4 t5 t6 t7"}}).status, 200);
  const HttpReply r = post({{"input", "t4 t5 t6 t7 t8"}});
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.json().at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(ask(port, "/v1/models").json().at("data")[0].at("max_model_len"), 6);
}

TEST_F(EmbeddingsServerTest, EndsWithItsRequests) {
  serve(folder("llama"), {"--drain", "600"});
  std::vector<std::thread> clients;
  std::atomic<int> answered = 0, refused = 0, other = 0;
  for (int c = 0; c < 8; ++c)
    clients.emplace_back([&] {
      for (;;) {
        const int status = post({{"input", std::vector<std::string>(200, "t4 t5 t6")}}).status;
        (status == 200 ? answered : status == 503 || status == 0 ? refused : other)++;
        if (status != 200)
          return;
      }
    });
  while (answered < 20 && refused + other == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(server->process().pid(), SIGTERM);
  for (std::thread &client : clients)
    client.join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(server->process().wait().code, 0);
}

TEST_F(EmbeddingsServerTest, RequestsAreLogged) {
  const std::string dir = folder("llama"), log = w.path("requests.jsonl"), long_(400, 'x');
  serve(dir, {"--log", log});
  EXPECT_EQ(post({{"input", "t4"}}).status, 200);
  EXPECT_EQ(post({{"input", 4}}).status, 400);
  EXPECT_EQ(ask(port, "/" + long_).status, 404);
  EXPECT_EQ(server->stop().code, 0);
  std::vector<json> lines = objectLines(readFile(log));
  ASSERT_EQ(lines.size(), 3u);
  // A line is written once its answer was: two connections' lines may change places.
  std::sort(lines.begin(), lines.end(), [](const json &a, const json &b) { return a.at("status") < b.at("status"); });
  const std::vector<int> statuses = {200, 400, 404};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lines[i].at("status"), statuses[i]);
    EXPECT_EQ(lines[i].at("client"), "127.0.0.1");
    EXPECT_EQ(lines[i].at("path"), i < 2 ? "/v1/embeddings" : "/" + long_.substr(0, 255));
    EXPECT_GE(lines[i].at("seconds").get<double>(), 0);
    EXPECT_EQ(lines[i].at("time").get<std::string>().size(), 24u);
  }
  EXPECT_EQ(readFile(log).find("t4"), std::string::npos);

  // A disk that is full costs the log and no request.
  serve(dir, {"--log", "/dev/full"});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(post({{"input", "t4"}}).status, 200);
  const Result full = server->stop();
  EXPECT_EQ(full.code, 0);
  const size_t warning = full.output.find("warning: requests are not logged");
  EXPECT_NE(warning, std::string::npos) << full.output;
  EXPECT_EQ(full.output.find("warning: requests are not logged", warning + 1), std::string::npos);
}

TEST_F(EmbeddingsServerTest, BadRequestsAreExplained) {
  serve(folder("llama"), {"--queue", "40"});
  auto refused = [&](const json &object, const char *parameter, const char *message, int status = 400) {
    const HttpReply r = post(object);
    EXPECT_EQ(r.status, status) << r.body;
    const json error = r.json().at("error");
    EXPECT_EQ(error.at("param"), *parameter ? json(parameter) : json()) << r.body;
    EXPECT_NE(error.at("message").get<std::string>().find(message), std::string::npos) << r.body;
  };
  refused(json::object(), "input", "must be a text");
  refused({{"input", nullptr}}, "input", "must be a text");
  refused({{"input", 7}}, "input", "must be a text");
  refused({{"input", ""}}, "input", "without tokens");
  refused({{"input", json::array()}}, "input", "0 texts");
  refused({{"input", {"t4", json::array()}}}, "input", "must be a text");
  refused({{"input", {"t4", 5}}}, "input", "must be a text");
  refused({{"input", {4, 31}}}, "input", "31 is no token");
  refused({{"input", {4, -1}}}, "input", "-1 is no token");
  refused({{"input", {4, 1.5}}}, "input", "1.5 is no token");
  refused({{"input", {4, 18446744073709551615u}}}, "input", "is no token");
  refused({{"input", std::vector<int>(21, 4)}}, "input", "has 21 tokens; the longest has 20");
  refused({{"input", std::vector<std::string>(2049, "t4")}}, "input", "2049 texts");
  EXPECT_EQ(post({{"input", std::vector<std::string>(41, "t4")}}).status, 200) << "nobody waits beside it";
  refused({{"input", "t4"}, {"encoding_format", "int8"}}, "encoding_format", "float or base64");
  refused({{"input", "t4"}, {"encoding_format", 3}}, "encoding_format", "must be a text");
  refused({{"input", "t4"}, {"dimensions", 6}}, "dimensions", "must be 12");
  refused({{"input", "t4"}, {"prompt", "t4"}}, "prompt", "unknown");
  refused({{"input", "t4"}, {"model", "other"}}, "model", "there is no model", 404);
  for (const char *path : {"/v1/completions", "/v1/chat/completions", "/"})
    EXPECT_EQ(ask(port, path, R"({"prompt": "t4"})").status, 404) << path;
  EXPECT_EQ(ask(port, "/v1/embeddings", "{\"input\": \"\xff\"}").status, 400);

  // Whatever comes, an answer goes, and a good request gets its vector.
  const std::vector<json> want = vectorsOf({{"input", "t4 t5"}});
  std::mt19937 random(1);
  const std::vector<json> values = {"t4",
                                    "",
                                    "t9 t9 t9",
                                    4,
                                    -4,
                                    1e300,
                                    true,
                                    nullptr,
                                    json::array(),
                                    json::object(),
                                    "\u0000",
                                    {4, 5},
                                    {"t4", "t5"},
                                    {{4}, {5}},
                                    {{"t4"}},
                                    {nullptr},
                                    "float",
                                    "base64",
                                    12,
                                    1u << 31};
  const std::vector<std::string> members = {"input", "encoding_format", "dimensions", "user", "model", "n"};
  for (int i = 0; i < 300; ++i) {
    json object = json::object();
    for (unsigned n = random() % 4; n-- > 0;)
      object[members[random() % (random() % 2 ? 1 : members.size())]] = values[random() % values.size()];
    const int status = post(object).status;
    EXPECT_TRUE(status == 200 || status == 400 || status == 404) << object.dump() << " " << status;
  }
  EXPECT_EQ(vectorsOf({{"input", "t4 t5"}}), want);
}

}  // namespace
