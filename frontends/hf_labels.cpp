#include "frontends/hf_labels.h"

#include "frontends/hf/family.h"
#include "frontends/label_names.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/json_problem.h"

#include "llvm/ADT/StringRef.h"

#include <filesystem>
#include <map>
#include <optional>

namespace gptc {

namespace {

using json = nlohmann::json;

constexpr size_t mostBytes = size_t(16) << 20;
constexpr const char *copyAgain = "copy it again from where the weights are from";

/// The one class that a config.json names; "" if it names none or several.
std::string classIn(const json &config) {
  const json &names = part(config, "architectures");
  return names.is_array() && names.size() == 1 && names[0].is_string() ? names[0].get<std::string>() : "";
}

bool isClassifier(llvm::StringRef name) { return name.ends_with("ForSequenceClassification"); }

class Labels {
public:
  explicit Labels(const std::string &dir)
      : folder(dir), file((folder / "config.json").string()), config(contentOf(file)) {}

  HfLabels read() const {
    const bool chooses = family().choosesVector;
    HfLabels labels = {.names = names(), .pooling = chooses ? pooling() : ClassifierPooling::cls};
    if (const json *inverse = find("label2id"))
      requireInverse(*inverse, labels.names);
    labels.problem = problemOf(labels.names.size());
    labels.scores = trainedScores(labels.problem);
    if (labels.problem == ProblemType::regression)
      labels.scores = activation(labels.scores);
    return labels;
  }

  ClassifierPooling pooling() const {
    return word<ClassifierPooling>("classifier_pooling").value_or(ClassifierPooling::cls);
  }

private:
  [[noreturn]] static void damaged(const std::string &file, const std::string &why,
                                   const std::string &help = copyAgain) {
    throw UserError(ErrorCode::CheckpointDamaged, fmt::format("{}: {}", file, why), help);
  }
  [[noreturn]] void damaged(const std::string &why) const { damaged(file, why); }

  static json contentOf(const std::string &file) {
    return objectInFile(readInput(file, "configuration", mostBytes), file, copyAgain);
  }

  /// Null if it is not there or null.
  const json *find(const char *key) const {
    const auto it = config.find(key);
    return it == config.end() || it->is_null() ? nullptr : &*it;
  }

  /// The word that is the value of a key; none if it is not there. Throws UserError(NotBuiltYet) for an unknown one.
  template <typename Enum> std::optional<Enum> word(const char *key) const {
    const json *const given = find(key);
    if (!given)
      return std::nullopt;
    const std::optional<Enum> known = given->is_string() ? parseWord<Enum>(given->get<std::string>()) : std::nullopt;
    if (!known)
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: {} is {}", file, key, given->dump()),
                      fmt::format("gptc knows {}", fmt::join(wordsOf<Enum>, ", ")));
    return known;
  }

  /// Of the classifier.
  const hf::Family &family() const {
    const json *names = find("architectures");
    const std::string name = classIn(config);
    if (!isClassifier(name))
      throw UserError(
          ErrorCode::Contradiction,
          fmt::format("{}: no classifier of texts, architectures is {}", file, names ? names->dump() : "missing"),
          "take a model for sequence classification; `gptrun embed` makes vectors of texts by this one");
    std::vector<std::string> known;
    for (const hf::Family &f : hf::families()) {
      if (!f.classifier)
        continue;
      known.push_back(f.classifier);
      if (name != f.classifier)
        continue;
      if (const json *type = find("model_type"); type && *type != f.name)
        damaged(fmt::format("architectures is {}, model_type {}", names->dump(), type->dump()));
      return f;
    }
    throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: the classifier {}", file, name),
                    fmt::format("gptc knows {}", fmt::join(known, " and ")));
  }

  ProblemType problemOf(size_t labels) const {
    const std::optional<ProblemType> problem = word<ProblemType>("problem_type");
    if (!problem)
      return labels == 1 ? ProblemType::regression : ProblemType::single_label_classification;
    if (*problem == ProblemType::single_label_classification && labels == 1)
      throw UserError(
          ErrorCode::Contradiction,
          fmt::format("{}: problem_type is {}, of one label, which is then always right", file, nameOf(*problem)),
          fmt::format("set problem_type to {} or {}, which decides on the score", nameOf(ProblemType::regression),
                      nameOf(ProblemType::multi_label_classification)));
    return *problem;
  }

