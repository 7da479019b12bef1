#include "runtime/checkpoint/checkpoint_saver.h"

#include "runtime/checkpoint/file_layout.h"
#include "runtime/checkpoint/state.h"
#include "runtime/collectives/communicator.h"
#include "runtime/device/executor.h"
#include "runtime/launch/pulse.h"
#include "runtime/plan/manifest.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "support/words.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace gptc {
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr size_t kBlock = 1 << 20;  // bytes; hashed while still in the cache; each block is a sign of life
constexpr int kNiceness = 10;       // training comes first

/// Thrown when a save is abandoned: this process ends, or rank 0 has given it up and removed the folder.
struct GivenUp {};

UserError filesDiffer(int64_t rank, const std::string &what) {
  return UserError(ErrorCode::RanksDiffer, fmt::format("rank {} {}", rank, what),
                   "all ranks must see the same files: choose an out_dir on a file system that all machines share");
}

/// Waits until the path exists, because some network file systems show new files to other machines late.
bool appears(const std::string &path) {
  constexpr auto most = std::chrono::seconds(5);
  std::error_code e;
  for (const auto until = std::chrono::steady_clock::now() + most; !fs::exists(path, e);) {
    if (std::chrono::steady_clock::now() > until)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

std::string writeText(const std::string &path, const std::string &text) {
  writeSynced(path, text);
  return blake3(text);
}

int64_t bytesOf(const Module &m) {
  int64_t bytes = 0;
  for (const bool parameters : {true, false})
    for (const State *s : savedStates(m, parameters))
      bytes += wholeType(*s).elements() * int64_t(sizeOf(s->type.dtype));
  return bytes;
}

}  // namespace

CheckpointSaver::CheckpointSaver(Executor &executor, const CheckpointStore &store, bool beside,
                                 const HfFiles &described)
    : executor(executor), store(store), beside(beside), described(described),
      rank(executor.ranks ? executor.ranks->rank : 0), world(executor.ranks ? executor.ranks->world : 1),
      owned(OwnedFiles::of(executor.planned(), rank, beside)), scratch(owned.largestGathered), checksums(world) {
  GPTC_CHECK(world == Mesh::of(executor.planned()).ranks(), "{} ranks save for a plan of {}", world,
             Mesh::of(executor.planned()).ranks());
  if (const int64_t room = availableMemory(); owned.copyBytes > room)
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("to save checkpoints takes {} of memory beside the plan's, and {} are available",
                                formatBytes(double(owned.copyBytes)), formatBytes(double(room))),
                    beside ? "checkpoint.async = false, or end other programs" : "end other programs");
  if (owned.copyBytes)
    memory.emplace(owned.copyBytes, &executor.threads());
}

CheckpointSaver::~CheckpointSaver() {
  givenUp = true;
  if (job.valid())
    job.wait();
}

void CheckpointSaver::start(const CheckpointInfo &what, int64_t toKeep) {
  finish();
  info = what;
  keep = toKeep;
  if (rank == 0) {
    int64_t bytes = bytesOf(executor.planned());
    for (const auto &[name, text] : described)
      bytes += int64_t(text.size());
    store.requireSpace(bytes);
    dir.emplace(store.pathOf(info.step));
    makeFolder(dir->file(kStateFolder));
  }
  if (executor.ranks)
    executor.ranks->barrier();
  folder = AtomicDir::temporaryOf(store.pathOf(info.step));
  if (rank != 0 && !appears(fmt::format("{}/{}", folder, kStateFolder)))
    throw filesDiffer(rank, fmt::format("does not see {}, which rank 0 has made", folder));
  gatherStates();
}

void CheckpointSaver::begin(const CheckpointInfo &what, int64_t toKeep) {
  if (!beside)
    return save(what, toKeep);
  start(what, toKeep);
  copyStates();
  phase = Phase::writing;
  launch(&CheckpointSaver::writeCopies);
}

void CheckpointSaver::save(const CheckpointInfo &what, int64_t toKeep) {
  start(what, toKeep);
  phase = Phase::writing;
  try {
    writeOwn(false);
  } catch (const GivenUp &) {
  } catch (...) {
    phase = Phase::idle;
    dir.reset();
    throw;
  }
  phase = Phase::written;
  finish();
}

