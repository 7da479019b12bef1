// The commands of docs/huggingface.md run as they stand there. With the first a folder of another program, trained
// further on a text, becomes a folder for transformers and a file for llama.cpp: both open it; where one is missing,
// the test says so. All commands of docs/inference.md run too, but lm_eval's, whose test is tools/bench/lm-eval.
#include "frontends/tokenizer/tokenizer.h"
#include "runtime/checkpoint/safetensors.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/oracles.h"
#include "tests/support/served.h"
#include "tests/support/word_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>

using namespace e2e;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr int64_t kVocab = 400, kWidth = 96, kHeads = 3, kKvHeads = 1, kFfn = 64, kLayers = 2;

/// The lines of the document's first `blocks` blocks of code.
std::vector<std::string> linesOfCode(const std::string &document, int blocks) {
  std::ifstream in(document);
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(in, line) && blocks > 0;)
    if (line.rfind("```", 0) == 0) {
      blocks -= inside;
      inside = !inside;
    } else if (inside && !line.empty()) {
      lines.push_back(line);
    }
  return lines;
}

std::string someText() {
  std::string text;
  for (int i = 0; i < 1500; ++i)
    text += fmt::format("No. {}: It is a truth universally acknowledged, “naïve” as it's, {} times\n", i, i * i % 97);
  return text;
}

/// Random weights of the Llama family under transformers' names, in bf16 as those of SmolLM2.
void writeWeights(const std::string &file) {
  using namespace gptc;
  std::vector<TensorInfo> infos;
  auto add = [&](const std::string &name, std::vector<int64_t> shape) {
    infos.push_back({"model." + name + ".weight", DType::bf16, std::move(shape)});
  };
  add("embed_tokens", {kVocab, kWidth});
  for (int64_t l = 0; l < kLayers; ++l) {
    const std::string layer = fmt::format("layers.{}.", l);
    const int64_t kv = kWidth / kHeads * kKvHeads;
    add(layer + "input_layernorm", {kWidth});
    add(layer + "mlp.down_proj", {kWidth, kFfn});
    add(layer + "mlp.gate_proj", {kFfn, kWidth});
    add(layer + "mlp.up_proj", {kFfn, kWidth});
    add(layer + "post_attention_layernorm", {kWidth});
    add(layer + "self_attn.k_proj", {kv, kWidth});
    add(layer + "self_attn.o_proj", {kWidth, kWidth});
    add(layer + "self_attn.q_proj", {kWidth, kWidth});
    add(layer + "self_attn.v_proj", {kv, kWidth});
  }
  add("norm", {kWidth});
  SafetensorsWriter writer(file, infos, {{"format", "pt"}});
  std::mt19937 random(7);
  std::normal_distribution<float> draw(0, 0.04f);
  for (const TensorInfo &t : infos) {
    std::vector<uint16_t> bits(size_t(t.elements()));
    for (uint16_t &b : bits) {
      const float value = t.shape.size() == 1 ? 1 : draw(random);
      b = uint16_t(std::bit_cast<uint32_t>(value) >> 16);
    }
    writer.write(bits.data(), bits.size() * sizeof(uint16_t));
  }
  writer.finish();
}

/// config.json of SmolLM2-135M as it was published, but for the sizes.
json smolConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 0},
          {"eos_token_id", 0},
          {"hidden_act", "silu"},
          {"hidden_size", kWidth},
          {"initializer_range", 0.041666666666666664},
          {"intermediate_size", kFfn},
          {"is_llama_config", true},
          {"max_position_embeddings", 8192},
          {"model_type", "llama"},
          {"num_attention_heads", kHeads},
          {"num_hidden_layers", kLayers},
          {"num_key_value_heads", kKvHeads},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-05},
          {"rope_interleaved", false},
          {"rope_scaling", nullptr},
          {"rope_theta", 100000},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"transformers_version", "4.40.1"},
          {"use_cache", true},
          {"vocab_size", kVocab}};
}

struct HfWalk : ::testing::Test {
  Workplace w;

  Result shell(const std::string &command) {
    const char *path = std::getenv("PATH");
    return Process({"/bin/sh", "-c", fmt::format("cd '{}' && {}", w.path(""), command)},
                   {{"GPTC_CACHE", cacheDir()},
                    {"PATH", fmt::format("{}:{}", GPTC_BIN_DIR, path ? path : "")},
                    {"LD_PRELOAD", cacheShim()}},  // `gptc estimate` measures memory
                   w.path("said.txt"))
        .wait();
  }