  std::vector<std::string> names() const {
    const json *count = find("num_labels");
    if (!count)
      count = find("_num_labels");  // its name in older files
    if (const json *given = find("id2label")) {
      std::vector<std::string> named = inOrder(*given);
      if (count && *count != named.size())
        damaged(fmt::format("num_labels is {}, id2label has {} names", count->dump(), named.size()));
      return named;
    }
    if (count && !(count->is_number_unsigned() && *count >= 1u && *count <= kMostLabels))
      damaged(fmt::format("num_labels is {}, and no number from 1 to {}", count->dump(), kMostLabels));
    return numberedLabels(count ? count->get<size_t>() : 2);
  }

  std::vector<std::string> inOrder(const json &given) const {
    if (!given.is_object() || given.empty() || given.size() > kMostLabels)
      damaged(fmt::format("id2label is no object of 1 to {} names", kMostLabels));
    std::vector<std::string> names(given.size());
    std::map<std::string, size_t> seen;
    for (const auto &[key, value] : given.items()) {
      size_t id;
      if (llvm::StringRef(key).getAsInteger(10, id) || std::to_string(id) != key || id >= names.size())
        damaged(fmt::format("id2label has {} names, and one for {}", names.size(), json(key).dump()));
      if (!value.is_string() || value.get_ref<const std::string &>().empty())
        damaged(fmt::format("id2label names {} {}", key, value.dump()));
      names[id] = value.get<std::string>();
      if (const auto [other, isNew] = seen.emplace(names[id], id); !isNew)
        damaged(file, fmt::format("id2label has the name {} twice, for {} and {}", value.dump(), other->second, id),
                "give each number a name of its own there: scores stand by their names");
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

  /// The function that a CrossEncoder has behind its logits, by where its versions say so; `usual` if none does.
  LabelScores activation(LabelScores usual) const {
    std::optional<LabelScores> found;
    std::string where;
    const auto take = [&](const std::string &in, const char *key, const json &said) {
      if (said.is_null())
        return;
      const LabelScores scores = scoresBy(fmt::format("{}: {}", in, key), said);
      if (found && *found != scores)
        throw UserError(ErrorCode::Contradiction, fmt::format("{}, but {}: {} is {}", where, in, key, said.dump()),
                        "remove one of them");
      found = scores;
      where = fmt::format("{}: {} is {}", in, key, said.dump());
    };
    take(file, "sentence_transformers.activation_fn", part(part(config, "sentence_transformers"), "activation_fn"));
    take(file, "sbert_ce_default_activation_function", part(config, "sbert_ce_default_activation_function"));
    const std::string beside = (folder / "config_sentence_transformers.json").string();
    if (std::error_code e; std::filesystem::exists(beside, e))
      take(beside, "activation_fn", part(contentOf(beside), "activation_fn"));
    return found.value_or(usual);
  }

  static LabelScores scoresBy(const std::string &key, const json &said) {
    if (said == "torch.nn.modules.activation.Sigmoid" || said == "torch.nn.Sigmoid")
      return LabelScores::sigmoid;
    if (said != "torch.nn.modules.linear.Identity" && said != "torch.nn.Identity")
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{} is {}", key, said.dump()),
                      "gptc knows torch.nn.modules.activation.Sigmoid and torch.nn.modules.linear.Identity");
    return LabelScores::identity;
  }

  const std::filesystem::path folder;
  const std::string file;
  const json config;
};

}  // namespace

std::vector<std::string> familiesWithClassifier() {
  std::vector<std::string> names;
  for (const hf::Family &f : hf::families())
    if (f.classifier)
      names.push_back(f.name);
  return names;
}

bool describesClassifier(const std::string &dir) {
  const FileText text = readTextFile((std::filesystem::path(dir) / "config.json").string(), kConfigLimit);
  return isClassifier(classIn(parseJsonOrDiscard<json>(text.text)));
}

LabelScores trainedScores(ProblemType problem) {
  switch (problem) {
  case ProblemType::single_label_classification:
    return LabelScores::softmax;
  case ProblemType::multi_label_classification:
    return LabelScores::sigmoid;
  case ProblemType::regression:
    return LabelScores::identity;
  }
  GPTC_UNREACHABLE("problem {}", int(problem));
}

HfLabels readHfLabels(const std::string &dir) { return Labels(dir).read(); }

ClassifierPooling readClassifierPooling(const std::string &dir) { return Labels(dir).pooling(); }

}  // namespace gptc
