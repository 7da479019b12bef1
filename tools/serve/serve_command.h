// `gptrun serve`: answers over HTTP.
#pragma once

#include "frontends/hf_folder.h"
#include "tools/commands/command_line.h"
#include "tools/serve/completion_request.h"
#include "tools/serve/embed_command.h"

#include "runtime/serve/generator.h"

#include <string>

namespace gptc {

class Communicator;

struct ServeCommand {
  std::string host = "127.0.0.1";
  int port = 8080;        // 0: one that is free
  std::string apiKeys;    // a file with a key a line; "": anyone may ask
  std::string modelName;  // for clients
  std::string log;        // a file with a line for each request; "": none
  int64_t slots = 8;
  int64_t mostWaiting = 1024, mostConnections = 2048;
  std::string buffers = "256MiB";  // what it holds for all clients together, at least 8 MiB
  double drainSeconds = 30;
  GeneratorOptions generator;
  PromptLimits limits;
  Communicator *ranks = nullptr;  // that share the model, this being rank 0; null: there is only one
  bool embeddings = false;        // vectors of texts in place of what follows them
  VectorChoice vectors;
};

void addServeOptions(Command command, ServeCommand &out);
/// Bytes of --buffers. Throws UserError(Usage) if it is no number of them, or less than one request may have.
int64_t buffersOf(const ServeCommand &command);

/// Says where it serves, on standard output, and answers until SIGTERM or SIGINT: then it takes no more requests, and
/// ends with the last answer, after drainSeconds, or at another signal that counts (runtime/launch/stops.h); what is
/// not sent HttpOptions::lastWrite seconds later is cut off. Throws UserError(Usage, FileMissing, TargetUnavailable),
/// and what ends the generator. Of several ranks the others call followEngine.
void serve(Executor &executor, const Tokenizer &tokenizer, const ModelTokens &tokens, const ServeCommand &command,
           const CompletionRequest &defaults);
/// The same for vectors of texts; command.vectors are settled.
void serveEmbeddings(Executor &executor, const Tokenizer &tokenizer, const ServeCommand &command);

}  // namespace gptc
