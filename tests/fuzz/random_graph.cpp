#include "random_graph.h"

#include "grower.h"
#include "support/diagnostics.h"

namespace gptc::test {

std::unique_ptr<Module> randomModule(unsigned seed) {
  for (unsigned draw = 0;; ++draw) {
    auto m = std::make_unique<Module>();
    if (seed % 2 ? growForward(*m, seed, draw) : growProgram(*m, seed, draw))
      return m;
    GPTC_CHECK(draw < 50, "no module for seed {}", seed);
  }
}

}  // namespace gptc::test
