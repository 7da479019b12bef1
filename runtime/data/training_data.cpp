#include "runtime/data/training_data.h"

#include "runtime/data/megatron_index.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <filesystem>
#include <glob.h>

namespace gptc {

namespace fs = std::filesystem;

namespace {

/// Whether a file's name says that its text is held out from training: as llm.c's fineweb_val_000000.bin.
bool isHeldOut(const std::string &path) {
  constexpr llvm::StringRef words[] = {"val",        "valid",   "validation", "test",   "eval",
                                       "evaluation", "heldout", "dev",        "holdout"};
  const std::string name = llvm::StringRef(fs::path(path).stem().string()).lower();
  llvm::StringRef before;  // with one character between
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end < name.size() && llvm::isAlpha(name[end]))
      ++end;
    const llvm::StringRef word = llvm::StringRef(name).slice(begin, end);
    if (llvm::is_contained(words, word) || ((before == "held" || before == "hold") && word == "out"))
      return true;
    before = word;
    begin = end + 1;
  }
  return false;
}

/// The *.bin of a folder. Throws UserError(DataInvalid) if only some of them are held out: nobody means to train on
/// those, too.
std::vector<std::string> filesInFolder(llvm::StringRef folder, const std::string &key) {
  std::vector<std::string> r;
  std::error_code ignored;
  const llvm::StringRef path = folder.size() > 1 ? folder.rtrim('/') : folder;
  for (fs::directory_iterator it(path.str(), ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (!llvm::StringRef(name).starts_with(".") && llvm::StringRef(name).ends_with(".bin"))
      r.push_back(it->path().string());
  }
  std::sort(r.begin(), r.end());
  const auto other = std::find_if(r.begin(), r.end(), [](const std::string &f) { return isHeldOut(f); });
  const auto first = std::find_if(r.begin(), r.end(), [](const std::string &f) { return !isHeldOut(f); });
  if (other != r.end() && first != r.end())
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{}: {} has {} beside {}: is it to be read, too?", key, folder.str(),
                                fs::path(*other).filename().string(), fs::path(*first).filename().string()),
                    fmt::format("name the files that are meant, with * if they are several: {}/{}", path.str(),
                                fs::path(*first).filename().string()));
  return r;
}

bool exists(const std::string &path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The token file that a name of an index means.
std::string tokenFileOf(const std::string &path) {
  llvm::StringRef name = path;
  const std::string tokens = name.consume_back(".idx") ? name.str() + ".bin" : "";
  return !tokens.empty() && exists(tokens) ? tokens : path;
}

}  // namespace

void TrainingData::changedUnnoticed(const std::string &path, uint32_t largest, int64_t limit) {
  throw UserError(ErrorCode::DataInvalid,
                  fmt::format("{}: it had token {}, beyond the vocabulary of {}, when it was hashed, and has none now",
                              path, largest, limit),
                  "do not change token files while they are in use; touch it, so that it is hashed again");
}

std::vector<std::string> filesOf(const std::string &pattern, const std::string &key) {
  std::error_code ignored;
  const bool folder = fs::is_directory(pattern, ignored);
  if (!folder && exists(pattern))
    return {tokenFileOf(pattern)};  // a file name may contain [ or *
  if (folder)
    if (std::vector<std::string> inside = filesInFolder(pattern, key); !inside.empty())
      return inside;
  if (const std::string tokens = pattern + ".bin"; !megatronIndexBeside(tokens).empty())
    return {tokens};  // Megatron-LM names a data set without the ends of its two files
  glob_t g{};
  std::vector<std::string> r;
  if (!folder && ::glob(pattern.c_str(), 0, nullptr, &g) == 0)
    for (size_t i = 0; i < g.gl_pathc; ++i)
      r.push_back(tokenFileOf(g.gl_pathv[i]));
  ::globfree(&g);
  std::sort(r.begin(), r.end());  // in any locale
  r.erase(std::unique(r.begin(), r.end()), r.end());
  if (r.empty())
    throw UserError(ErrorCode::FileMissing,
                    folder ? fmt::format("{}: no file *.bin in the folder {}", key, pattern)
                           : fmt::format("{}: no file {}", key, pattern),
                    "make token files with `gptc data prepare FILES.. --out DIR`");
  return r;
}

std::string nameInPattern(const std::string &path, const std::string &pattern) {
  llvm::StringRef name = path;
  const llvm::StringRef whole = llvm::StringRef(pattern).rtrim('/');
  if (name.consume_front(whole) && name.consume_front("/") && !name.contains('/'))
    return name.str();  // the pattern is the folder
  name = path;
  const size_t special = path == pattern ? pattern.size() : pattern.find_first_of("*?[\\");
  const size_t slash = pattern.rfind('/', special);
  const llvm::StringRef folder = llvm::StringRef(pattern).take_front(slash == std::string::npos ? 0 : slash + 1);
  return name.consume_front(folder) ? name.str() : path;
}

}  // namespace gptc
