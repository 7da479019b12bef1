#include "frontends/label_prepare.h"

#include "frontends/hf_text_form.h"
#include "frontends/label_names.h"
#include "frontends/labelled_texts.h"
#include "frontends/tokenizer/tokenizer.h"
#include "ir/random.h"
#include "support/atomic_file.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/helper_threads.h"
#include "support/labelled_file.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <system_error>

namespace gptc {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "files of texts are little-endian");

constexpr int64_t kUsualContext = 512;
constexpr uint32_t kSplitStream = 0xDA7A0008;  // of the texts to validate on, far from those of other uses

template <typename T> std::string_view bytesOf(const std::vector<T> &values) {
  return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T)};
}

static_assert(int32_t(ProblemType::single_label_classification) == LabelledHeader::kOneLabel &&
              int32_t(ProblemType::multi_label_classification) == LabelledHeader::kSeveralLabels &&
              int32_t(ProblemType::regression) == LabelledHeader::kNumber);

/// Writes a file of texts; labels may get other numbers at its end.
class LabelWriter {
public:
  LabelWriter(const std::string &path, ProblemType problem) : file(path), problem(problem) {
    file.append(std::string(size_t(LabelledHeader::kBytes), '\0'));
  }

  /// `right`: the numbers of its labels; of a regression the bits of a float.
  void append(const TypedText &text, const std::vector<int32_t> &right) {
    for (size_t i = 0; i < text.tokens.size(); ++i)
      pending.push_back(uint32_t(text.tokens[i]) | uint32_t(text.types[i]) << LabelledHeader::kTypeShift);
    header.tokens += int64_t(text.tokens.size());
    header.longest = std::max(header.longest, int32_t(text.tokens.size()));
    ends.push_back(header.tokens);
    labels.insert(labels.end(), right.begin(), right.end());
    labelEnds.push_back(labels.size());
    if (pending.size() > kPending)
      flush();
  }

  int64_t texts() const { return int64_t(ends.size()); }
  int64_t tokens() const { return header.tokens; }

  /// `numberOf` has the final number of each label.
  void finish(const std::vector<std::string> &names, const std::vector<int32_t> &numberOf) {
    for (int32_t &label : labels)
      label = problem == ProblemType::regression ? label : numberOf[size_t(label)];
    flush();
    const std::string json = textOfLabels({.names = names});
    if (int64_t(json.size()) > LabelledHeader::kMostNameBytes)
      throw UserError(ErrorCode::TooLarge,
                      fmt::format("the names of {} labels have {} bytes", names.size(), json.size()),
                      fmt::format("{} are the most: give them shorter names", LabelledHeader::kMostNameBytes));
    header.texts = texts();
    header.nameBytes = int64_t(json.size());
    header.labels = int32_t(names.size());
    header.problem = int32_t(problem);
    file.append(std::string(size_t(header.endsAt() - (header.tokensAt() + 4 * header.tokens)), '\0'));
    file.append(bytesOf(ends));
    if (problem == ProblemType::multi_label_classification)
      file.append(bytesOf(bits()));
    else
      file.append(bytesOf(labels));
    file.append(json);
    file.writeAt(0, {reinterpret_cast<const char *>(&header), sizeof header});
    file.finish();
  }
  std::vector<int64_t> counts(size_t of) const {
    if (problem == ProblemType::regression)
      return {texts()};
    std::vector<int64_t> n(of);
    for (const int32_t label : labels)
      ++n[size_t(label)];
    return n;
  }
  void commit() { file.commit(); }

private:
  static constexpr size_t kPending = 1 << 18;
  void flush() {
    file.append(bytesOf(pending));
    pending.clear();
  }
  std::vector<uint32_t> bits() const {
    const auto words = size_t(header.wordsOfText());
    std::vector<uint32_t> all(words * ends.size());
    for (size_t text = 0, i = 0; text < ends.size(); ++text)
      for (; i < labelEnds[text]; ++i)
        all[words * text + size_t(labels[i]) / 32] |= uint32_t(1) << labels[i] % 32;
    return all;
  }
  AtomicFile file;
  const ProblemType problem;
  LabelledHeader header;
  std::vector<uint32_t> pending;
  std::vector<int64_t> ends;      // in tokens
  std::vector<int32_t> labels;    // of all texts
  std::vector<size_t> labelEnds;  // of each text, among them
};

