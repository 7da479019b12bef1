#include "tools/serve/embed_command.h"

#include "frontends/hf_pooling.h"
#include "support/atomic_file.h"
#include "support/diagnostics.h"
#include "support/stderr.h"
#include "tools/serve/lines.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iterator>

namespace gptc {

namespace {

using Clock = std::chrono::steady_clock;

/// An array f32[rows, columns] in the format of numpy.save (NEP 1), whose number of rows is known at its end.
class NumpyFile {
public:
  NumpyFile(const std::string &path, int64_t columns) : columns(columns), file(path) { file.append(header(0)); }
  void add(const std::vector<float> &row) {
    file.append({reinterpret_cast<const char *>(row.data()), row.size() * sizeof(float)});
    ++rows;
  }
  void commit() {
    file.writeAt(0, header(rows));
    file.commit();
  }

private:
  std::string header(int64_t count) const {
    constexpr size_t bytes = 128;
    std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", count, columns);
    const std::string magic("\x93NUMPY\x01\x00\x76\x00", 10);  // version 1.0; 118 more bytes
    text.resize(bytes - magic.size() - 1, ' ');
    return magic + text + '\n';
  }
  const int64_t columns;
  int64_t rows = 0;
  AtomicFile file;
};

class Embedding {
public:
  Embedding(Executor &executor, const Tokenizer &tokenizer, const EmbedCommand &command)
      : embedder(executor), tokenizer(tokenizer), command(command), batch(size_t(command.batch)),
        most(command.vectors.longest(embedder.context())) {}

  void run() {
    if (!command.out.empty())
      file.emplace(command.out, embedder.width());
    if (command.time)
      embedder.prepare();
    if (command.text)
      addText(*command.text, "the text");
    else
      stream();
    writeAll();
    if (file)
      file->commit();
    if (shortened)
      printError("note: {} text{} cut to {} tokens\n", shortened, shortened == 1 ? "" : "s", most);
    if (const double seconds = std::chrono::duration<double>(spent).count(); command.time)
      printError("{} texts of {} tokens; {} after the first batch in {:.3f} s: {:.1f} texts/s\n", written, tokens,
                 timed, seconds, timed ? double(timed) / std::max(1e-9, seconds) : 0);
  }

private:
  void addText(const std::string &text, const std::string &what) {
    std::vector<int32_t> all;
    size_t behind = 0;  // tokens that the tokenizer puts behind the text
    try {
      all = tokensToEmbed(tokenizer, text, command.vectors);
      if (int64_t(all.size()) > most)
        behind = all.size() - tokensToEmbed(tokenizer, text, command.vectors, true).size();
    } catch (const UserError &e) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}: {}", what, e.diagnostics[0].message));
    }
    if (all.empty())
      throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no tokens", what), "leave it out");
    if (int64_t(all.size()) > most) {  // as if its end were not there
      const auto kept = std::min(behind, size_t(most));
      all.erase(all.begin() + (most - int64_t(kept)), all.end() - int64_t(kept));
      ++shortened;
    }
    texts.push_back(std::move(all));
  }

  bool addLine(Lines &lines) {
    const std::optional<std::string> line = lines.next();
    if (line)
      addText(*line, fmt::format("{}, line {}", lines.name(), ++number));
    return line.has_value();
  }

  /// Vectors of texts that are there are made before any other is waited for. Those before a bad line are written.
  void stream() {
    Lines lines(command.texts, "--texts FILE wants a file with a text a line");
    auto next = [&] {
      try {
        return addLine(lines);
      } catch (...) {
        writeAll();
        throw;
      }
    };
    while (!std::ferror(stdout) && next())
      if (texts.size() == batch || !lines.ready())
        writeAll();
  }

  void writeAll() {
    for (size_t i = 0; i < texts.size(); i += batch) {
      const llvm::ArrayRef<std::vector<int32_t>> some =
          llvm::ArrayRef(texts).slice(i, std::min(batch, texts.size() - i));
      const Clock::time_point begin = Clock::now();
      const auto vectors = embedder.embed(some, command.vectors.how, command.vectors.normalized);
      if (written) {
        spent += Clock::now() - begin;
        timed += int64_t(some.size());
      }
      for (size_t j = 0; j < some.size(); ++j)
        write(some[j], vectors[j]);
    }
    texts.clear();
    std::fflush(stdout);
  }

