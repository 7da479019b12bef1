#include "frontends/data_prepare.h"

#include "frontends/corpus.h"
#include "frontends/token_writer.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/tokenizer/training.h"
#include "frontends/tokenizer/utf8.h"
#include "support/atomic_file.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/helper_threads.h"

#include "llvm/ADT/StringRef.h"

#include <atomic>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <unistd.h>

namespace gptc {

namespace {

constexpr int64_t kNarrowVocab = 1 << 16, kLargestTrained = 1 << 20;

/// The parsed value of --tokenizer, checked before any file is read.
struct Wanted {
  enum Kind { characters, bytes, bpe, merges, file } kind;
  int64_t vocab = 0;
  std::string path;
};

Wanted parseTokenizer(const std::string &text) {
  const llvm::StringRef s = text;
  auto [name, rest] = s.split(':');
  if (s == "char")
    return {Wanted::characters};
  if (s == "byte")
    return {Wanted::bytes};
  if (name == "gpt2" && !rest.empty())
    return {Wanted::merges, 0, rest.str()};
  int64_t vocab;
  if (name == "bpe" && !rest.getAsInteger(10, vocab)) {
    if (vocab < 257 || vocab > kLargestTrained)
      throw UserError(ErrorCode::Usage,
                      fmt::format("--tokenizer bpe:{}: the vocabulary must be 257 to {}", vocab, kLargestTrained),
                      "256 bytes, the merges, and <|endoftext|>; up to 65536, tokens are stored in 16 bits. bpe:4096 "
                      "suits a few megabytes of text");
    return {Wanted::bpe, vocab};
  }
  std::error_code ignored;
  const llvm::StringRef file = rest.empty() ? s : s.rsplit(':').first;
  if (file.contains('.') || std::filesystem::exists(file.str(), ignored))
    return {Wanted::file, 0, text};
  throw UserError(ErrorCode::Usage, fmt::format("--tokenizer {} is not known", text),
                  "char, byte, bpe:4096, gpt2:MERGES_FILE, or a tokenizer.json, tokenizer.model, tekken.json, "
                  "NAME.gguf or NAME.tiktoken:PATTERN");
}

/// Reads a corpus in blocks, works on several at a time, and hands the results on in order.
class Passes {
public:
  Passes(const PrepareOptions &options, int64_t totalBytes)
      : options(options), threads(threadsOf(options)), totalBytes(totalBytes) {}

  unsigned threadCount() const { return threads; }

