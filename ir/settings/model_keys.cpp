#include "ir/settings/model_keys.h"

#include "ir/label_keys.h"

namespace gptc {

bool saysWhatIsComputed(const Setting &key) {
  const std::string name = key.leaf();
  return key.section() == "model" && name != "preset" && name != "init_from" && name != "dropout" && !isLabelKey(name);
}

}  // namespace gptc
