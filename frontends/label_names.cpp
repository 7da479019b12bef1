#include "frontends/label_names.h"

#include "frontends/hf_labels.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include "llvm/Support/JSON.h"

#include <filesystem>
#include <set>

namespace gptc {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kMostBytes = size_t(16) << 20;
constexpr const char *kForm = "a list of names as [\"bad\", \"good\"]; `gptc data prepare --labels` writes one";

/// Whether config.json in the folder describes a classifier of texts.
bool describesClassifier(const std::string &folder) {
  const FileText text = readTextFile((fs::path(folder) / "config.json").string(), kConfigLimit);
  const json config = parseJsonOrDiscard<json>(text.text);
  const json &names = part(config, "architectures");
  return names.is_array() && names.size() == 1 && names[0].is_string() &&
         llvm::StringRef(names[0].get_ref<const std::string &>()).ends_with("ForSequenceClassification");
}

/// Of a head with other scores than probabilities of which one is of the right label.
Diagnostic notOneOf(const std::string &file) {
  return {ErrorCode::NotBuiltYet,
          fmt::format("{}: the head there scores each label by itself, and training is of one right label", file),
          {},
          "",
          {"take weights without a classifier, or one of single_label_classification"}};
}

}  // namespace

std::string problemOfLabels(const std::vector<std::string> &names) {
  if (names.size() < 2 || names.size() > kMostLabels)
    return fmt::format("{} label{}, and a classifier tells 2 to {}", names.size(), names.size() == 1 ? "" : "s",
                       kMostLabels);
  std::set<std::string> seen;
  for (const std::string &name : names) {
    if (name.empty())
      return "a label has an empty name";
    if (!llvm::json::isUTF8(name))
      return fmt::format("the label {} is not UTF-8", llvm::json::fixUTF8(name));
    if (!seen.insert(name).second)
      return fmt::format("the label {} is there twice", json(name).dump());
  }
  return "";
}

std::vector<std::string> readLabelNames(const std::string &path) {
  if (std::error_code e; fs::is_directory(path, e)) {
    const HfLabels there = readHfLabels(path);
    const std::string file = (fs::path(path) / "config.json").string();
    if (there.scores != LabelScores::softmax)
      throw UserError(notOneOf(file));
    if (const std::string why = problemOfLabels(there.names); !why.empty())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", file, why), kForm);
    return there.names;
  }
  const json list = parseJsonOrDiscard<json>(readInput(path, "names of labels", kMostBytes));
  std::vector<std::string> names;
  bool areTexts = list.is_array();
  for (size_t i = 0; areTexts && i < list.size(); ++i) {
    areTexts = list[i].is_string();
    if (areTexts)
      names.push_back(list[i].get<std::string>());
  }
  const std::string why = areTexts ? problemOfLabels(names) : "this is no list of texts";
  if (!why.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", path, why), kForm);
  return names;
}

std::string textOfLabels(const std::vector<std::string> &names) { return json(names).dump(2) + "\n"; }

std::vector<std::string> numberedLabels(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i)
    names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

std::vector<Diagnostic> compareLabels(const std::string &weights, const std::vector<std::string> &names,
                                      std::string &note) {
  std::error_code e;
  const std::string folder = fs::is_regular_file(weights, e) ? fs::path(weights).parent_path().string() : weights;
  if (!describesClassifier(folder))
    return {};
  const std::string file = (fs::path(folder) / "config.json").string();
  HfLabels there;
  try {
    there = readHfLabels(folder);
  } catch (const UserError &error) {
    return error.diagnostics;
  }
  auto differ = [&](ErrorCode code, std::string what, std::string help) {
    return std::vector<Diagnostic>{{code, std::move(what), {}, "", {std::move(help)}}};
  };
  if (there.scores != LabelScores::softmax)
    return {notOneOf(file)};
  if (there.names.size() != names.size())
    return differ(
        ErrorCode::Contradiction,
        fmt::format("{}: the head there tells {} labels, and the model {}", file, there.names.size(), names.size()),
        fmt::format("name the labels {}, or take weights without a classifier", quotedSome(there.names)));
  if (there.names != names && there.names != numberedLabels(names.size()))
    note = fmt::format("the labels of {} are {}, and are called {} from here on: the numbers stay", file,
                       quotedSome(there.names), quotedSome(names));
  return {};
}

}  // namespace gptc