  /// `work(thread, block)` makes a Result; `take(block, result)` is called in the order of the corpus. `before`: bytes
  /// of files that an earlier call read.
  template <typename Result, typename Work, typename Take>
  void run(const char *doing, int64_t before, const CorpusOptions &corpus, Work work, Take take) {
    CorpusReader reader(corpus);
    std::vector<CorpusBlock> current = batch(reader), next;
    while (!current.empty()) {
      std::vector<Result> results(current.size());
      std::vector<std::exception_ptr> errors(current.size());
      std::exception_ptr readError;
      std::atomic<size_t> at = 0;
      const auto help = [&](size_t thread) {
        for (size_t i; (i = at++) < current.size();)
          try {
            results[i] = work(unsigned(thread), current[i]);
          } catch (...) {
            errors[i] = std::current_exception();
          }
      };
      withHelpers(threads, help, [&] {
        try {
          next = batch(reader);
        } catch (...) {
          readError = std::current_exception();
        }
      });
      for (size_t i = 0; i < current.size(); ++i) {
        if (errors[i])
          std::rethrow_exception(errors[i]);
        take(current[i], std::move(results[i]));
      }
      if (readError)
        std::rethrow_exception(readError);
      if (options.progress)
        options.progress({doing, before + reader.consumed(), totalBytes});
      current.swap(next);
      next.clear();
    }
  }

private:
  std::vector<CorpusBlock> batch(CorpusReader &reader) const {
    std::vector<CorpusBlock> blocks(4 * size_t(threads));
    size_t n = 0;
    while (n < blocks.size() && reader.next(blocks[n]))
      ++n;
    blocks.resize(n);
    return blocks;
  }
  const PrepareOptions &options;
  unsigned threads;
  int64_t totalBytes;
};

/// The corpora, their split, and the tokenizer that grows out of them.
class Preparation {
public:
  Preparation(const PrepareOptions &options, const Wanted &wanted) : options(options), wanted(wanted) {
    if (wanted.kind == Wanted::file)
      tokenizer = Tokenizer::load(wanted.path);
    else if (wanted.kind == Wanted::merges)
      tokenizer = Tokenizer::fromMerges(wanted.path);
    for (CorpusOptions *c : {&train, &val}) {
      c->files = c == &train ? options.files : options.valFiles;
      c->keyGiven = !options.key.empty();
      if (c->keyGiven)
        c->key = options.key;
      c->anyBytes = wanted.kind == Wanted::bytes;
      c->cut = tokenizer                    ? tokenizer->cut()
               : wanted.kind == Wanted::bpe ? CutPoint::beforeLineFeed  // GPT-2's words
                                            : CutPoint::anywhere;
    }
    splits = options.valFiles.empty() && options.valFraction > 0;
    openStandardInput();
  }
  ~Preparation() {
    if (input > STDIN_FILENO)
      ::close(input);
  }

  PrepareResult run() {
    Passes passes(options, sizeOfFiles(train) + sizeOfFiles(val));
    if (splits || wanted.kind == Wanted::characters)
      count(passes);
    if (wanted.kind == Wanted::characters)
      tokenizer = Tokenizer::characters(characters);
    else if (wanted.kind == Wanted::bytes)
      tokenizer = Tokenizer::bytes();
    else if (wanted.kind == Wanted::bpe)
      learn(passes);
    return encode(passes);
  }

private:
  void openStandardInput() {
    int dashes = 0;
    for (const std::vector<std::string> &files : {train.files, val.files})
      dashes += int(std::count(files.begin(), files.end(), "-"));
    if (dashes > 1)
      throw UserError(ErrorCode::Usage, "standard input (-) is named twice", "name it once");
    if (!dashes)
      return;
    const bool once = tokenizer && !splits;
    if (!once)
      makeFolder(options.outDir);
    input = once ? STDIN_FILENO : keepStandardInput(options.outDir);
    train.standardInput = val.standardInput = input;
  }

  int64_t unitsOf(std::string_view text) const {
    return wanted.kind == Wanted::bytes ? int64_t(text.size()) : countCodePoints(text);
  }
  size_t bytesOfUnits(std::string_view text, int64_t units) const {
    return wanted.kind == Wanted::bytes ? size_t(units) : bytesOfCodePoints(text, units);
  }

  /// Counts characters, which says where the training text ends, and collects them.
  void count(Passes &passes) {
    struct Result {
      int64_t units = 0;
    };
    std::vector<CharacterSet> of(wanted.kind == Wanted::characters ? passes.threadCount() : 0);
    auto work = [&](const CorpusOptions &corpus) {
      return [&](unsigned thread, const CorpusBlock &block) {
        Result r;
        forTexts(block, corpus, [&](std::string_view text) {
          r.units += unitsOf(text);
          if (!of.empty())
            of[thread].add(text);
        });
        return r;
      };
    };
    int64_t total = 0;
    passes.run<Result>("counting", 0, train, work(train), [&](const CorpusBlock &, Result r) {
      starts.push_back(total);
      total += r.units;
    });
    starts.push_back(total);
    if (!of.empty() && !val.files.empty())
      passes.run<Result>("counting", sizeOfFiles(train), val, work(val), [](const CorpusBlock &, Result) {});
    for (const CharacterSet &c : of)
      characters.add(c);
    if (splits)
      trainUnits = int64_t(double(total) * (1 - options.valFraction));
  }

