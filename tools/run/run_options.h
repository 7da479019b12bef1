// What the command line of gptrun says.
#pragma once

#include "tools/compiler/imported_model.h"
#include "tools/serve/classify_command.h"
#include "tools/serve/embed_command.h"
#include "tools/serve/fill_command.h"
#include "tools/serve/sample_command.h"
#include "tools/serve/serve_command.h"
#include "tools/serve/task_command.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct RunOptions {
  std::string plan, outDir, resume = "auto", data;
  std::optional<std::string> hosts, checkpoint;
  std::string model;  // another program's, whose weights are taken; absolute
  int64_t steps = -1, certifyEvery = 0;
  int nodes = 0, ranksPerNode = 0, restarts = 3;  // 0 nodes, ranks: not given
  int tensor = 0;                                 // ranks that continue texts together; 0: not given
  unsigned threads = 0;
  bool profile = false, check = false, agent = false, allowChangedData = false;
  bool asSampled = false;  // evaluate by what samples
  bool exact = false;      // print a loss that reads back to the same value
  SampleCommand sample;
  ServeCommand serve;
  EmbedCommand embed;
  ClassifyCommand classify;
  FillCommand fill;
  TaskCommand task;                // of `gptrun eval`
  RunAs as;                        // a model of another program
  std::vector<std::string> words;  // of the command line, for ranks
  bool speaks = true;              // whether this process says, and judges, what all ranks would
};

}  // namespace gptc
