#include "runtime/train/sequence_batch.h"

namespace gptc {

SequenceBatch::SequenceBatch(const Function &f)
    : B(f.body.args[0]->type.dim(0)), T(f.body.args[0]->type.dim(1)), perRow(f.body.args[1]->type.dim(1)),
      x(size_t(B * T)) {
  if (isFloat(f.body.args[1]->type.dtype))
    numbers.resize(size_t(B * perRow));
  else
    y.resize(size_t(B * perRow));
  // Of the further arguments only %documents has three dimensions.
  if (f.body.args.size() > 2 && f.body.args[2]->type.rank() == 3) {
    documents.resize(size_t(2 * B * T));
    types.resize(size_t(B * T));
  }
}

SequenceRow SequenceBatch::row(int64_t b) {
  const bool labelled = !documents.empty();
  return {&x[size_t(b * T)], y.empty() ? nullptr : &y[size_t(b * perRow)],
          labelled ? &documents[size_t(2 * b * T)] : nullptr, labelled ? &types[size_t(b * T)] : nullptr,
          numbers.empty() ? nullptr : &numbers[size_t(b * perRow)]};
}

std::vector<const void *> SequenceBatch::args(std::initializer_list<const void *> more) const {
  std::vector<const void *> all = {x.data()};
  if (numbers.empty())
    all.push_back(y.data());
  else
    all.push_back(numbers.data());
  if (!documents.empty())
    all.insert(all.end(), {documents.data(), types.data()});
  all.insert(all.end(), more);
  return all;
}

}  // namespace gptc
