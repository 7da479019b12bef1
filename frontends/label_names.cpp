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
constexpr const char *kProblem = "problem_type", *kNames = "names";  // members of the other form

/// Of a head whose logits go through a function that the loss would have to know.
Diagnostic notTrainable(const std::string &file) {
  return {ErrorCode::NotBuiltYet,
          fmt::format("{}: the scores of the head there are not its logits, and training is of these", file),
          {},
          "",
          {"take weights without a classifier, or one without an activation function"}};
}

std::vector<std::string> textsIn(const json &list, const std::string &path) {
  std::vector<std::string> names;
  for (size_t i = 0; list.is_array() && i < list.size() && list[i].is_string(); ++i)
    names.push_back(list[i].get<std::string>());
  if (!list.is_array() || names.size() != list.size())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: this is no list of texts", path), kForm);
  return names;
}

LabelNames inFile(const std::string &path) {
  const json content = parseJsonOrDiscard<json>(readInput(path, "names of labels", kMostBytes));
  if (!content.is_object())
    return {.names = textsIn(content, path)};
  const json &said = part(content, kProblem);
  const auto problem = said.is_string() ? parseWord<ProblemType>(said.get<std::string>()) : std::nullopt;
  if (!problem || content.size() != 2)
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: this is no list of texts", path),
                    fmt::format("or an object of \"{}\", which is {}, and \"{}\"", kProblem,
                                fmt::join(wordsOf<ProblemType>, ", "), kNames));
  return {.names = textsIn(part(content, kNames), path), .problem = *problem};
}

}  // namespace

std::string problemOfLabels(const LabelNames &labels) {
  const std::vector<std::string> &names = labels.names;
  const bool number = labels.problem == ProblemType::regression;
  const size_t least = labels.problem == ProblemType::single_label_classification ? 2 : 1;
  if (number && names.size() != 1)
    return fmt::format("{} labels, and a regression has one", names.size());
  if (names.size() < least || names.size() > kMostLabels)
    return fmt::format("{} label{}, and a classifier tells {} to {}", names.size(), names.size() == 1 ? "" : "s", least,
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

LabelNames readLabelNames(const std::string &path) {
  LabelNames labels;
  std::string file = path;
  if (std::error_code e; fs::is_directory(path, e)) {
    const HfLabels there = readHfLabels(path);
    file = (fs::path(path) / "config.json").string();
    if (there.scores != trainedScores(there.problem))
      throw UserError(notTrainable(file));
    labels = {.names = there.names, .problem = there.problem};
  } else {
    labels = inFile(path);
  }
  if (const std::string why = problemOfLabels(labels); !why.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", file, why), kForm);
  return labels;
}

std::string textOfLabels(const LabelNames &labels) {
  if (labels.problem == ProblemType::single_label_classification)
    return json(labels.names).dump(2) + "\n";
  return nlohmann::ordered_json{{kProblem, nameOf(labels.problem)}, {kNames, labels.names}}.dump(2) + "\n";
}

std::vector<std::string> numberedLabels(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i)
    names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

std::vector<Diagnostic> compareLabels(const std::string &weights, const LabelNames &labels, ClassifierPooling pooling,
                                      std::string &note) {
  const std::vector<std::string> &names = labels.names;
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
  if (there.problem != labels.problem)
    return differ(ErrorCode::Contradiction,
                  fmt::format("{}: the head there is of {}, and the model of {}", file, nameOf(there.problem),
                              nameOf(labels.problem)),
                  "take weights without a classifier, or one of the same problem_type");
  if (there.pooling != pooling)
    return differ(ErrorCode::Contradiction,
                  fmt::format("{}: classifier_pooling is {}, and model.classifier_pooling \"{}\"", file,
                              nameOf(there.pooling), nameOf(pooling)),
                  "write the same");
  if (there.scores != trainedScores(there.problem))
    return {notTrainable(file)};
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