bool isNumber(const std::string &label) {
  return !label.empty() && label.size() < 9 && llvm::all_of(label, llvm::isDigit) && (label == "0" || label[0] != '0');
}

/// The numbers of labels: given, or in the order in which they appear until settle() is called.
class LabelNumbers {
public:
  explicit LabelNumbers(const PrepareOptions &o) {
    if (!o.problemType.empty()) {
      const auto given = parseWord<ProblemType>(o.problemType);
      if (!given)
        throw UserError(ErrorCode::Usage, fmt::format("--problem-type {}", o.problemType),
                        fmt::format("{}", fmt::join(wordsOf<ProblemType>, ", ")));
      labels.problem = *given;
    }
    if (o.labels == "auto") {
      isOpen = labels.problem != ProblemType::regression;
      if (!isOpen)
        labels.names = numberedLabels(1);
      return;
    }
    const llvm::StringRef word = o.labels;
    const bool isPath = !word.contains(',') && (word.contains('/') || word.ends_with(".json"));
    if (std::error_code e; isPath || fs::exists(o.labels, e)) {
      LabelNames there = readLabelNames(o.labels);
      if (!o.problemType.empty() && there.problem != labels.problem)
        throw UserError(
            ErrorCode::Contradiction,
            fmt::format("--problem-type {}, and {} is of {}", o.problemType, o.labels, nameOf(there.problem)),
            "leave out --problem-type");
      labels = std::move(there);
    } else {
      for (const llvm::StringRef name : llvm::split(o.labels, ','))
        labels.names.push_back(name.str());
      if (const std::string why = problemOfLabels(labels); !why.empty())
        throw UserError(ErrorCode::Usage,
                        fmt::format("--labels{}: {}", labels.names.size() > 12 ? "" : " " + o.labels, why),
                        "auto, names such as bad,good, a labels.json, or a folder with a classifier");
    }
    number();
    isOpen = false;
  }

  bool open() const { return isOpen; }
  const LabelNames &all() const { return labels; }

  /// The number of a label; while the names are open, a new one for a new label. nullopt for one that has no number.
  std::optional<int32_t> of(const std::string &label) {
    if (const auto it = byName.find(label); it != byName.end())
      return it->second;
    if (isOpen && labels.names.size() < kMostLabels) {
      labels.names.push_back(label);
      return byName[label] = int32_t(labels.names.size() - 1);
    }
    if (isOpen || namesAreNumbers || !isNumber(label) || size_t(std::stoll(label)) >= labels.names.size())
      return std::nullopt;
    return int32_t(std::stoll(label));
  }

  /// Settles the names by those that have appeared; no other may then. Returns the numbers of these. Numbers from 0 on,
  /// of which texts have at least half, are those of labels without names; others, such as 1 to 5 stars, are names.
  std::vector<int32_t> settle() {
    std::vector<int32_t> numberOf;
    if (!isOpen) {
      for (size_t i = 0; i < labels.names.size(); ++i)
        numberOf.push_back(int32_t(i));
      return numberOf;
    }
    const std::vector<std::string> appeared = labels.names;
    if (const std::string why = problemOfLabels(labels); !why.empty())
      throw UserError(ErrorCode::DataInvalid, fmt::format("the training texts: {}", why),
                      labels.problem == ProblemType::multi_label_classification
                          ? "a text with a label is needed at least"
                          : "texts of two labels at least are needed");
    bool count = false;
    if (llvm::all_of(appeared, isNumber)) {
      llvm::sort(labels.names,
                 [](const std::string &a, const std::string &b) { return std::stoll(a) < std::stoll(b); });
      const size_t most = size_t(std::stoll(labels.names.back())) + 1;
      count = labels.names.front() == "0" && most <= std::min(kMostLabels, 2 * labels.names.size());
      if (count)
        labels.names = numberedLabels(most);
    } else {
      llvm::sort(labels.names);
    }
    number();
    isOpen = false;
    for (const std::string &label : appeared)
      numberOf.push_back(count ? int32_t(std::stoll(label)) : byName.at(label));
    return numberOf;
  }

private:
  void number() {
    byName.clear();
    for (size_t i = 0; i < labels.names.size(); ++i)
      byName[labels.names[i]] = int32_t(i);
    namesAreNumbers = llvm::any_of(labels.names, isNumber);
  }
  LabelNames labels;
  std::map<std::string, int32_t> byName;
  bool isOpen = true;
  bool namesAreNumbers = false;  // then "2" is no place among the names
};

