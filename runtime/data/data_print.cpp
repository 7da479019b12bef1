#include "runtime/data/data_print.h"

#include "codegen/object_cache.h"
#include "runtime/data/training_data.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <pthread.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace gptc {
namespace {

constexpr int kNiceness = 10;  // training comes first

std::string keyOf(const FileStamp &s) { return fmt::format("data-{:x}-{:x}", s.device, s.inode); }
/// Changes with the file's content.
std::string stateOf(const FileStamp &s) { return fmt::format("{} {} {}", s.size, s.modified, s.changed); }

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
  std::vector<FilePrint> all;
  for (const auto &f : files)
    all.push_back({f.at("name"), f.at("tokens"), f.at("blake3"), f.value("first", int64_t(0))});
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
      if (state == stateOf(stamp) && !largest.getAsInteger(10, contents[i].largest))
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
        const std::string record = fmt::format("{}\n{} {}", stateOf(before), found.hash, found.largest);
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