  /// A tokenizer.json as SmolLM2's: byte-level BPE that takes digits one by one, and the control tokens in front.
  void writeTokenizer(const std::string &to) {
    ASSERT_EQ(w.gptc({"data", "prepare", w.path("mine.txt"), "--tokenizer", "bpe:397", "--out", w.path("made")}).code,
              0);
    json t = gptc::parseJson(readFile(w.path("made/tokenizer.json")));
    t["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Digits"}, {"individual_digits", true}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}}}};
    // Other tokens than the control tokens move behind them.
    const std::vector<std::string> control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"};
    json vocab = json::object(), added = json::array();
    for (size_t i = 0; i < control.size(); ++i) {
      vocab[control[i]] = i;
      added.push_back({{"id", i},
                       {"content", control[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    for (const auto &[token, id] : t["model"]["vocab"].items())
      if (!vocab.contains(token))
        vocab[token] = id.get<size_t>() + control.size();
    t["model"]["vocab"] = vocab;
    t["added_tokens"] = added;
    writeFile(to, t.dump());
    fs::remove_all(w.path("made"));
  }

  /// The loss over the whole data of validation; "": of the run's last checkpoint.
  double evaluated(const std::string &weights) {
    const Result r = shell("gptrun eval smol.plan --steps 0" + (weights.empty() ? "" : " --checkpoint " + weights));
    EXPECT_EQ(r.code, 0) << r.output;
    double loss = 0;
    EXPECT_EQ(std::sscanf(r.output.c_str(), "val loss %lf", &loss), 1) << r.output;
    return loss;
  }

  /// transformers, and llama.cpp, find the loss that gptc finds with the same file, and make the same tokens of a text.
  void openedByOthers() {
    std::string ids;
    const std::string text = "It is truly “naïve”: 1024 times\n";
    for (int32_t id : gptc::Tokenizer::load(w.path("SmolLM2-135M/tokenizer.json")).encode(text))
      ids += fmt::format("{} ", id);
    writeFile(w.path("prompt.txt"), text);
    auto compare = [&](const std::string &script, const std::string &what, const std::string &of, double tolerance,
                       const std::string &path) {
      const double loss = evaluated(of);  // of four decimals
      const gptc::test::Compared r = gptc::test::compareBy(
          "tests/e2e/" + script,
          fmt::format("{} '{}' '{}' 512 {} {} '{}' '{}'", what, w.path(of), w.path("data/val.bin"), loss,
                      tolerance + 5e-5 / loss, w.path("prompt.txt"), ids),
          path);
      EXPECT_TRUE(r.code == 0 || r.isMissing()) << r.said;
      std::printf("%s", r.said.c_str());
    };
    for (const std::string &path : gptc::test::transformersPaths())
      compare("transformers_compare.py", "", "smol-mine", 1e-5, path);
    // llama.cpp rounds what it multiplies q8_0 with to q8_0, too.
    compare("gguf_compare.py", "loss", "smol-mine.gguf", 2e-3, "");
  }

  void prepareInference(const std::vector<std::string> &lines);

  void writeModel(const std::string &dir) {
    fs::create_directories(dir);
    writeFile(dir + "/config.json", smolConfig().dump(2));
    writeFile(
        dir + "/generation_config.json",
        json{{"_from_model_config", true}, {"bos_token_id", 0}, {"eos_token_id", 0}, {"transformers_version", "4.40.1"}}
            .dump(2));
    writeFile(dir + "/tokenizer_config.json", json{{"add_prefix_space", false},
                                                   {"bos_token", "<|endoftext|>"},
                                                   {"eos_token", "<|endoftext|>"},
                                                   {"unk_token", "<|endoftext|>"},
                                                   {"model_max_length", 8192},
                                                   {"tokenizer_class", "GPT2Tokenizer"},
                                                   {"vocab_size", kVocab}}
                                                  .dump(2));
    writeWeights(dir + "/model.safetensors");
    writeTokenizer(dir + "/tokenizer.json");
  }
};

TEST_F(HfWalk, TheDocumentsCommandsRunAsTheyStand) {
  const std::vector<std::string> commands = linesOfCode(GPTC_SOURCE_DIR "/docs/huggingface.md", 1);
  ASSERT_GE(commands.size(), 5u);
  writeFile(w.path("mine.txt"), someText());
  writeModel(w.path("SmolLM2-135M"));
  for (const std::string &command : commands) {
    const Result r = shell(command);
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
  }
  // What it leaves can be taken in again, and is the model that was trained.
  EXPECT_EQ(gptc::parseJson(readFile(w.path("smol-mine/config.json")))["model_type"], "llama");
  EXPECT_TRUE(fs::exists(w.path("smol-mine/model.safetensors")));
  const double trained = evaluated("");
  for (const auto &[from, bound] : {std::pair{"smol-mine", 0.01}, {"smol-mine.gguf", 0.02}}) {
    const Result r = shell(fmt::format("gptc import {} -o again.toml --force", from));
    ASSERT_EQ(r.code, 0) << r.output;
    const std::string text = readFile(w.path("again.toml"));
    for (const char *key : {"\nn_kv_head = 1", "\nblock_size = 512"})
      EXPECT_NE(text.find(key), std::string::npos) << key << " in\n" << text;
    EXPECT_NEAR(evaluated(from), trained, bound) << from;
  }
  openedByOthers();
}

/// The files that the other commands of docs/huggingface.md name: an encoder, labelled texts, and a model in GGUF.
TEST_F(HfWalk, TheDocumentsOtherCommandsRunAsTheyStand) {
  const std::string document = GPTC_SOURCE_DIR "/docs/huggingface.md";
  std::vector<std::string> commands = linesOfCode(document, 100);
  commands.erase(commands.begin(), commands.begin() + long(linesOfCode(document, 1).size()));
  ASSERT_GE(commands.size(), 5u);
  fs::copy(GPTC_SOURCE_DIR "/tests/e2e/hf/modernbert", w.path("bert"));
  fs::remove(w.path("bert/golden.json"));
  json config = gptc::parseJson(readFile(w.path("bert/config.json")));
  config["max_position_embeddings"] = 512;
  writeFile(w.path("bert/config.json"), config.dump());
  writeFile(w.path("bert/tokenizer.json"), tokenizerOf31Words(true));
  std::string texts;
  for (int i = 0; i < 60; ++i)
    texts +=
        json{{"text", fmt::format("t{} t{}", 10 + i * 5 % 12, i % 2 ? 7 : 9)}, {"label", i % 2 ? "bright" : "dull"}}
            .dump() +
        "\n";
  writeFile(w.path("my.jsonl"), texts);
  fs::copy(GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/llama.gguf", w.path("model.gguf"));
  std::string output;
  for (const std::string &command : commands) {
    // A line of another program would be passed over by no accident.
    ASSERT_TRUE(command.rfind("gptc ", 0) == 0 || command.rfind("gptrun ", 0) == 0) << command;
    const Result r = shell(command);
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
    output += r.output;
    if (command.rfind("gptc import ", 0) == 0) {  // whose thousand steps are for a user's texts
      std::string text = readFile(w.path("model.toml"));
      const size_t at = text.find("\nsteps = 1000\n");
      ASSERT_NE(at, std::string::npos) << text;
      writeFile(w.path("model.toml"), text.replace(at, std::strlen("\nsteps = 1000"), "\nsteps = 3"));
    }
  }
  EXPECT_NE(output.find("val loss "), std::string::npos) << output;
  EXPECT_NE(output.find("accuracy"), std::string::npos) << output;
  const gptc::GgufFile small(w.path("small.gguf")), model(w.path("model.gguf"));
  for (const gptc::GgufTensor &t : model.tensors()) {
    ASSERT_NE(small.find(t.name), nullptr) << t.name;
    if (t.name.rfind("blk.0.", 0) == 0) {
      EXPECT_EQ(small.find(t.name)->format, t.format) << t.name;
    }
  }
  EXPECT_NE(small.find("blk.1.ffn_down.weight")->format, model.find("blk.1.ffn_down.weight")->format);
}

/// The models and files that docs/inference.md names.
void HfWalk::prepareInference(const std::vector<std::string> &lines) {
  writeFile(w.path("mine.txt"), someText());
  writeModel(w.path("SmolLM2-135M"));
  json tokens = gptc::parseJson(readFile(w.path("SmolLM2-135M/tokenizer_config.json")));
  tokens["chat_template"] = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
  writeFile(w.path("SmolLM2-135M/tokenizer_config.json"), tokens.dump());
  std::string compile = "gptc compile smol.toml -o smol.plan";
  for (const char *setting :
       {"model.block_size=2304", "train.micro_batch=1", "train.steps=1", "train.global_batch_tokens=2304",
        "data.train=smol-data/train.bin", "data.val=smol-data/val.bin", "data.tokenizer=smol-data/tokenizer.json"})
    compile += std::string(" --set ") + setting;
  for (const char *command : {"gptc quantize SmolLM2-135M -o SmolLM2-135M-Instruct.gguf --type q8_0",
                              "gptc data prepare mine.txt --tokenizer SmolLM2-135M/tokenizer.json --out smol-data",
                              "gptc import SmolLM2-135M -o smol.toml", compile.c_str(), "gptrun smol.plan"}) {
    const Result r = shell(command);
    ASSERT_EQ(r.code, 0) << command << "\n" << r.output;
  }
  writeFile(w.path("book.txt"), "It is a truth\nuniversally acknowledged\n");
  for (const std::string &line : lines)
    if (line.rfind("{\"prompt\"", 0) == 0)
      writeFile(w.path("prompts.jsonl"), line + "\n");
  fs::copy(GPTC_SOURCE_DIR "/tests/e2e/labels/score", w.path("RERANKER"));
  writeFile(w.path("pairs.jsonl"), R"({"text": "t4 t5", "text_pair": "t6"})"
                                   "\n"
                                   R"({"text": "t4", "id": 7})"
                                   "\n");
  for (const auto &[name, from, around] : {std::tuple{"all-MiniLM-L6-v2", "hf/bert", true},
                                           {"FOLDER", "labels/two", true},
                                           {"bert-base-uncased", "hf/bert", true},
                                           {"pythia-410m", "hf/gpt_neox", false}}) {
    fs::copy(fmt::format("{}/tests/e2e/{}", GPTC_SOURCE_DIR, from), w.path(name));
    std::string tokenizer = tokenizerOf31Words(around);
    tokenizer.replace(tokenizer.find("\"t28\""), std::strlen("\"t28\""), "\"[MASK]\"");
    writeFile(w.path(name) + "/tokenizer.json", tokenizer);
  }
}

TEST_F(HfWalk, TheCommandsOfInferenceRunAsTheyStand) {
  const std::vector<std::string> lines = linesOfCode(GPTC_SOURCE_DIR "/docs/inference.md", 100);
  prepareInference(lines);
  ASSERT_FALSE(HasFatalFailure());
  std::optional<Served> server;
  int ran = 0;
  for (const std::string &line : lines) {
    std::string command = line.substr(0, line.find("    # "));
    if (command.rfind("gptrun serve ", 0) == 0) {
      if (!Served::isBuilt())
        continue;
      std::istringstream in(command.substr(std::strlen("gptrun serve ")));
      std::vector<std::string> args(std::istream_iterator<std::string>(in), {});
      args[0] = w.path(args[0]);
      if (const auto port = std::find(args.begin(), args.end(), "--port"); port != args.end())
        args.erase(port, port + 2);  // any that is free
      server.emplace(args, w.path("serve.log"));
      ASSERT_NE(server->port(), 0) << command;
    } else if (command.rfind("curl ", 0) == 0 || command.rfind("gptc bench serve ", 0) == 0) {
      if (!server || (command[0] == 'c' && shell("curl --version").code != 0))
        continue;
      const std::string address = fmt::format("localhost:{}", server->port());
      if (const size_t at = command.find("localhost:8080"); at != std::string::npos)
        command.replace(at, std::strlen("localhost:8080"), address);
      else
        command += fmt::format(" --requests 4 --max-tokens 4 --prompt-tokens 8 --vocab-size 300 http://{}", address);
      const Result r = shell(command);
      EXPECT_EQ(r.code, 0) << command << "\n" << r.output;
      EXPECT_NE(r.output.find(line[0] == 'c' ? "\"chat.completion\"" : "time to first token"), std::string::npos)
          << command << "\n"
          << r.output;
    } else if (command.rfind("gptrun ", 0) == 0 || command.rfind("gptc ", 0) == 0) {
      const Result r = shell(command);
      EXPECT_EQ(r.code, 0) << command << "\n" << r.output;
    } else {
      continue;
    }
    ++ran;
  }
  EXPECT_GE(ran, 9);
  for (const char *made : {"results.jsonl", "vectors.jsonl", "vectors.npy"})
    EXPECT_GT(fs::file_size(w.path(made)), 0u) << made;
}

}  // namespace