void requireFit(const PrepareOptions &o) {
  const llvm::StringRef t = o.tokenizer;
  auto usage = [](const std::string &what, const std::string &help) { throw UserError(ErrorCode::Usage, what, help); };
  if (t == "char" || t == "byte" || t.starts_with("bpe:") || t.starts_with("gpt2:"))
    usage(fmt::format("--tokenizer {}: a classifier begins with a model, whose tokenizer reads its texts", o.tokenizer),
          "name its tokenizer.json");
  if (o.format != "nanogpt")
    usage(fmt::format("--format {}: texts with labels have a form of their own", o.format), "leave it out");
  if (o.addSpecial)
    usage("--add-special: texts with labels have the tokens around them in any case", "leave it out");
  if (!(o.valFraction >= 0 && o.valFraction < 1))
    usage(fmt::format("--val-fraction {} is out of range", o.valFraction), "at least 0 and below 1");
  if (std::count(o.files.begin(), o.files.end(), "-") + std::count(o.valFiles.begin(), o.valFiles.end(), "-") > 1)
    usage("standard input (-) is named twice", "name it once");
}

/// A text that waits to be encoded.
struct Waiting {
  LabelledText text;
  std::vector<int32_t> labels;  // as LabelWriter takes them
  bool validates = false;
  TypedText typed;
  std::exception_ptr error;
};

class LabelPreparation {
public:
  explicit LabelPreparation(const PrepareOptions &o)
      : options(o), numbers(o), problem(numbers.all().problem), tokenizer(Tokenizer::load(o.tokenizer)),
        copies(threadsOf(o), tokenizer) {
    if (!o.key.empty())
      keys.text = o.key;
    if (!o.pairKey.empty())
      keys.pair = o.pairKey;
    if (!o.labelKey.empty())
      keys.label = o.labelKey;
    requireDifferent(keys);
    form = textFormBeside(o.tokenizer);
    form.parseSpecial = o.parseSpecial;
    const int64_t context = o.context ? o.context : kUsualContext;
    if (form.most && form.most < o.context)
      result.notes.push_back(
          fmt::format("--context {} is more than model_max_length in {}, which is {}: texts are cut to that", o.context,
                      fs::path(o.tokenizer).replace_filename("tokenizer_config.json").string(), form.most));
    form.most = form.most ? std::min(form.most, context) : context;
    if (tokenizer.vocabSize() > LabelledHeader::kMostIds)
      throw UserError(ErrorCode::NotBuiltYet,
                      fmt::format("a vocabulary of {} tokens with labels", tokenizer.vocabSize()),
                      fmt::format("{} is the most", LabelledHeader::kMostIds));
    CorpusOptions all;
    all.files = o.files;
    all.files.insert(all.files.end(), o.valFiles.begin(), o.valFiles.end());
    bytes = sizeOfFiles(all);
  }

