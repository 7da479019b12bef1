#include "tools/serve/serve_command.h"

#include "runtime/launch/stops.h"
#include "support/descriptors.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/stderr.h"
#include "support/words.h"
#include "tools/serve/completions_api.h"
#include "tools/serve/embeddings_api.h"
#include "tools/serve/request_log.h"

#include "llvm/ADT/SmallVector.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace gptc {
namespace {

/// What ends the server: signals, as Stops counts them, and threads that cannot go on. One exists at a time.
class Ending {
public:
  Ending() {
    GPTC_CHECK(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) == 0, "pipe: {}", errno);
    out = pipe[1];
    stops.clear();
    struct sigaction action = {};
    action.sa_handler = [](int number) {
      if (stops.note(number))
        request();
    };
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < std::size(signals); ++i)
      ::sigaction(signals[i], &action, &before[i]);
  }
  ~Ending() {
    for (size_t i = 0; i < std::size(signals); ++i)
      ::sigaction(signals[i], &before[i], nullptr);
    out = -1;
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  Ending(const Ending &) = delete;
  /// From any thread, and from signal handlers.
  static void request() {
    const int saved = errno;
    const char byte = 0;
    if (const int fd = out; fd >= 0 && ::write(fd, &byte, 1) < 0) {
      // The pipe is full: it has been requested.
    }
    errno = saved;
  }
  /// Whether it is requested within so many milliseconds; negative: waits for it.
  bool await(int milliseconds) {
    pollfd p{pipe[0], POLLIN, 0};
    int n = 0;
    do
      n = ::poll(&p, 1, milliseconds);
    while (n < 0 && errno == EINTR);
    char byte = 0;
    return n > 0 && ::read(pipe[0], &byte, 1) == 1;
  }

private:
  static constexpr int signals[] = {SIGTERM, SIGINT};
  static inline std::atomic<int> out = -1;
  static inline Stops stops;
  int pipe[2] = {-1, -1};
  struct sigaction before[std::size(signals)] = {};
};

std::vector<std::string> keysOf(const std::string &file) {
  if (file.empty())
    return {};
  const std::string text = readInput(file, "file of API keys", 1 << 20);
  std::vector<std::string> keys;
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(text).split(lines, '\n');
  for (llvm::StringRef line : lines)
    if (!line.trim().empty())
      keys.push_back(line.trim().str());
  if (keys.empty())
    throw UserError(ErrorCode::Usage, fmt::format("{} has no key", file), "--api-keys wants a file with a key a line");
  return keys;
}

