#include "supervised.h"
#include "tests/support/eventually.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace faults {
namespace fs = std::filesystem;

namespace {

constexpr auto kBetweenLooks = milliseconds(5);

std::vector<int> allProcesses() {
  std::vector<int> all;
  std::error_code e;
  for (auto &entry : fs::directory_iterator("/proc", e))
    if (const std::string name = entry.path().filename(); name.find_first_not_of("0123456789") == std::string::npos)
      all.push_back(std::stoi(name));
  return all;
}

std::string procFile(int pid, const char *name) { return e2e::readFile("/proc/" + std::to_string(pid) + "/" + name); }

}  // namespace

double secondsSince(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

Stalls::Stalls()
    : looks([this](const std::stop_token &stop) {
        while (!stop.stop_requested()) {
          const auto begin = Clock::now();
          std::this_thread::sleep_for(kBetweenLooks);
          const auto late = Clock::now() - begin - kBetweenLooks;
          if (late > kBetweenLooks)
            us += std::chrono::duration_cast<std::chrono::microseconds>(late).count();
        }
      }) {}

std::vector<int> processesOf(const std::string &folder) {
  std::vector<int> found;
  for (int pid : allProcesses())
    if (pid != ::getpid() && procFile(pid, "cmdline").find(folder) != std::string::npos &&
        procFile(pid, "stat").find(") Z ") == std::string::npos)
      found.push_back(pid);
  return found;
}

std::vector<std::string> sharedMemory() {
  std::vector<std::string> names;
  std::error_code e;
  for (auto &entry : fs::directory_iterator("/dev/shm", e))
    names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> Place::environment() {
  fs::create_directories(path("tmp"));
  return {{"TMPDIR", path("tmp")}};
}

void Place::expectNothingLeft(const std::string &when) {
  // The kernel takes a moment to end the ranks of a killed launcher.
  gptc::test::eventually([&] { return processesOf(path("")).empty(); }, std::chrono::seconds(30));
  for (int pid : processesOf(path(""))) {
    ADD_FAILURE() << when << ": process " << pid << " is left: " << procFile(pid, "cmdline");
    ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(sharedMemory(), sharedBefore) << when;
  std::error_code e;
  for (auto &entry : fs::directory_iterator(path("tmp"), e))
    ADD_FAILURE() << when << ": " << entry.path() << " is left";
}

Supervised::Supervised(Place &place, std::vector<std::string> args, const std::map<std::string, std::string> &env)
    : file(place.path("output-of-supervised")) {
  std::map<std::string, std::string> all = place.environment();
  all["GPTC_CACHE"] = e2e::cacheDir();
  for (auto &[name, value] : env)
    all[name] = value;
  args.insert(args.begin(), std::string(GPTC_BIN_DIR) + "/gptrun");
  fs::remove(file);
  process = std::make_unique<e2e::Process>(args, all, file);
}

const std::string &Supervised::output() {
  std::ifstream in(file, std::ios::binary);
  in.seekg(std::streamoff(text.size()));
  text.append(std::istreambuf_iterator<char>(in), {});
  return text;
}

bool Supervised::ended() { return procFile(pid(), "stat").find(") Z ") != std::string::npos; }

size_t Supervised::waitFor(const std::string &what, size_t from) {
  for (;; std::this_thread::sleep_for(kBetweenLooks)) {
    const bool last = ended();
    if (const size_t at = output().find(what, from); at != std::string::npos)
      return at;
    if (last)
      return std::string::npos;
  }
}

long Supervised::lastStep(size_t from) {
  output();
  for (size_t at = text.size(); (at = text.rfind("\nstep ", at)) != std::string::npos && at >= from; --at) {
    char *end = nullptr;
    const long step = std::strtol(text.c_str() + at + 6, &end, 10);
    if (*end == '/' && text.find('\n', at + 1) != std::string::npos)
      return step;
    if (at == 0)
      break;
  }
  return -1;
}

bool Supervised::waitForStep(long step, size_t from) {
  for (;; std::this_thread::sleep_for(kBetweenLooks)) {
    const bool last = ended();
    if (lastStep(from) >= step)
      return true;
    if (last)
      return false;
  }
}

void Supervised::signal(int rank, int number) const {
  const std::map<int, int> now = ranks();
  const auto it = now.find(rank);
  ASSERT_NE(it, now.end()) << "rank " << rank << " does not run";
  ::kill(it->second, number);
}

std::map<int, int> Supervised::ranks() const {
  std::map<int, int> found;
  for (int p : allProcesses()) {
    const std::string status = procFile(p, "stat");
    const size_t behindName = status.rfind(") ");
    if (behindName == std::string::npos || status.compare(behindName + 2, 1, "Z") == 0 ||
        std::atoi(status.c_str() + behindName + 4) != pid())
      continue;
    const std::string env = std::string(1, '\0') + procFile(p, "environ");
    if (const size_t at = env.find(std::string("\0GPTC_RANK=", 11)); at != std::string::npos)
      found[std::atoi(env.c_str() + at + 11)] = p;
  }
  return found;
}

}  // namespace faults
