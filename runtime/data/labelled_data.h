// Texts with labels, in files of the format of support/labelled_file.h.
//
// Training order. In every epoch a random permutation orders all texts of all files. The text of global sequence number
// g is a function of (seed, g), so a resumed run needs no state to continue with the same texts.
//
// A sequence of T tokens has one text or pair. Behind it stand tokens 0 of type 0, each a document of its own, which no
// token of the text sees. It has one target, the label, or where several may be right one for each label, 1 or 0.
#pragma once

#include "ir/choices.h"
#include "runtime/data/training_data.h"
#include "support/labelled_file.h"

namespace gptc {

/// What a model takes.
struct LabelledLimits {
  int64_t vocab = 0, types = 0;  // tokens, and types of them
  int64_t blockSize = 0;         // tokens of a sequence
  int64_t labels = 0;
  std::vector<std::string> names = {};  // of the labels; empty: unknown
  ProblemType problem = ProblemType::single_label_classification;
};

class LabelledData final : public TrainingData {
public:
  /// Opens every file that `pattern` names. `key`: the key of model.toml, for messages. Throws UserErrors FileMissing,
  /// and DataInvalid for files that are none of texts with labels, that are damaged, whose labels have other names than
  /// the model's or are for another problem, or that have a text of more than T tokens.
  LabelledData(const std::string &pattern, const std::string &key, LabelledLimits limits);

  void trainingRow(uint64_t seed, int64_t g, const SequenceRow &row) const override;
  int64_t targets(uint64_t seed, int64_t first, int64_t count) const override;
  /// All texts.
  int64_t evalWindows() const override { return texts; }
  int64_t evalRow(int64_t i, const SequenceRow &row) const override;
  void emptyRow(const SequenceRow &row) const override;
  void checkTokens() const override;
  std::string note() const override;

  size_t fileCount() const override { return files.size(); }
  std::vector<std::string> paths() const override;
  std::vector<std::string> names() const override;
  int64_t tokens(size_t i) const override { return files[i].header.tokens; }
  FileStamp stamp(size_t i) const override { return files[i].file->stamp(); }
  std::string reading(size_t) const override { return "texts"; }
  /// The hash is of the whole file but its header.
  Content content(size_t i, const std::atomic<bool> &givenUp) const override;
  void requireLargest(size_t i, uint32_t largest) const override;

private:
  struct File {
    std::string path, name;
    std::unique_ptr<InputFile> file;
    LabelledHeader header;
    int64_t first;                // number of its first text among all
    std::vector<int64_t> ends;    // tokens of its texts up to each
    std::vector<int32_t> labels;  // header.wordsOfText() words of each text

    int64_t beginOf(size_t text) const { return text ? ends[text - 1] : 0; }
  };
  /// Reads all but the tokens.
  void open(File &f) const;
  void requireNames(const File &f) const;
  void readLabels(File &f) const;
  /// Reads where texts end. A header may promise more of them than there is memory for, so bad ones are found first.
  void readEnds(File &f) const;
  static void read(const File &f, int64_t at, void *to, size_t bytes);
  /// Reads tokens with their types, and checks them.
  std::vector<uint32_t> words(const File &f, int64_t begin, int64_t count) const;
  void checkFile(const File &f) const;
  int64_t targetsOfText() const {
    return limits.problem == ProblemType::multi_label_classification ? limits.labels : 1;
  }

  const LabelledLimits limits;
  std::vector<File> files;
  int64_t texts = 0;
};

}  // namespace gptc