bool CheckpointSaver::written() {
  if (job.valid() && job.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    const Phase next = phase == Phase::writing && world > 1 ? Phase::written : Phase::idle;
    phase = Phase::idle;  // in case of an error
    try {
      job.get();
    } catch (...) {
      dir.reset();
      throw;
    }
    phase = next;
  }
  return phase != Phase::writing;
}

void CheckpointSaver::proceed() {
  GPTC_CHECK(phase != Phase::writing, "a checkpoint is completed before it is written");
  if (phase != Phase::written)
    return;
  phase = Phase::idle;
  const Checksums own = checksums[rank];
  if (executor.ranks)
    executor.ranks->run(
        {{Collective::Kind::all_gather, &own, checksums.data(), sizeof own / sizeof(uint32_t), DType::u32}},
        SumOrder::fast);
  if (rank != 0)
    return;
  phase = Phase::completing;
  launch(&CheckpointSaver::complete);
}

void CheckpointSaver::finish() {
  auto wait = [&] {
    if (job.valid())
      job.wait();
    written();
  };
  wait();
  proceed();
  wait();
  // Completion must hold for all ranks.
  if (executor.ranks)
    executor.ranks->barrier();
}

/// Runs `work` on a thread of low priority, so that training has the CPUs.
void CheckpointSaver::launch(void (CheckpointSaver::*work)()) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);  // the training thread handles signals
  try {
    job = std::async(std::launch::async, [this, work] {
      pthread_setname_np(pthread_self(), "gptc-save");
      ::setpriority(PRIO_PROCESS, id_t(::syscall(SYS_gettid)), kNiceness);
      try {
        (this->*work)();
      } catch (const GivenUp &) {
      }
    });
  } catch (const std::system_error &) {
    (this->*work)();  // no thread available: run it here
    std::promise<void> done;
    done.set_value();
    job = done.get_future();
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void CheckpointSaver::gatherStates() {
  for (const State *s : owned.gathered) {
    char *to = scratch.data();
    for (const OwnedFile::Part &p : owned.files[0].parts)
      if (p.state == s)
        to = copyOf(p);
    loadWhole(executor, *s, to);
    Pulse::get().goesOn();
  }
}

void CheckpointSaver::copyStates() {
  for (const OwnedFile &file : owned.files)
    for (const OwnedFile::Part &p : file.parts) {
      if (p.gathered)
        continue;
      const StateView view = executor.view(*p.source, StateAccess::read);
      struct Copy {
        const char *from;
        char *to;
        int64_t bytes;
      } copy{view.as<char>(), copyOf(p), p.type().bytes()};
      executor.threads().run((copy.bytes + int64_t(kBlock) - 1) / int64_t(kBlock),
                             [](void *arg, int64_t begin, int64_t end) {
                               const Copy &c = *static_cast<Copy *>(arg);
                               const int64_t from = begin * int64_t(kBlock),
                                             to = std::min(end * int64_t(kBlock), c.bytes);
                               std::memcpy(c.to + from, c.from + from, to - from);
                             },
                             &copy);
      Pulse::get().goesOn();
    }
}

void CheckpointSaver::writeCopies() {
  writeOwn(true);
  if (world == 1)
    complete();
}

void CheckpointSaver::writeOwn(bool copied) {
  checksums[rank] = {};
  try {
    for (const OwnedFile &file : owned.files)
      if (!file.name.empty())
        write(file, copied);
  } catch (const UserError &) {
    // Rank 0 has removed the folder and reports the error; this rank hears of it at the next collective.
    if (std::error_code e; rank != 0 && !fs::exists(folder, e))
      throw GivenUp();
    throw;
  }
}

void CheckpointSaver::write(const OwnedFile &file, bool copied) {
  std::vector<TensorInfo> infos;
  std::map<std::string, std::string> words = {{"format", "pt"}};
  for (const OwnedFile::Part &p : file.parts)
    for (const FileTensor &t : fileTensors(*p.state)) {
      if (t.place) {  // more rows of a tensor that states share
        GPTC_CHECK(!infos.empty() && infos.back().name == t.info.name, "@{} stands alone", p.state->name);
        infos.back().shape[0] += t.info.shape[0];
        continue;
      }
      infos.push_back(t.info);
      if (p.piece) {
        infos.back().shape = p.piece->ownShape();
        words[pieceKey(t.info.name)] = p.piece->str();
      }
    }
  SafetensorsWriter writer(folder + "/" + file.name, infos, words);
  auto put = [&](const char *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += kBlock) {
      if (givenUp)
        throw GivenUp();
      writer.write(data + at, std::min(kBlock, bytes - at));
      Pulse::get().goesOn();
    }
  };
  std::vector<char> dense, tensor;
  for (const OwnedFile::Part &p : file.parts) {
    const Type type = p.type();
    const int64_t size = sizeOf(type.dtype);
    std::optional<StateView> view;
    if (!copied && !p.gathered)
      view.emplace(executor, *p.source, StateAccess::read);
    const char *data = view ? view->as<char>() : copyOf(p);
    if (p.piece) {
      std::vector<int64_t> extents;
      for (const Dim &d : type.dims)
        extents.push_back(d.padded);
      dense.clear();
      p.piece->forEachRun(extents, [&](int64_t, int64_t from, int64_t n) {
        dense.insert(dense.end(), data + from * size, data + (from + n) * size);
      });
      put(dense.data(), dense.size());
      continue;
    }
    if (!isDense(type)) {
      dense.resize(type.elements() * size);
      copyFromPadded(type, data, dense.data());
      data = dense.data();
    }
    for (const FileTensor &t : fileTensors(*p.state)) {
      if (isWhole(*p.state, t)) {
        put(data, t.info.bytes());
        continue;
      }
      tensor.resize(t.info.bytes());
      toFile(*p.state, t, data, tensor.data());
      put(tensor.data(), tensor.size());
    }
  }
  const std::string checksum = writer.finish();
  auto &own = checksums[rank][&file - owned.files.data()];
  GPTC_CHECK(checksum.size() == own.size(), "a checksum of {} digits", checksum.size());
  std::copy(checksum.begin(), checksum.end(), own.begin());
}

