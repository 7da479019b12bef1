#include "tests/support/whole_run.h"

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

namespace gptc::test {

namespace fs = std::filesystem;

bool everything() {
  static const char *const asked = std::getenv("GPTC_TEST_ALL");
  return asked && *asked && std::string(asked) != "0";
}

namespace {

/// Belongs to this process and is removed with it.
struct OwnFolder {
  OwnFolder() {
    std::string name = testing::TempDir() + "gptc-tests-XXXXXX";
    path = ::mkdtemp(name.data()) ? name : "";
  }
  ~OwnFolder() {
    std::error_code e;
    fs::remove_all(path, e);
  }
  fs::path path;
};

}  // namespace

const std::string &sharedFolder(const std::string &name) {
  static std::mutex lock;
  static std::map<std::string, std::string> folders;
  static OwnFolder own;
  const std::lock_guard guard(lock);
  auto [it, isNew] = folders.try_emplace(name);
  if (isNew) {
    const char *shared = std::getenv("GPTC_TEST_SHARED");
    const fs::path folder = fs::path(shared && *shared ? shared : own.path) / name;
    fs::create_directories(folder);
    fs::permissions(folder, fs::perms::owner_all);
    it->second = folder;
  }
  return it->second;
}

}  // namespace gptc::test
