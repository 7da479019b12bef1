#include "frontends/corpus.h"

#include "frontends/tokenizer/utf8.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr size_t kBlock = 1 << 20;    // bytes
constexpr size_t kLargest = 1 << 28;  // bytes of a document that cannot be cut

bool isLetter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

UserError damaged(const std::string &file, int64_t line, const std::string &why, const std::string &help) {
  return {ErrorCode::DataInvalid, fmt::format("{}:{}: {}", nameOfInput(file), line, why), help};
}

bool namedJsonLines(const std::string &file) {
  llvm::StringRef name = file;
  if (!name.consume_back(".gz"))
    name.consume_back(".zst");
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

bool isJsonObject(std::string_view line) { return parseJsonOrDiscard(line).is_object(); }

/// Finds the text of one member of an object without building the rest.
struct MemberReader : nlohmann::json_sax<nlohmann::json> {
  MemberReader(const std::string &name, std::string &text) : name(name), text(text) {}
  const std::string &name;
  std::string &text;
  int depth = 0;
  bool wanted = false, found = false, isObject = false;
  std::string problem;

  bool scalar() {
    if (depth == 1 && wanted)
      problem = fmt::format("its \"{}\" is no text", name);
    wanted = false;
    return true;
  }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t &) override { return scalar(); }
  bool binary(binary_t &) override { return scalar(); }
  bool string(string_t &v) override {
    if (depth == 1 && wanted) {
      text = std::move(v);
      found = true;
      wanted = false;
    }
    return true;
  }
  bool begin() {
    scalar();
    ++depth;
    return true;
  }
  bool start_object(std::size_t) override {
    isObject = isObject || depth == 0;
    return begin();
  }
  bool start_array(std::size_t) override { return begin(); }
  bool end_object() override {
    --depth;
    return true;
  }
  bool end_array() override {
    --depth;
    return true;
  }
  bool key(string_t &k) override {
    wanted = depth == 1 && k == name;
    return true;
  }
  bool parse_error(std::size_t, const std::string &, const nlohmann::detail::exception &e) override {
    const llvm::StringRef what = e.what();
    problem = "no JSON: " + what.substr(what.find(": ") + 2).str();
    return false;
  }
};

}  // namespace

std::string nameOfInput(const std::string &file) { return file == "-" ? "standard input" : file; }

CorpusReader::CorpusReader(const CorpusOptions &options) : options(options) {}

void CorpusReader::open() {
  const std::string &name = options.files[file];
  int fd;
  if (name == "-") {
    fd = ::dup(options.standardInput);
  } else {
    const OpenedFile opened = openRegularFile(name);
    fd = opened.fd;
    if (std::error_code e; opened.error == EINVAL && std::filesystem::is_fifo(name, e))
      throw UserError(ErrorCode::FileMissing, fmt::format("cannot read text file {}: {}", name, opened.why),
                      fmt::format("name - instead, and give it as standard input: gptc data prepare - ... < {}", name));
    if (fd < 0)
      readInput(name, "text file");  // throws: it cannot be opened
  }
  source = openSource(fd);
  pending.clear();
  ended = false;
  first = true;
  offset = 0;
  line = 1;
  fill(kBlock);
  jsonLines = options.keyGiven || namedJsonLines(name);
  if (name == "-" && !jsonLines && llvm::StringRef(pending).ltrim().starts_with("{"))
    jsonLines = isJsonObject(llvm::StringRef(pending).ltrim().split('\n').first);
  if (pending.empty())
    throw UserError(ErrorCode::DataInvalid,
                    name == "-" ? "standard input is empty" : fmt::format("text file {} is empty", name),
                    "leave it out, or fill it");
}

/// Reads until `bytes` are pending, or the file ends.
void CorpusReader::fill(size_t bytes) {
  if (ended || pending.size() >= bytes)
    return;
  size_t have = pending.size();
  pending.resize(bytes);
  int64_t n = 1;
  for (; have < bytes && n > 0; have += size_t(std::max<int64_t>(n, 0)))
    n = source->read(pending.data() + have, int64_t(bytes - have));
  pending.resize(have);
  if (n < 0)
    throw damaged(options.files[file], line + std::count(pending.begin(), pending.end(), '\n'), source->why,
                  "get the file again");
  ended = n == 0;
}