void CheckpointSaver::complete() {
  const Module &m = executor.planned();
  std::map<std::string, std::string> files;  // with their checksums
  json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  int64_t total = 0;
  if (std::error_code e; !fs::exists(dir->path(), e))
    throw UserError(ErrorCode::Unwritable, fmt::format("{} has gone while it was written", dir->path()),
                    "leave the folder of a run alone while it runs");
  for (const bool parameters : {true, false}) {
    const Ownership owners(m, parameters);
    for (int64_t r = 0; r < world; ++r) {
      const std::string name = owners.fileOf(r);
      if (name.empty())
        continue;
      if (!appears(dir->file(name)))
        throw filesDiffer(r, fmt::format("has written {} somewhere else than in {}", name, dir->path()));
      const auto &sum = checksums[r][parameters ? 0 : 1];
      files[name] = std::string(sum.begin(), sum.end());
      for (size_t i = 0; parameters && i < owners.states.size(); ++i)
        if (owners.writes(i, r))
          for (const FileTensor &t : fileTensors(*owners.states[i])) {
            index["weight_map"][t.info.name] = name;
            total += t.info.bytes();
          }
    }
  }
  index["metadata"]["total_size"] = total;
  if (world > 1)
    files[kIndexFile] = writeText(dir->file(kIndexFile), index.dump(2) + "\n");
  for (const auto &[name, text] : described)
    files[name] = writeText(dir->file(name), text);
  syncDir(dir->file(kStateFolder));
  store.complete(*dir, info, m, files);
  dir.reset();
  // Before old ones go, so that no link ever leads to one that has gone.
  if (std::string problem = store.updateLinks(); !problem.empty())
    problemOfLinks = std::move(problem);
  if (keep > 0)
    store.prune(keep, info.ownPlans());
}

std::string CheckpointSaver::takeProblemOfLinks() {
  return job.valid() ? "" : std::exchange(problemOfLinks, "");  // the thread sets it
}

}  // namespace gptc
