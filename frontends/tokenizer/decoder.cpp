#include "frontends/tokenizer/decoder.h"

#include "frontends/tokenizer/normalizer.h"
#include "frontends/tokenizer/regex.h"
#include "frontends/tokenizer/utf8.h"

#include "llvm/ADT/StringRef.h"

namespace gptc {
namespace {

class MetaspaceDecoder : public Decoder {
public:
  MetaspaceDecoder(std::string replacement, bool stripsFirst)
      : replacement(std::move(replacement)), stripsFirst(stripsFirst) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      replaceAll(tokens[i], replacement, i == 0 && stripsFirst ? "" : " ");
  }

private:
  std::string replacement;
  bool stripsFirst;
};

/// English as it was before BERT's words were taken apart.
void cleanUpSpaces(std::string &text) {
  constexpr std::pair<std::string_view, std::string_view> changes[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto &[from, to] : changes)
    replaceAll(text, from, to);
}

class WordPieceDecoder : public Decoder {
public:
  WordPieceDecoder(std::string prefix, bool cleanUp) : prefix(std::move(prefix)), cleanUp(cleanUp) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string &t = tokens[i];
      if (i > 0) {
        if (llvm::StringRef(t).starts_with(prefix))
          t.erase(0, prefix.size());
        else
          t.insert(0, " ");
      }
      if (cleanUp)
        cleanUpSpaces(t);
    }
  }

private:
  std::string prefix;
  bool cleanUp;
};

/// The byte that a token <0xXX> means; -1 for any other token.
int byteOf(const std::string &token) {
  unsigned byte;
  llvm::StringRef s = token;
  return s.size() == 6 && s.consume_front("<0x") && s.consume_back(">") && !s.getAsInteger(16, byte) ? int(byte) : -1;
}

class ByteFallbackDecoder : public Decoder {
public:
  void apply(std::vector<std::string> &tokens) const override {
    std::vector<std::string> out;
    for (size_t i = 0; i < tokens.size();) {
      std::string bytes;
      size_t end = i;
      for (int b; end < tokens.size() && (b = byteOf(tokens[end])) >= 0; ++end)
        bytes += char(b);
      if (end == i) {
        out.push_back(std::move(tokens[i++]));
        continue;
      }
      if (findInvalidUtf8(bytes) == std::string::npos)
        out.push_back(bytes);
      else
        out.insert(out.end(), end - i, "\ufffd");
      i = end;
    }
    tokens = std::move(out);
  }
};

class FuseDecoder : public Decoder {
public:
  void apply(std::vector<std::string> &tokens) const override {
    std::string all;
    for (const std::string &t : tokens)
      all += t;
    tokens = {all};
  }
};

class ReplaceDecoder : public Decoder {
public:
  ReplaceDecoder(std::variant<std::string, Regex> from, std::string to) : from(std::move(from)), to(std::move(to)) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (std::string &t : tokens)
      if (const auto *text = std::get_if<std::string>(&from))
        replaceAll(t, *text, to);
      else if (findInvalidUtf8(t) == std::string::npos)
        replaceAll(t, std::get<Regex>(from), to);
  }

private:
  std::variant<std::string, Regex> from;
  std::string to;
};

class StripDecoder : public Decoder {
public:
  StripDecoder(std::string character, size_t left, size_t right)
      : character(std::move(character)), left(left), right(right) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (std::string &t : tokens) {
      llvm::StringRef s = t;
      for (size_t n = 0; n < left && s.consume_front(character); ++n) {
      }
      for (size_t n = 0; n < right && s.consume_back(character); ++n) {
      }
      t = s.str();
    }
  }

private:
  std::string character;
  size_t left, right;
};

class BpeDecoder : public Decoder {
public:
  explicit BpeDecoder(std::string suffix) : suffix(std::move(suffix)) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      replaceAll(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
  }

private:
  std::string suffix;
};

class SpacesBetween : public Decoder {
public:
  void apply(std::vector<std::string> &tokens) const override {
    for (size_t i = 1; i < tokens.size(); ++i)
      tokens[i].insert(0, " ");
  }
};

class AllOf : public Decoder {
public:
  explicit AllOf(std::vector<std::unique_ptr<Decoder>> all) : all(std::move(all)) {}
  void apply(std::vector<std::string> &tokens) const override {
    for (const auto &d : all)
      d->apply(tokens);
  }

private:
  std::vector<std::unique_ptr<Decoder>> all;
};

}  // namespace

std::unique_ptr<Decoder> metaspaceDecoder(std::string replacement, bool stripsFirst) {
  return std::make_unique<MetaspaceDecoder>(std::move(replacement), stripsFirst);
}
std::unique_ptr<Decoder> wordPieceDecoder(std::string prefix, bool cleanUp) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanUp);
}
std::unique_ptr<Decoder> byteFallbackDecoder() { return std::make_unique<ByteFallbackDecoder>(); }
std::unique_ptr<Decoder> fuseDecoder() { return std::make_unique<FuseDecoder>(); }
std::unique_ptr<Decoder> replaceDecoder(std::string from, std::string to) {
  return std::make_unique<ReplaceDecoder>(std::move(from), std::move(to));
}
std::unique_ptr<Decoder> replaceDecoder(Regex from, std::string to) {
  return std::make_unique<ReplaceDecoder>(std::move(from), std::move(to));
}
std::unique_ptr<Decoder> stripDecoder(std::string character, size_t left, size_t right) {
  return std::make_unique<StripDecoder>(std::move(character), left, right);
}
std::unique_ptr<Decoder> bpeDecoder(std::string suffix) { return std::make_unique<BpeDecoder>(std::move(suffix)); }
std::unique_ptr<Decoder> spacesBetween() { return std::make_unique<SpacesBetween>(); }
std::unique_ptr<Decoder> allOf(std::vector<std::unique_ptr<Decoder>> all) {
  return std::make_unique<AllOf>(std::move(all));
}

}  // namespace gptc