  LabelResult run() {
    makeFolder(options.outDir);
    const std::string trainPath = options.outDir + "/train.bin", valPath = options.outDir + "/val.bin";
    LabelWriter trainFile(trainPath, problem), valFile(valPath, problem);
    const bool splits = options.valFiles.empty() && options.valFraction > 0;
    read(options.files, trainFile, result.train, splits ? &valFile : nullptr, result.val);
    if (!trainFile.texts())
      throw UserError(ErrorCode::DataInvalid, "no text is left to train on",
                      "give more texts or a smaller --val-fraction");
    const std::vector<int32_t> numberOf = numbers.settle();
    read(options.valFiles, valFile, result.val, nullptr, result.val);
    result.tokenizer = tokenizer.describe();
    result.labels = numbers.all();
    result.context = form.most;
    const std::vector<std::string> &names = result.labels.names;
    std::vector<int32_t> same(names.size());
    for (size_t i = 0; i < same.size(); ++i)
      same[i] = int32_t(i);
    trainFile.finish(names, numberOf);
    valFile.finish(names, splits ? numberOf : same);
    AtomicFile tokenizerFile(options.outDir + "/" + tokenizer.file().name), namesFile(options.outDir + "/labels.json");
    tokenizerFile.append(tokenizer.file().content);
    namesFile.append(textOfLabels(result.labels));
    for (AtomicFile *f : {&tokenizerFile, &namesFile})
      f->finish();
    say(result.train, trainFile);
    say(result.val, valFile);
    noteGaps(splits);
    trainFile.commit();
    if (valFile.texts()) {
      valFile.commit();
    } else {
      std::error_code ignored;  // one of an earlier run would have other labels
      fs::remove(valPath, ignored);
    }
    for (AtomicFile *f : {&tokenizerFile, &namesFile})
      f->commit();
    return std::move(result);
  }

private:
  void noteGaps(bool splits) {
    std::vector<std::string> untaught;
    for (size_t i = 0; i < result.labels.names.size(); ++i)
      if (!result.train.counts[i])
        untaught.push_back(result.labels.names[i]);
    if (!untaught.empty())
      result.notes.push_back(
          fmt::format("no text to train on has the label{} {}", untaught.size() == 1 ? "" : "s", quotedSome(untaught)));
    if (splits && !result.val.texts)
      result.notes.push_back(fmt::format("no text is left to validate on, of {}: give --val FILES or a larger "
                                         "--val-fraction, or leave out data.val",
                                         result.train.texts));
  }

  void say(LabelledSplit &split, const LabelWriter &file) const {
    split.texts = file.texts();
    split.tokens = file.tokens();
    split.counts = file.counts(result.labels.names.size());
  }

  static void requireDifferent(const LabelledKeys &keys) {
    const std::pair<const char *, const std::string &> uses[] = {
        {"the text", keys.text}, {"the second text of a pair", keys.pair}, {"the label", keys.label}};
    for (const auto &[what, name] : uses)
      for (const auto &[other, same] : uses)
        if (&name < &same && name == same)
          throw UserError(ErrorCode::Usage, fmt::format("\"{}\" is both {} and {}", name, what, other),
                          "--key, --pair-key and --label-key name three members or columns");
  }

  /// Encodes the texts of files into `file`, and some of them into `other`, if that is not null. What comes out, and
  /// which error, does not depend on the threads.
  void read(const std::vector<std::string> &files, LabelWriter &file, LabelledSplit &split, LabelWriter *other,
            LabelledSplit &otherSplit) {
    const RandomKey key = randomKey(0, 0, kSplitStream, 0);
    for (const std::string &name : files) {
      LabelledReader reader(name, keys, problem);
      for (bool more = true; more;) {
        std::vector<Waiting> batch;
        std::exception_ptr failure;  // of a text behind those of the batch
        try {
          more = fill(reader, other ? &key : nullptr, batch);
        } catch (...) {
          failure = std::current_exception();
        }
        encode(reader, batch);
        for (const Waiting &w : batch) {
          if (w.error)
            std::rethrow_exception(w.error);
          (w.validates ? otherSplit : split).cut += w.typed.isCut;
          (w.validates ? *other : file).append(w.typed, w.labels);
        }
        if (failure)
          std::rethrow_exception(failure);
        if (options.progress)
          options.progress({"encoding", done + reader.consumed(), bytes});
      }
      done += reader.consumed();
    }
  }

