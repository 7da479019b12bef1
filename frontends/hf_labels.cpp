#include "frontends/hf_labels.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <filesystem>
#include <set>

namespace gptc {

namespace {

using json = nlohmann::json;

constexpr size_t mostBytes = size_t(16) << 20, mostLabels = 1 << 16;

class Labels {
public:
  explicit Labels(const std::string &dir)
      : file((std::filesystem::path(dir) / "config.json").string()),
        config(parseJsonOrDiscard<json>(readInput(file, "configuration", mostBytes))) {
    if (!config.is_object())
      damaged("it is no JSON object");
  }

  std::vector<std::string> read() const {
    requireClassifier();
    std::vector<std::string> names = {"LABEL_0", "LABEL_1"};
    if (const json *given = find("id2label"))
      names = inOrder(*given);
    if (const json *count = find("num_labels"); count && *count != names.size())
      damaged(fmt::format("num_labels is {}, id2label has {} names", count->dump(), names.size()));
    if (names.size() < 2)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("{}: one label, which transformers takes for regression", file),
                      "take a model with two labels or more");
    if (const json *inverse = find("label2id"))
      requireInverse(*inverse, names);
    return names;
  }

private:
  [[noreturn]] void damaged(const std::string &why) const {
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", file, why),
                    "copy it again from where the weights are from");
  }

  /// Null if it is not there or null.
  const json *find(const char *key) const {
    const auto it = config.find(key);
    return it == config.end() || it->is_null() ? nullptr : &*it;
  }

  void requireClassifier() const {
    const json *names = find("architectures");
    const bool isOne = names && names->is_array() && names->size() == 1 && (*names)[0].is_string();
    const std::string name = isOne ? (*names)[0].get<std::string>() : "";
    if (!llvm::StringRef(name).ends_with("ForSequenceClassification"))
      throw UserError(
          ErrorCode::Contradiction,
          fmt::format("{}: no classifier of texts, architectures is {}", file, names ? names->dump() : "missing"),
          "take a model for sequence classification; `gptrun embed` makes vectors of texts by this one");
    if (name != "BertForSequenceClassification")
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: the classifier {}", file, name),
                      "gptc knows BertForSequenceClassification");
    if (const json *problem = find("problem_type"); problem && *problem != "single_label_classification")
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: problem_type is {}", file, problem->dump()),
                      "gptc knows single_label_classification: of all labels one is right");
  }

  std::vector<std::string> inOrder(const json &given) const {
    if (!given.is_object() || given.empty() || given.size() > mostLabels)
      damaged(fmt::format("id2label is no object of 1 to {} names", mostLabels));
    std::vector<std::string> names(given.size());
    std::set<std::string> seen;
    for (const auto &[key, value] : given.items()) {
      size_t id;
      if (llvm::StringRef(key).getAsInteger(10, id) || std::to_string(id) != key || id >= names.size())
        damaged(fmt::format("id2label has {} names, and one for {}", names.size(), json(key).dump()));
      if (!value.is_string() || value.get_ref<const std::string &>().empty())
        damaged(fmt::format("id2label names {} {}", key, value.dump()));
      names[id] = value.get<std::string>();
      if (!seen.insert(names[id]).second)
        damaged(fmt::format("id2label has the name {} twice", value.dump()));
    }
    return names;
  }

  void requireInverse(const json &given, const std::vector<std::string> &names) const {
    bool fits = given.is_object() && given.size() == names.size();
    for (size_t id = 0; fits && id < names.size(); ++id) {
      const auto it = given.find(names[id]);
      fits = it != given.end() && *it == id;
    }
    if (!fits)
      damaged("label2id is not the reverse of id2label");
  }

  const std::string file;
  const json config;
};

}  // namespace

std::vector<std::string> readHfLabels(const std::string &dir) { return Labels(dir).read(); }

}  // namespace gptc