/// Length of the longest piece of a text that may be cut off; 0 if there is none.
size_t CorpusReader::cutOf(std::string_view text) const {
  if (jsonLines) {
    const size_t at = text.rfind('\n');
    return at == std::string_view::npos ? 0 : at + 1;
  }
  switch (options.cut) {
  case CutPoint::nowhere:
    return 0;
  case CutPoint::anywhere: {
    size_t at = text.size();
    // Back to where a character may begin.
    for (int n = 0; !options.anyBytes && n < 4 && at > 0 && (uint8_t(text[at - 1]) & 0xc0) == 0x80; ++n)
      --at;
    if (!options.anyBytes && at > 0 && uint8_t(text[at - 1]) >= 0xc0)
      --at;
    return at ? at : text.size();
  }
  case CutPoint::beforeLineFeed:
  case CutPoint::beforeSpace: {
    const char after = options.cut == CutPoint::beforeLineFeed ? '\n' : ' ';
    for (size_t at = text.rfind(after); at != std::string_view::npos && at > 0; at = text.rfind(after, at - 1))
      if (isLetter(text[at - 1]))
        return at;
    return 0;
  }
  }
  GPTC_UNREACHABLE("cut point {}", int(options.cut));
}

bool CorpusReader::next(CorpusBlock &block) {
  while (!source) {
    if (file == options.files.size())
      return false;
    open();
  }
  size_t length = 0;
  for (size_t want = kBlock; !length; want *= 2) {
    fill(want);
    length = ended ? pending.size() : cutOf(pending);
    if (!length && want >= kLargest)
      throw UserError(ErrorCode::TooLarge,
                      fmt::format("{}:{}: a document of more than 256 MiB, which this tokenizer cannot take in pieces",
                                  nameOfInput(options.files[file]), line),
                      "cut it into several documents");
  }
  // A file that ends within what was read is cut too where it is longer than a block.
  if (ended && length > kBlock)
    if (const size_t cut = cutOf(std::string_view(pending).substr(0, kBlock)))
      length = cut;
  block = {};
  block.number = number++;
  block.file = file;
  block.jsonLines = jsonLines;
  block.startsDocument = first;
  block.endsDocument = ended && length == pending.size();
  block.offset = offset;
  block.line = line;
  block.text = pending.substr(0, length);
  pending.erase(0, length);
  first = false;
  offset += int64_t(length);
  line += std::count(block.text.begin(), block.text.end(), '\n');
  if (block.endsDocument) {
    done += source->consumed();
    source.reset();
    ++file;
  }
  return true;
}

void forDocuments(const CorpusBlock &block, const CorpusOptions &options,
                  const std::function<void(std::string &text)> &document) {
  int64_t line = block.line;
  std::string text;
  for (llvm::StringRef rest = block.text; !rest.empty(); ++line) {
    const auto [entry, after] = rest.split('\n');
    rest = after;
    if (entry.trim().empty())
      continue;
    MemberReader reader(options.key, text);
    nlohmann::json::sax_parse(entry.begin(), entry.end(), &reader);
    if (reader.problem.empty() && !reader.isObject)
      reader.problem = "no JSON object";
    if (reader.problem.empty() && !reader.found)
      reader.problem = fmt::format("no \"{}\"", options.key);
    if (!reader.problem.empty())
      throw damaged(options.files[block.file], line, reader.problem,
                    fmt::format("each line is a JSON object with a member \"{}\"; --key names another", options.key));
    document(text);
  }
}

void requireUtf8(const CorpusBlock &block, const CorpusOptions &options) {
  const std::string &text = block.text;
  if (options.anyBytes)
    return;
  if (const size_t at = findInvalidUtf8(text); at != std::string::npos)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{} is no UTF-8 text: byte {:#04x} at offset {} (line {})",
                                nameOfInput(options.files[block.file]), uint8_t(text[at]), block.offset + int64_t(at),
                                block.line + std::count(text.begin(), text.begin() + int64_t(at), '\n')),
                    "convert it, for example `iconv -f latin1 -t utf8`, or use --tokenizer byte");
}

int64_t sizeOfFiles(const CorpusOptions &options) {
  int64_t sum = 0;
  for (const std::string &name : options.files) {
    struct stat s{};
    if ((name == "-" ? ::fstat(options.standardInput, &s) : ::stat(name.c_str(), &s)) != 0 || !S_ISREG(s.st_mode))
      return 0;
    sum += s.st_size;
  }
  return sum;
}

int keepStandardInput(const std::string &folder) {
  std::string name = folder + "/stdin.XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0)
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot write in {}: {}", folder, strerror(errno)),
                    "choose a folder you may write to");
  ::unlink(name.c_str());
  std::string buffer(kBlock, '\0');
  for (ssize_t n; (n = ::read(STDIN_FILENO, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      throw UserError(ErrorCode::FileMissing, fmt::format("cannot read standard input: {}", strerror(errno)));
    appendAll(fd, name, {buffer.data(), size_t(n)});
  }
  return fd;
}

}  // namespace gptc
