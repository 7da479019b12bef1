// The default pipeline as far as groups.
#pragma once

#include "passes/pass.h"

#include <gtest/gtest.h>

#include <string>

namespace gptc::test {

/// Its passes up to fusion and with it: after that come those that choose recipes for one target.
inline std::string passesUntilFused() {
  std::string text;
  for (const PassUse &use :
       parsePipeline(defaultPipeline().substr(0, defaultPipeline().find(",select-recipes")), nullptr)) {
    text += (text.empty() ? "" : ",") + std::string(use.pass->name);
    if (use.pass->name == std::string("fuse"))
      return text;
  }
  ADD_FAILURE() << "the default pipeline does not fuse";
  return text;
}

}  // namespace gptc::test
