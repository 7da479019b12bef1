// Reads texts with labels: JSON lines, CSV and TSV.
#pragma once

#include "frontends/corpus.h"
#include "ir/choices.h"
#include "support/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Names of members or columns.
struct LabelledKeys {
  std::string text = "text", pair = "text_pair", label = "label";
};

struct LabelledText {
  std::string text;                 // not empty
  std::optional<std::string> pair;  // the second text, if there is one
  std::vector<std::string> labels;  // as they are written, none empty: one, and if several may be right, any number
  int64_t line = 0;                 // where it begins in its file
};

/// Reads one file once; its name tells what it is, and "-" is standard input of JSON lines. If several labels may be
/// right, JSON has a list of them, and a table has commas between them. The label of a regression is a number. Throws
/// UserErrors: Usage for a name of none of these, and those of CorpusReader; next() throws DataInvalid with file and
/// line.
class LabelledReader {
public:
  LabelledReader(const std::string &file, LabelledKeys keys,
                 ProblemType problem = ProblemType::single_label_classification);
  LabelledReader(const LabelledReader &) = delete;

  /// The next text; false at the end. Empty lines are none.
  bool next(LabelledText &out);
  /// Bytes of the file that were read so far.
  int64_t consumed() const { return reader.consumed(); }
  /// How messages name the place of a text.
  std::string placeOf(int64_t line) const;

private:
  enum class Kind { json, csv, tsv };
  static Kind kindOf(const std::string &file);
  static CorpusOptions optionsOf(const std::string &file);
  [[noreturn]] void refuse(int64_t line, const std::string &why, const std::string &help) const;
  bool nextLine(std::string &line);
  /// A record of a table, which of CSV may take several lines; false at the end.
  bool nextRow(std::vector<std::string> &fields);
  std::vector<std::string> fieldsOf(const std::string &record) const;
  void readHeader();
  void take(const std::string &line, LabelledText &out) const;
  /// How a JSON value writes a label; refuses one that is none.
  std::string labelIn(const nlohmann::json &value) const;
  bool takeRow(LabelledText &out);
  void check(const LabelledText &out) const;

  const std::string file;
  const LabelledKeys keys;
  const ProblemType problem;
  const Kind kind;
  const CorpusOptions options;
  CorpusReader reader;
  CorpusBlock block;
  size_t at = 0;       // in the block
  int64_t number = 0;  // of the last line that was read
  int64_t began = 0;   // line where the last record begins
  bool hasHeader = false;
  std::vector<std::string> columns;
  size_t textColumn = 0, pairColumn = 0, labelColumn = 0;  // of a pair: columns.size() if there is none
};

}  // namespace gptc
