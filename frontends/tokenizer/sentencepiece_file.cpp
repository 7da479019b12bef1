// The protocol buffers of SentencePiece's models, read and written without a library: a message of four fields.
#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace gptc {
namespace {

// Numbers of fields in sentencepiece_model.proto.
enum ModelField { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField { kText = 1, kScore = 2, kType = 3 };
enum TrainerField {
  kModelType = 3,
  kSpaceAsSuffix = 24,
  kByteFallback = 35,
  kUnknownSurface = 44,
  kBosPiece = 46,
  kEosPiece = 47
};
enum NormalizerField { kCharsmap = 2, kAddDummyPrefix = 3, kRemoveExtra = 4, kEscape = 5 };

/// Walks the fields of one message.
class Message {
public:
  Message(std::string_view bytes, const std::string &file) : bytes(bytes), file(file) {}

  uint32_t field = 0;
  enum Wire : uint8_t { varint = 0, fixed64 = 1, text = 2, fixed32 = 5 } wire = varint;
  uint64_t number = 0;     // of varint and fixed
  std::string_view value;  // of text

  /// The next field; false at the end.
  bool next() {
    if (at == bytes.size())
      return false;
    const uint64_t key = readVarint();
    field = uint32_t(key >> 3);
    switch (key & 7) {
    case varint:
      wire = varint;
      number = readVarint();
      break;
    case fixed64:
    case fixed32: {
      wire = Wire(key & 7);
      const size_t n = wire == fixed64 ? 8 : 4;
      number = 0;
      std::memcpy(&number, take(n).data(), n);
      break;
    }
    case text:
      wire = text;
      value = take(readVarint());
      break;
    default:
      damaged();
    }
    return true;
  }
  bool flag() const {
    require(varint);
    return number != 0;
  }
  void require(Wire wanted) const {
    if (wire != wanted)
      damaged();
  }
  [[noreturn]] void damaged() const {
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} is no model of SentencePiece, or damaged", file),
                    "get the file again; tokenizer.json, merges and tiktoken's ranks are told apart by their content");
  }

private:
  uint64_t readVarint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at == bytes.size())
        damaged();
      const uint8_t b = uint8_t(bytes[at++]);
      v |= uint64_t(b & 0x7f) << shift;
      if (!(b & 0x80))
        return v;
    }
    damaged();
  }
  std::string_view take(uint64_t n) {
    if (n > bytes.size() - at)
      damaged();
    const std::string_view v = bytes.substr(at, n);
    at += n;
    return v;
  }
  std::string_view bytes;
  const std::string &file;
  size_t at = 0;
};

SentencePieceModel::Piece parsePiece(std::string_view bytes, const std::string &file) {
  SentencePieceModel::Piece p;
  for (Message m(bytes, file); m.next();) {
    if (m.field == kText) {
      m.require(Message::text);
      p.text = m.value;
    } else if (m.field == kScore) {
      m.require(Message::fixed32);
      p.score = std::bit_cast<float>(uint32_t(m.number));
      if (!std::isfinite(p.score))
        m.damaged();
    } else if (m.field == kType) {
      m.require(Message::varint);
      if (m.number < SentencePieceModel::normal || m.number > SentencePieceModel::byte)
        m.damaged();
      p.type = SentencePieceModel::Type(m.number);
    }
  }
  return p;
}

void parseTrainer(std::string_view bytes, const std::string &file, SentencePieceModel &model) {
  for (Message m(bytes, file); m.next();) {
    if (m.field == kModelType) {
      m.require(Message::varint);
      if (m.number != SentencePieceModel::unigram && m.number != SentencePieceModel::bpe)
        throw UserError(ErrorCode::NotBuiltYet,
                        fmt::format("{} is a model of SentencePiece of type {}, which is not built yet", file,
                                    m.number == 3   ? "word"
                                    : m.number == 4 ? "char"
                                                    : std::to_string(m.number)),
                        "BPE and unigram work");
      model.kind = SentencePieceModel::Kind(m.number);
    } else if (m.field == kSpaceAsSuffix) {
      model.spaceBehind = m.flag();
    } else if (m.field == kByteFallback) {
      model.byteFallback = m.flag();
    } else if (m.field == kUnknownSurface || m.field == kBosPiece || m.field == kEosPiece) {
      m.require(Message::text);
      (m.field == kUnknownSurface ? model.unknownText : m.field == kBosPiece ? model.bos : model.eos) = m.value;
    }
  }
}

void parseNormalizer(std::string_view bytes, const std::string &file, SentencePieceModel &model) {
  for (Message m(bytes, file); m.next();) {
    if (m.field == kCharsmap) {
      m.require(Message::text);
      model.charsmap = m.value;
    } else if (m.field == kAddDummyPrefix) {
      model.addSpace = m.flag();
    } else if (m.field == kRemoveExtra) {
      model.removeExtraSpaces = m.flag();
    } else if (m.field == kEscape) {
      model.escapeSpaces = m.flag();
    }
  }
}

// Writing.
void putVarint(std::string &out, uint64_t v) {
  for (; v >= 0x80; v >>= 7)
    out += char(v | 0x80);
  out += char(v);
}
void putNumber(std::string &out, uint32_t field, uint64_t v) {
  putVarint(out, uint64_t(field) << 3 | Message::varint);
  putVarint(out, v);
}
void putText(std::string &out, uint32_t field, std::string_view v) {
  putVarint(out, uint64_t(field) << 3 | Message::text);
  putVarint(out, v.size());
  out += v;
}

}  // namespace

SentencePieceModel parseSentencePiece(const std::string &content, const std::string &file) {
  constexpr size_t mostPieces = 1 << 24;
  SentencePieceModel model;
  Message m(content, file);
  while (m.next()) {
    if (m.field == kPieces || m.field == kTrainer || m.field == kNormalizer)
      m.require(Message::text);
    if (m.field == kPieces) {
      if (model.pieces.size() == mostPieces)
        m.damaged();
      model.pieces.push_back(parsePiece(m.value, file));
    } else if (m.field == kTrainer) {
      parseTrainer(m.value, file, model);
    } else if (m.field == kNormalizer) {
      parseNormalizer(m.value, file, model);
    }
  }
  if (model.pieces.empty())
    m.damaged();
  return model;
}

std::string writeSentencePiece(const SentencePieceModel &model) {
  std::string out;
  for (const SentencePieceModel::Piece &p : model.pieces) {
    std::string piece;
    putText(piece, kText, p.text);
    putVarint(piece, kScore << 3 | Message::fixed32);
    const uint32_t score = std::bit_cast<uint32_t>(p.score);
    piece.append(reinterpret_cast<const char *>(&score), sizeof score);
    putNumber(piece, kType, p.type);
    putText(out, kPieces, piece);
  }
  std::string trainer, normalizer;
  putNumber(trainer, kModelType, model.kind);
  putNumber(trainer, kSpaceAsSuffix, model.spaceBehind);
  putNumber(trainer, kByteFallback, model.byteFallback);
  putText(trainer, kUnknownSurface, model.unknownText);
  putText(trainer, kBosPiece, model.bos);
  putText(trainer, kEosPiece, model.eos);
  putText(out, kTrainer, trainer);
  putText(normalizer, kCharsmap, model.charsmap);
  putNumber(normalizer, kAddDummyPrefix, model.addSpace);
  putNumber(normalizer, kRemoveExtra, model.removeExtraSpaces);
  putNumber(normalizer, kEscape, model.escapeSpaces);
  putText(out, kNormalizer, normalizer);
  return out;
}

}  // namespace gptc
