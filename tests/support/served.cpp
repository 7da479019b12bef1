#include "tests/support/served.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <thread>

namespace e2e {

namespace {

std::vector<std::string> commandOf(std::vector<std::string> args) {
  args.insert(args.begin(), {std::string(GPTC_BIN_DIR) + "/gptrun", "serve"});
  args.insert(args.end(), {"--port", "0"});
  return args;
}

/// What another server printed there must not be taken for this one's.
std::string emptied(const std::string &file) {
  std::filesystem::remove(file);
  return file;
}

std::map<std::string, std::string> withCache(std::map<std::string, std::string> env) {
  env.try_emplace("GPTC_CACHE", cacheDir());
  return env;
}

}  // namespace

bool Served::isBuilt() { return std::filesystem::exists(std::string(GPTC_BIN_DIR) + "/libgptc_http.so"); }

Served::Served(std::vector<std::string> args, const std::string &output, std::map<std::string, std::string> env)
    : outputFile(emptied(output)), child(commandOf(std::move(args)), withCache(std::move(env)), output) {
  const std::regex line("serving [^ ]+ at http://[^ ]*:(\\d+) with");
  std::string text;
  for (std::smatch m;;) {
    const bool hasEnded = child.hasEnded();
    text = readFile(outputFile);
    if (std::regex_search(text, m, line)) {
      boundPort = std::stoi(m[1]);
      return;
    }
    if (hasEnded)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << text;
}

Result Served::stop(int signal) {
  ::kill(child.pid(), signal);
  return child.wait();
}

}  // namespace e2e
