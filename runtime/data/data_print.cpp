#include "runtime/data/data_print.h"

#include "codegen/object_cache.h"
#include "runtime/data/training_data.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json_problem.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <pthread.h>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace gptc {
namespace {

constexpr int kNiceness = 10;  // training comes first

std::string keyOf(const FileStamp &s) { return fmt::format("data-{:x}-{:x}", s.device, s.inode); }
/// Changes with the file's content, and with how it is read: an index beside it makes other tokens of the same bytes.
std::string stateOf(const FileStamp &s, const std::string &reading) {
  return fmt::format("{} {} {} {}", s.size, s.modified, s.changed, reading);
}

/// Two changes in quick succession may leave the same times.
bool isSettled(const FileStamp &s, int64_t now) {
  constexpr int64_t tick = 50'000'000;  // nanoseconds, for clocks that tick at least 100 times a second
  return std::max(s.modified, s.changed) < now - tick;
}

int64_t wallClock() {
  struct timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

[[noreturn]] void invalidPrint(size_t file, const std::string &what) {
  throw std::invalid_argument(fmt::format("data_files[{}]: {}", file, what));
}

/// A number of tokens. nlohmann's own conversion would take 1.5 and true for 1, and 2^63 for a negative number.
int64_t tokensIn(const nlohmann::ordered_json &print, const char *member, size_t file) {
  const nlohmann::ordered_json &v = print.at(member);
  const bool isCount = v.is_number_unsigned() ? v.get<uint64_t>() <= uint64_t(INT64_MAX)
                                              : v.is_number_integer() && v.get<int64_t>() >= 0;
  if (!isCount)
    invalidPrint(file, fmt::format("\"{}\" is {}, no number of tokens", member, shown(v)));
  return v.get<int64_t>();
}

std::string hashIn(const nlohmann::ordered_json &print, size_t file) {
  const auto hash = print.at("blake3").get<std::string>();
  constexpr size_t digits = 64;
  if (hash.size() != digits || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    invalidPrint(file, fmt::format("\"blake3\" is {}, no hash of {} digits", shown(print.at("blake3")), digits));
  return hash;
}

/// Files begin where those before them end, or all at 0 if they are no stream.
void requireOneStream(const std::vector<FilePrint> &files) {
  const bool isStream = std::any_of(files.begin(), files.end(), [](const FilePrint &f) { return f.first > 0; });
  int64_t end = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    if (isStream && files[i].first != end)
      invalidPrint(i, fmt::format("\"first\" is {}, and the files before it end at token {}", files[i].first, end));
    if (files[i].tokens > INT64_MAX - end)
      invalidPrint(i, fmt::format("\"tokens\" is {}, and the files before it have {}: more than 2^63 - 1 in all",
                                  files[i].tokens, end));
    end += files[i].tokens;
  }
}

}  // namespace

std::string DataPrint::str() const {
  std::string text = "data 1\n";
  for (const FilePrint &f : files)
    text += fmt::format("{} {} {} {}{}\n", f.name.size(), f.name, f.tokens, f.hash,
                        f.first > 0 ? fmt::format(" {}", f.first) : "");
  return blake3(text + tokenizer);
}

nlohmann::ordered_json jsonOf(const std::vector<FilePrint> &files) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const FilePrint &f : files) {
    all.push_back({{"name", f.name}, {"tokens", f.tokens}, {"blake3", f.hash}});
    if (f.first > 0)
      all.back()["first"] = f.first;
  }
  return all;
}

std::vector<FilePrint> filePrintsOf(const nlohmann::ordered_json &files) {
  if (!files.is_array())
    throw std::invalid_argument(fmt::format("data_files is {}, no list", shown(files)));
  std::vector<FilePrint> all;
  for (size_t i = 0; i < files.size(); ++i) {
    const nlohmann::ordered_json &f = files[i];
    all.push_back(
        {f.at("name"), tokensIn(f, "tokens", i), hashIn(f, i), f.contains("first") ? tokensIn(f, "first", i) : 0});
  }
  requireOneStream(all);
  return all;
}

