// The format of a file of texts with labels: `gptc data prepare --labels` writes it (frontends/label_prepare.h), runs
// read it (runtime/data/labelled_data.h). All numbers are little-endian.
//
//   header   64 int32: those of LabelledHeader, then zeros
//   tokens   uint32 each: the id of the token, and in the upper 8 bits its type, which tells the texts of a pair apart
//   ends     int64 for each text: the number of tokens of all texts up to it. They begin at a multiple of 8 bytes.
//   labels   words of 32 bits for each text: its label, an int32; where several may be right, a bit for each label from
//            the lowest of the first word on; of a regression a float
//   names    JSON: the names of the labels in the order of their numbers
#pragma once

#include <cstdint>

namespace gptc {

struct LabelledHeader {
  static constexpr int32_t kMagic = 0x4c425447, kVersion = 1;  // "GTBL"
  int32_t magic = kMagic, version = kVersion;
  int64_t texts = 0, tokens = 0;
  int64_t nameBytes = 0;
  int32_t labels = 0;
  int32_t longest = 0;  // tokens of the longest text
  int32_t problem = kOneLabel, unused = 0;

  // What stands for `problem`; in the order of ProblemType (ir/choices.h).
  static constexpr int32_t kOneLabel = 0, kSeveralLabels = 1, kNumber = 2;
  static constexpr int64_t kBytes = 256, kTypeShift = 24;
  static constexpr int64_t kMostTypes = 1 << (32 - kTypeShift), kMostIds = 1 << kTypeShift;
  static constexpr int64_t kMostLabels = 1 << 16, kMostNameBytes = int64_t(16) << 20;
  /// More would overflow no sum below.
  static constexpr int64_t kMost = int64_t(1) << 48;

  /// Of the part `labels`, for each text.
  int64_t wordsOfText() const { return problem == kSeveralLabels ? (int64_t(labels) + 31) / 32 : 1; }
  // Where the parts begin, in bytes from the beginning of the file.
  int64_t tokensAt() const { return kBytes; }
  int64_t endsAt() const { return (kBytes + 4 * tokens + 7) / 8 * 8; }
  int64_t labelsAt() const { return endsAt() + 8 * texts; }
  int64_t namesAt() const { return labelsAt() + 4 * texts * wordsOfText(); }
  int64_t bytes() const { return namesAt() + nameBytes; }
};
static_assert(sizeof(LabelledHeader) == 48 && alignof(LabelledHeader) == 8);

}  // namespace gptc