  void write(const std::vector<int32_t> &text, const std::vector<float> &vector) {
    tokens += int64_t(text.size());
    if (file) {
      ++written;
      return file->add(vector);
    }
    const std::string line =
        fmt::format("{{\"text\":{},\"tokens\":{},\"vector\":{}}}\n", written++, text.size(), numbersOf(vector));
    std::fwrite(line.data(), 1, line.size(), stdout);
  }

  Embedder embedder;
  const Tokenizer &tokenizer;
  const EmbedCommand &command;
  const size_t batch;
  const int64_t most;
  std::optional<NumpyFile> file;
  std::vector<std::vector<int32_t>> texts;  // whose vectors are not made yet
  int64_t number = 0, written = 0, tokens = 0, shortened = 0, timed = 0;
  Clock::duration spent{};
};

}  // namespace

std::vector<Option> addVectorOptions(Command command, VectorChoice &choice) {
  const Option pooling = command
                             .option("--pooling", choice.pooling,
                                     "the vector of a text is the mean of its tokens', or that of the first or last; "
                                     "default: what the model's folder says (modules.json), else mean")
                             .oneOf({"mean", "cls", "last"});
  const Option normalize = command.flag("--normalize", choice.normalize, "vectors of length 1");
  const Option keep =
      command.flag("--keep-length", choice.keepLength, "vectors not of length 1, whatever the folder says")
          .excludes(normalize);
  return {pooling, normalize, keep};
}

void addEmbedOptions(Command embed, EmbedCommand &command) {
  const Option text = embed.option("--text", command.text, "the text");
  embed.option("--texts", command.texts, "every line of a file; -: of standard input").type("FILE").excludes(text);
  addVectorOptions(embed, command.vectors);
  embed.option("--out", command.out, "write an array of all vectors, for numpy.load; default: JSON lines")
      .type("FILE.npy");
  embed
      .option("--batch", command.batch,
              fmt::format("texts whose vectors are made together, with the same results; default: {}", command.batch))
      .within(int64_t(1), int64_t(1) << 20);
  embed.flag("--time", command.time, "say at the end how many texts came in a second, after the first batch");
}

void requireTexts(const EmbedCommand &command) {
  if (!command.text && command.texts.empty())
    throw UserError(ErrorCode::Usage, "which texts?", "give --text TEXT, or --texts FILE with a text a line");
}

void VectorChoice::settle(const std::string &model) {
  HfPooling said;
  std::error_code e;
  if (std::filesystem::is_directory(model, e))
    said = readHfPooling(model, pooling.empty());
  how = *poolingOf(!pooling.empty() ? pooling : said.pooling.value_or("mean"));
  normalized = normalize || (said.normalized && !keepLength);
  most = said.mostTokens;
  prompt = said.prompt;
  printError("note: vectors are {}{} (--pooling, --normalize)\n",
             how == Pooling::mean  ? "the mean of a text's tokens"
             : how == Pooling::cls ? "those of a text's first token"
                                   : "those of a text's last token",
             normalized ? ", of length 1" : "");
  if (!prompt.empty())
    printError("note: each text stands behind {:?}, as the folder says\n", prompt);
}

std::string numbersOf(const std::vector<float> &vector) {
  std::string out = "[";
  for (size_t x = 0; x < vector.size(); ++x)
    fmt::format_to(std::back_inserter(out), "{}{}", x ? "," : "", vector[x]);
  return out + "]";
}

std::vector<int32_t> tokensToEmbed(const Tokenizer &tokenizer, const std::string &text, const VectorChoice &choice,
                                   bool continued) {
  std::vector<int32_t> tokens;
  tokenizer.encode(choice.prompt + text, tokens,
                   {.parseSpecial = choice.parseSpecial, .addSpecial = true, .continued = continued});
  return tokens;
}

void embedTexts(Executor &executor, const Tokenizer &tokenizer, const EmbedCommand &command) {
  Embedding(executor, tokenizer, command).run();
}

}  // namespace gptc