  void learn(Passes &passes) {
    struct Result {};
    std::vector<WordCounts> of(passes.threadCount());
    passes.run<Result>(
        "learning", 0, train,
        [&](unsigned thread, const CorpusBlock &block) {
          int64_t units = startOf(block);
          forTexts(block, train, [&](std::string_view text) {
            const int64_t n = splits ? unitsOf(text) : 0;
            if (units < trainUnits)
              of[thread].add(units + n <= trainUnits ? text : text.substr(0, bytesOfUnits(text, trainUnits - units)));
            units += n;
          });
          return Result{};
        },
        [](const CorpusBlock &, Result) {});
    for (unsigned t = 1; t < of.size(); ++t)
      of[0].add(of[t]);
    tokenizer = Tokenizer::train(of[0], wanted.vocab);
  }

  /// Calls `f` for each text of a block: a part of a text file, or the documents of JSON lines.
  template <typename F> static void forTexts(const CorpusBlock &block, const CorpusOptions &corpus, F f) {
    if (block.jsonLines)
      return forDocuments(block, corpus, [&](std::string &text) { f(std::string_view(text)); });
    requireUtf8(block, corpus);
    f(std::string_view(block.text));
  }

  /// Number of characters before a block, if they were counted.
  int64_t startOf(const CorpusBlock &block) const {
    if (!splits)
      return 0;
    if (size_t(block.number) + 1 >= starts.size())
      throw UserError(ErrorCode::DataInvalid, "the text changes while it is read",
                      "run again when its files are complete");
    return starts[size_t(block.number)];
  }

  /// Tokens of a block for one of the two files.
  struct Part {
    std::vector<int32_t> tokens;
    std::vector<int64_t> documents;  // tokens of the part before each document that begins in it
    bool any = false, startsDocument = false;
    int64_t bytes = 0;
  };
  struct Encoded {
    Part train, val;
    int64_t controlTokens = 0;
  };

  /// Encodes a text for one file; `starts`, `ends`: whether a document does here.
  void encodePart(const Tokenizer &t, std::string_view text, bool starts, bool ends, Part &part, int64_t &found) const {
    if (text.empty())
      return;
    if (!part.any)
      part.startsDocument = starts;
    else if (starts && t.endOfText() >= 0)
      part.tokens.push_back(t.endOfText());
    if (starts)
      part.documents.push_back(int64_t(part.tokens.size()));
    part.any = true;
    part.bytes += int64_t(text.size());
    found += t.encode(text, part.tokens, {options.parseSpecial, options.addSpecial, !starts, !ends});
  }

  Encoded encodeBlock(const Tokenizer &t, const CorpusBlock &block, const CorpusOptions &corpus, bool isVal) const {
    Encoded e;
    int64_t units = isVal ? 0 : startOf(block);
    forTexts(block, corpus, [&](std::string_view text) {
      const bool starts = block.jsonLines || block.startsDocument, ends = block.jsonLines || block.endsDocument;
      if (isVal || !splits)
        return encodePart(t, text, starts, ends, isVal ? e.val : e.train, e.controlTokens);
      const int64_t n = unitsOf(text), left = std::clamp<int64_t>(trainUnits - units, 0, n);
      const size_t cut = left == n ? text.size() : bytesOfUnits(text, left);
      encodePart(t, text.substr(0, cut), starts, ends || units + n >= trainUnits, e.train, e.controlTokens);
      encodePart(t, text.substr(cut), starts || units + left == trainUnits, ends, e.val, e.controlTokens);
      units += n;
    });
    return e;
  }

  void write(const Part &part, TokenWriter &writer, int64_t &bytes) const {
    if (!part.any)
      return;
    if (part.startsDocument && bytes && tokenizer->endOfText() >= 0)
      writer.append({tokenizer->endOfText()});
    for (int64_t before : part.documents)
      writer.beginDocument(writer.count() + before);
    writer.append(part.tokens);
    bytes += part.bytes;
  }