std::string differenceOf(const DataPrint &there, const DataPrint &here, llvm::ArrayRef<std::string> paths,
                         const std::string &tokenizer) {
  for (size_t i = 0; i < std::min(there.files.size(), here.files.size()); ++i) {
    const FilePrint &was = there.files[i], &is = here.files[i];
    if (was.name != is.name)
      return fmt::format("{} stands in the place of {}, as file {} of {}", paths[i], was.name, i + 1,
                         here.files.size());
    if (was.tokens != is.tokens)
      return fmt::format("{} has {} tokens and had {}", paths[i], is.tokens, was.tokens);
    if (was.hash != is.hash)
      return fmt::format("{} has other tokens, though as many", paths[i]);
    if (i > 0 && was.first != is.first)
      return fmt::format("{} goes on where {} ends, and its windows come in another order than then", paths[i],
                         paths[i - 1]);
  }
  if (there.files.size() < here.files.size())
    return fmt::format("{} is new: there were {} files and are {}", paths[there.files.size()], there.files.size(),
                       here.files.size());
  if (there.files.size() > here.files.size())
    return fmt::format("{} is missing: there were {} files and are {}", there.files[here.files.size()].name,
                       there.files.size(), here.files.size());
  if (!there.tokenizer.empty() && !here.tokenizer.empty() && there.tokenizer != here.tokenizer)
    return fmt::format("{} is another tokenizer", tokenizer);
  return "";
}

DataHasher::DataHasher(const TrainingData &data, const std::string &tokenizer, const std::string &cacheDir)
    : data(data), tokenizer(tokenizer), cacheDir(cacheDir), contents(data.fileCount()) {
  const ObjectCache cache(cacheDir);
  for (size_t i = 0; i < contents.size(); ++i) {
    const FileStamp stamp = data.stamp(i);
    if (const auto record = cache.read(keyOf(stamp))) {
      const auto [state, content] = llvm::StringRef(record->data(), record->size()).split('\n');
      const auto [hash, largest] = content.split(' ');
      if (state == stateOf(stamp, data.reading(i)) && !largest.getAsInteger(10, contents[i].largest))
        contents[i].hash = hash.str();
    }
    if (contents[i].hash.empty())
      unknown += stamp.size;
  }
}

DataHasher::~DataHasher() {
  givenUp = true;
  if (job.valid())
    job.wait();
}

void DataHasher::begin() {
  constexpr int64_t little = 16 << 20;  // bytes; about 10 ms of work
  if (unknown <= little)
    return hashUnknown();
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);  // the training thread handles signals
  try {
    job = std::async(std::launch::async, [this] {
      pthread_setname_np(pthread_self(), "gptc-hash");
      ::setpriority(PRIO_PROCESS, id_t(::syscall(SYS_gettid)), kNiceness);
      hashUnknown();
    });
  } catch (const std::system_error &) {
    // No thread available: print() does the work.
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

bool DataHasher::ended() const {
  return !job.valid() || job.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void DataHasher::hashUnknown() {
  constexpr int mostTries = 3;
  const ObjectCache cache(cacheDir);
  for (size_t i = 0; i < contents.size(); ++i)
    for (int tries = 1; contents[i].hash.empty() && !givenUp; ++tries) {
      const int64_t now = wallClock();
      const FileStamp before = data.stamp(i);
      const TrainingData::Content found = data.content(i, givenUp);
      if (givenUp)
        return;
      if (data.stamp(i) != before) {
        if (tries < mostTries)
          continue;
        throw UserError(ErrorCode::DataInvalid, fmt::format("{} changes while it is read", data.paths()[i]),
                        "do not change token files while they are in use; run again when it is complete");
      }
      contents[i] = {found.hash, found.largest};
      if (isSettled(before, now)) {
        const std::string record =
            fmt::format("{}\n{} {}", stateOf(before, data.reading(i)), found.hash, found.largest);
        cache.write(keyOf(before), {record.data(), record.size()});
      }
    }
}

DataPrint DataHasher::print() {
  if (job.valid())
    job.get();
  else
    hashUnknown();
  DataPrint r;
  const std::vector<std::string> paths = data.paths(), names = data.names();
  for (size_t i = 0; i < contents.size(); ++i) {
    data.requireLargest(i, contents[i].largest);
    r.files.push_back({names[i], data.tokens(i), contents[i].hash, data.firstToken(i)});
  }
  if (!tokenizer.empty())
    try {
      r.tokenizer = InputFile(tokenizer, "data.tokenizer").hash();
    } catch (const UserError &) {
      // Whoever needs the tokenizer reports it.
    }
  return r;
}

}  // namespace gptc