  /// Reads a batch of texts; false at the end of the file. `key`: decides which of them validate; null: none.
  bool fill(LabelledReader &reader, const RandomKey *key, std::vector<Waiting> &batch) {
    constexpr size_t most = 1 << 12, mostBytes = 1 << 24;
    for (size_t size = 0; batch.size() < most && size < mostBytes;) {
      Waiting w;
      if (!reader.next(w.text))
        return false;
      for (const std::string &label : w.text.labels) {
        w.labels.push_back(problem == ProblemType::regression ? bitsOf(reader, w.text.line, label)
                                                              : labelOf(reader, w.text.line, label));
        if (llvm::is_contained(llvm::ArrayRef(w.labels).drop_back(), w.labels.back()))
          throw UserError(ErrorCode::DataInvalid,
                          fmt::format("{}: the label \"{}\" is there twice", reader.placeOf(w.text.line), label),
                          "name each label of a text once: a list of names or of their numbers");
      }
      w.validates = key && randomUniform(*key, uint64_t(number++)) < options.valFraction;
      size += w.text.text.size() + w.text.pair.value_or("").size();
      batch.push_back(std::move(w));
    }
    return true;
  }

  void encode(const LabelledReader &reader, std::vector<Waiting> &batch) const {
    std::atomic<size_t> next = 0;
    withHelpers(std::min(copies.size(), batch.size()), [&](size_t thread) {
      for (size_t i; (i = next++) < batch.size();)
        try {
          batch[i].typed = typed(copies[thread], reader, batch[i].text);
        } catch (...) {
          batch[i].error = std::current_exception();
        }
    });
  }

  int32_t labelOf(const LabelledReader &reader, int64_t line, const std::string &name) {
    const std::optional<int32_t> label = numbers.of(name);
    if (!label && numbers.open())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: more than {} labels", reader.placeOf(line), kMostLabels),
                      "is the label in another member or column? --label-key names it");
    if (!label)
      throw UserError(
          ErrorCode::DataInvalid,
          fmt::format("{}: the label \"{}\" is neither a name of a label nor its number", reader.placeOf(line), name),
          fmt::format("labels are {}", quotedSome(numbers.all().names)));
    return *label;
  }

  /// The label of a regression.
  static int32_t bitsOf(const LabelledReader &reader, int64_t line, const std::string &text) {
    double x;
    if (llvm::StringRef(text).trim().getAsDouble(x) || !(std::abs(x) <= double(std::numeric_limits<float>::max())))
      throw UserError(ErrorCode::DataInvalid,
                      fmt::format("{}: the label \"{}\" is no finite number", reader.placeOf(line), text),
                      "a regression learns one; is it in another member or column? --label-key names it");
    return std::bit_cast<int32_t>(float(x));
  }

  TypedText typed(const Tokenizer &own, const LabelledReader &reader, const LabelledText &text) const {
    TypedText typed;
    try {
      typed = typedText(own, text.text, text.pair, form);
    } catch (const UserError &e) {
      const ErrorCode code = e.diagnostics[0].code;
      if (code == ErrorCode::Usage || code == ErrorCode::NotBuiltYet)
        throw;
      throw UserError(ErrorCode::DataInvalid,
                      fmt::format("{}: {}", reader.placeOf(text.line), e.diagnostics[0].message));
    }
    if (typed.tokens.empty())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: the text has no tokens", reader.placeOf(text.line)),
                      "leave it out");
    if (llvm::any_of(typed.types, [](int32_t t) { return t < 0 || t >= LabelledHeader::kMostTypes; }))
      throw UserError(ErrorCode::NotBuiltYet, fmt::format("{}: a tokenizer of more than {} types of tokens",
                                                          reader.placeOf(text.line), LabelledHeader::kMostTypes));
    return typed;
  }

  const PrepareOptions &options;
  LabelNumbers numbers;
  const ProblemType problem;
  const Tokenizer tokenizer;
  const std::vector<Tokenizer> copies;  // one for each thread
  LabelledKeys keys;
  TextForm form;
  LabelResult result;
  int64_t number = 0;           // of the next text
  int64_t done = 0, bytes = 0;  // of the files
};

}  // namespace

LabelResult prepareLabels(const PrepareOptions &options) {
  requireFit(options);
  return LabelPreparation(options).run();
}

}  // namespace gptc