  PrepareResult encode(Passes &passes) {
    PrepareResult r;
    r.tokenizer = tokenizer->describe();
    r.vocab = tokenizer->vocabSize();
    r.wide = r.vocab > kNarrowVocab;
    r.separator = tokenizer->text(tokenizer->endOfText());
    const TokenFileKind kind = options.format == "megatron"         ? TokenFileKind::megatron
                               : options.format == "llmc" || r.wide ? TokenFileKind::llmc
                                                                    : TokenFileKind::nanogpt;
    makeFolder(options.outDir);
    const std::string trainPath = options.outDir + "/train.bin", valPath = options.outDir + "/val.bin";
    // Nothing is replaced before all is encoded, so that bad text changes no file.
    TokenWriter trainFile(trainPath, kind, r.wide);
    std::optional<TokenWriter> valFile;
    if (splits || !val.files.empty())
      valFile.emplace(valPath, kind, r.wide);
    const std::vector<Tokenizer> of(passes.threadCount(), *tokenizer);
    auto encodeAll = [&](const CorpusOptions &corpus, bool isVal) {
      passes.run<Encoded>(
          "encoding", isVal ? sizeOfFiles(train) : 0, corpus,
          [&](unsigned thread, const CorpusBlock &block) { return encodeBlock(of[thread], block, corpus, isVal); },
          [&](const CorpusBlock &, const Encoded &e) {
            write(e.train, trainFile, r.trainBytes);
            if (valFile)
              write(e.val, *valFile, r.valBytes);
            r.controlTokens += e.controlTokens;
          });
    };
    encodeAll(train, false);
    if (!r.trainBytes)
      throw UserError(ErrorCode::DataInvalid, "no text is left to train on",
                      "give more text or a smaller --val-fraction");
    if (!val.files.empty())
      encodeAll(val, true);
    trainFile.finish();
    if (valFile)
      valFile->finish();
    AtomicFile tokenizerFile(options.outDir + "/" + tokenizer->file().name);
    tokenizerFile.append(tokenizer->file().content);
    tokenizerFile.finish();
    r.trainTokens = trainFile.count();
    trainFile.commit();
    if (r.valBytes) {
      r.valTokens = valFile->count();
      valFile->commit();
    } else {
      std::error_code ignored;  // a val.bin of an earlier run would not fit this tokenizer
      std::filesystem::remove(valPath, ignored);
      removeMegatronIndex(valPath);
    }
    tokenizerFile.commit();
    r.tokenizerFile = options.outDir + "/" + tokenizer->file().name;
    return r;
  }

  const PrepareOptions &options;
  Wanted wanted;
  CorpusOptions train, val;
  bool splits = false;
  int input = -1;
  std::optional<Tokenizer> tokenizer;
  CharacterSet characters;
  std::vector<int64_t> starts;                               // characters before each block of the training files
  int64_t trainUnits = std::numeric_limits<int64_t>::max();  // characters to train on
};

}  // namespace

unsigned threadsOf(const PrepareOptions &options) {
  return options.threads ? unsigned(options.threads) : usableCpuCount();
}

PrepareResult prepareData(const PrepareOptions &options) {
  const Wanted wanted = parseTokenizer(options.tokenizer);
  if (options.format != "nanogpt" && options.format != "llmc" && options.format != "megatron")
    throw UserError(ErrorCode::Usage, fmt::format("--format {} is not known", options.format),
                    "nanogpt, llmc or megatron");
  if (!(options.valFraction >= 0 && options.valFraction < 1))
    throw UserError(ErrorCode::Usage, fmt::format("--val-fraction {} is out of range", options.valFraction),
                    "at least 0 and below 1");
  return Preparation(options, wanted).run();
}

}  // namespace gptc