bool isLoopback(llvm::StringRef host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

void addServeOptions(Command c, ServeCommand &o) {
  c.option("--host", o.host, "name or address of the interface; default: 127.0.0.1, which only this machine reaches");
  c.option("--port", o.port, "0: one that is free; default: 8080").within(0, 65535);
  c.option("--api-keys", o.apiKeys, "clients must have a key of this file, which has one a line").type("FILE");
  c.option("--log", o.log, "append a JSON line for each request: when, who, what path, status, seconds; no texts")
      .type("FILE");
  c.option("--model-name", o.modelName, "the model's name for clients; default: that of the plan's folder");
  Option slots = c.option(
      "--slots", o.slots,
      fmt::format("sequences that are continued at once, on CPUs with the same results; default: {}", o.slots));
  slots.within(int64_t(2), int64_t(1024));
  c.option("--queue", o.mostWaiting,
           fmt::format("samples that may wait for a slot, or texts for their vectors; default: {}", o.mostWaiting))
      .within(int64_t(1), int64_t(1) << 20);
  c.option("--connections", o.mostConnections, fmt::format("clients at once; default: {}", o.mostConnections))
      .within(int64_t(1), int64_t(1) << 16);
  c.option(
       "--buffers", o.buffers,
       fmt::format("bytes of requests, and of answers that were not taken yet, of all clients; default: {}", o.buffers))
      .type("BYTES");
  c.option(
       "--drain", o.drainSeconds,
       fmt::format("seconds that requests have to end in after SIGTERM, while their clients take something at least "
                   "every {} s; default: {}",
                   HttpOptions().lastWrite, o.drainSeconds))
      .within(0.0, 86400.0);
  Option embeddings =
      c.flag("--embeddings", o.embeddings, "answer /v1/embeddings, and nothing else: vectors of texts, by any model");
  embeddings.excludes(slots);
  for (Option option : addVectorOptions(c, o.vectors))
    option.needs(embeddings);
}

int64_t buffersOf(const ServeCommand &command) {
  constexpr int64_t least = int64_t(8) << 20;
  const std::optional<int64_t> bytes = parseBytes(command.buffers);
  if (!bytes || *bytes < least)
    throw UserError(ErrorCode::Usage, fmt::format("--buffers {} is no number of bytes from 8MiB on", command.buffers),
                    "as --buffers 256MiB");
  return *bytes;
}

namespace {

/// Says what it serves, and answers until it is to end. `end` ends what requests wait for.
void runServer(OpenAiApi &api, const ServeCommand &command, ByteBudget &bytes, Ending &ending, const std::string &what,
               const std::function<void()> &end) {
  RequestLog log(command.log);
  const std::unique_ptr<HttpServer> server = listenHttp(
      {.host = command.host,
       .port = command.port,
       .mostConnections = command.mostConnections,
       .bytes = &bytes,
       .routes = api.routes(),
       .handler = [&](const HttpRequest &request, HttpClient &client) { return api.answer(request, client); },
       .refuse = [&](int status, const std::string &message) { return api.refuse(status, message); },
       .log =
           [&](const HttpExchange &e) {
             api.log(e);
             log.add(e);
           }});
  const bool isV6 = llvm::StringRef(command.host).contains(':');
  fmt::print("serving {} at http://{}{}{}:{} with {}, up to {} for requests and answers\n", command.modelName,
             isV6 ? "[" : "", command.host, isV6 ? "]" : "", server->port(), what, formatBytes(double(bytes.limit())));
  std::fflush(stdout);

  bool wasStopped = true;
  std::thread serving([&] {
    wasStopped = server->run();
    Ending::request();  // also if it ends by itself
  });
  ending.await(-1);
  api.drain();
  server->drain();
  const auto last = Job::Clock::now() + std::chrono::duration<double>(command.drainSeconds);
  while (server->answering() > 0 && Job::Clock::now() < last && !ending.await(20)) {
  }
  end();
  server->stop();
  serving.join();
  if (!wasStopped)
    throw UserError(ErrorCode::TargetUnavailable, "the system gave the server no more connections, so it ended",
                    "look at the whole system's limits, of open files (fs.file-nr) and memory, and start it again");
}

ApiOptions optionsOf(const ServeCommand &command, ByteBudget &bytes) {
  ApiOptions options{.model = command.modelName,
                     .keys = keysOf(command.apiKeys),
                     .onlyLocal = isLoopback(command.host),
                     .bytes = &bytes};
  if (!options.onlyLocal && options.keys.empty())
    printError("warning: whoever reaches {} may use the model: --api-keys FILE asks for a key\n", command.host);
  return options;
}

}  // namespace

void serve(Executor &executor, const Tokenizer &tokenizer, const ModelTokens &tokens, const ServeCommand &command,
           const CompletionRequest &defaults) {
  raiseDescriptorLimit();
  Ending ending;
  ByteBudget bytes(buffersOf(command));
  ApiOptions options = optionsOf(command, bytes);
  Engine engine(executor, command.generator, command.mostWaiting, bytes, Ending::request, command.ranks);
  const Conversations conversations(tokens);
  if (!conversations.problem().empty() && !tokens.chatTemplate.empty())
    printError("warning: {}\n", conversations.problem());
  CompletionsApi api(engine, tokenizer, conversations, std::move(options), defaults, command.limits);
  runServer(api, command, bytes, ending, fmt::format("{} slots of {} tokens", engine.slots(), command.limits.context),
            [&] { engine.end(); });
  engine.rethrow();
}

void serveEmbeddings(Executor &executor, const Tokenizer &tokenizer, const ServeCommand &command) {
  raiseDescriptorLimit();
  Ending ending;
  ByteBudget bytes(buffersOf(command));
  EmbeddingsApi api(executor, tokenizer, command.vectors, command.mostWaiting, optionsOf(command, bytes),
                    Ending::request);
  runServer(api, command, bytes, ending,
            fmt::format("vectors of {} numbers for texts of up to {} tokens", api.width(), api.context()),
            [&] { api.end(); });
  api.rethrow();
}

}  // namespace gptc
