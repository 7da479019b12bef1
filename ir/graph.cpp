#include "ir/graph.h"

#include "ir/opdef.h"
#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

// ---- attributes -----------------------------------------------------------------------------------------------------

namespace {

template <typename Items> auto findKey(Items &items, llvm::StringRef name) {
  return std::lower_bound(items.begin(), items.end(), name,
                          [](const auto &item, llvm::StringRef n) { return llvm::StringRef(item.first) < n; });
}

template <typename T> const T *get(const AttrMap &map, llvm::StringRef name) {
  const Attr *a = map.find(name);
  if (!a)
    return nullptr;
  const T *v = std::get_if<T>(a);
  GPTC_CHECK(v, "attribute '{}' is of another kind", name.str());
  return v;
}

}  // namespace

AttrMap::AttrMap() = default;
AttrMap::AttrMap(const AttrMap &) = default;
AttrMap::AttrMap(AttrMap &&) noexcept = default;
AttrMap &AttrMap::operator=(const AttrMap &) = default;
AttrMap &AttrMap::operator=(AttrMap &&) noexcept = default;
AttrMap::~AttrMap() = default;

const Attr *AttrMap::find(llvm::StringRef name) const {
  auto it = findKey(items, name);
  return it != items.end() && it->first == name ? &it->second : nullptr;
}

void AttrMap::set(llvm::StringRef name, Attr value) {
  auto it = findKey(items, name);
  if (it != items.end() && it->first == name)
    it->second = std::move(value);
  else
    items.insert(it, {name.str(), std::move(value)});
}

void AttrMap::erase(llvm::StringRef name) {
  auto it = findKey(items, name);
  if (it != items.end() && it->first == name)
    items.erase(it);
}

int64_t AttrMap::getInt(llvm::StringRef name, int64_t otherwise) const {
  const int64_t *v = get<int64_t>(*this, name);
  return v ? *v : otherwise;
}

double AttrMap::getFloat(llvm::StringRef name, double otherwise) const {
  const Attr *a = find(name);
  if (a)
    if (const int64_t *i = std::get_if<int64_t>(a))
      return double(*i);
  const double *v = get<double>(*this, name);
  return v ? *v : otherwise;
}

bool AttrMap::getBool(llvm::StringRef name, bool otherwise) const {
  const bool *v = get<bool>(*this, name);
  return v ? *v : otherwise;
}

std::string AttrMap::getString(llvm::StringRef name, llvm::StringRef otherwise) const {
  const std::string *v = get<std::string>(*this, name);
  return v ? *v : otherwise.str();
}

std::vector<int64_t> AttrMap::getInts(llvm::StringRef name) const {
  const std::vector<int64_t> *v = get<std::vector<int64_t>>(*this, name);
  return v ? *v : std::vector<int64_t>();
}

AttrMap attrs(std::initializer_list<std::pair<const char *, Attr>> items) {
  AttrMap map;
  for (const auto &[name, value] : items)
    map.set(name, value);
  return map;
}

// ---- values and ops -------------------------------------------------------------------------------------------------

Value::~Value() {
  // Users remain only in a module that a pass left invalid. They must not keep a dangling pointer.
  for (Op *user : uses)
    for (Value *&slot : user->ops)
      if (slot == this)
        slot = nullptr;
}

void Value::replaceAllUsesWith(Value *other) {
  GPTC_CHECK(other, "replacing by nothing");
  if (other == this)
    return;
  // A user appears once per slot that uses this value; its first visit rewrites all of them.
  llvm::SmallVector<Op *, 4> users = std::move(uses);
  uses.clear();
  for (Op *user : users)
    for (Value *&slot : user->ops)
      if (slot == this) {
        slot = other;
        other->uses.push_back(user);
      }
}

Op::~Op() { dropOperands(); }

const OpDef &Op::def() const { return opDef(kind); }

llvm::StringRef Op::name() const { return nameOf(kind); }

void Op::setOperand(unsigned i, Value *v) {
  GPTC_CHECK(i < ops.size() && v, "operand {} of '{}'", i, name().str());
  forgetUse(ops[i]);
  ops[i] = v;
  v->uses.push_back(this);
}

void Op::addOperand(Value *v) {
  GPTC_CHECK(v, "a null operand of '{}'", name().str());
  ops.push_back(v);
  v->uses.push_back(this);
}

void Op::dropOperands() {
  for (Value *v : llvm::reverse(ops))
    forgetUse(v);
  ops.clear();
}

void Op::forgetUse(Value *v) {
  if (!v)
    return;
  // Search from the back: blocks are destroyed from the back, so that the user is the value's latest.
  for (size_t i = v->uses.size(); i-- > 0;)
    if (v->uses[i] == this) {
      v->uses.erase(v->uses.begin() + i);
      return;
    }
  GPTC_UNREACHABLE("use list of an operand of '{}' is damaged", name().str());
}

Value *Op::addResult(Type type, llvm::StringRef name) {
  auto v = std::make_unique<Value>();
  v->type = std::move(type);
  v->name = name.str();
  v->def = this;
  v->index = res.size();
  res.push_back(std::move(v));
  return res.back().get();
}

void Op::erase() {
  for (const auto &r : res)
    GPTC_CHECK(r->unused(), "erasing '{}' whose result is used", name().str());
  block->ops.erase(where);  // destroys this
}

void Op::moveBefore(Op *other) {
  GPTC_CHECK(other && other->block == block, "moving '{}' to another block", name().str());
  if (other != this)
    block->ops.splice(other->where, block->ops, where);
}

Op *Op::next() const {
  auto it = std::next(where);
  return it == block->ops.end() ? nullptr : it->get();
}

Op *Op::prev() const { return where == block->ops.begin() ? nullptr : std::prev(where)->get(); }

// ---- blocks ---------------------------------------------------------------------------------------------------------

Block::~Block() {
  while (!ops.empty())
    ops.pop_back();  // users before what they use
}

Value *Block::addArg(Type type, llvm::StringRef name) {
  auto v = std::make_unique<Value>();
  v->type = std::move(type);
  v->name = name.str();
  v->owner = this;
  v->index = args.size();
  args.push_back(std::move(v));
  return args.back().get();
}

Op *Block::insert(OpKind kind, Op *before) {
  GPTC_CHECK(!before || before->block == this, "inserting before an op of another block");
  auto it = ops.insert(before ? before->where : ops.end(), std::unique_ptr<Op>(new Op(kind)));
  (*it)->block = this;
  (*it)->where = it;
  return it->get();
}

// ---- functions and modules ------------------------------------------------------------------------------------------

std::vector<Type> Function::results() const {
  std::vector<Type> types;
  if (Op *last = body.back(); last && last->is(OpKind::ret))
    for (Value *v : last->operands())
      types.push_back(v->type);
  return types;
}

State *Module::state(llvm::StringRef name) const {
  auto it = llvm::find_if(states, [&](const auto &s) { return s->name == name; });
  return it == states.end() ? nullptr : it->get();
}

State *Module::addState(llvm::StringRef name, Type type) {
  GPTC_CHECK(!state(name), "two states are called '{}'", name.str());
  states.push_back(std::make_unique<State>(State{name.str(), std::move(type), {}}));
  return states.back().get();
}

Function *Module::function(llvm::StringRef name) const {
  auto it = llvm::find_if(functions, [&](const auto &f) { return f->name == name; });
  return it == functions.end() ? nullptr : it->get();
}

Function *Module::addFunction(llvm::StringRef name) {
  GPTC_CHECK(!function(name), "two functions are called '{}'", name.str());
  functions.push_back(std::make_unique<Function>());
  functions.back()->name = name.str();
  functions.back()->module = this;
  return functions.back().get();
}

void Module::removeFunction(llvm::StringRef name) {
  llvm::erase_if(functions, [&](const auto &f) { return f->name == name; });
}

std::unique_ptr<Module> Module::clone() const {
  auto m = std::make_unique<Module>();
  m->attrs = attrs;
  for (const auto &s : states)
    m->states.push_back(std::make_unique<State>(*s));
  for (const auto &f : functions)
    m->cloneFunction(*f, f->name);
  return m;
}

Function *Module::cloneFunction(const Function &f, llvm::StringRef name) {
  Function *copy = addFunction(name);
  copy->attrs = f.attrs;
  llvm::DenseMap<const Value *, Value *> map;
  for (const auto &a : f.body.args)
    map[a.get()] = copy->body.addArg(a->type, a->name);
  cloneOps(f.body, copy->body, nullptr, map);
  return copy;
}

void Module::take(std::unique_ptr<Module> other) {
  attrs = std::move(other->attrs);
  states = std::move(other->states);
  functions = std::move(other->functions);
  for (auto &f : functions)
    f->module = this;
}

Op *cloneOp(const Op &op, Block &to, Op *before, llvm::DenseMap<const Value *, Value *> &map) {
  Op *copy = to.insert(op.kind, before);
  copy->attrs = op.attrs;
  copy->loc = op.loc;
  copy->layer = op.layer;
  copy->state = op.state;
  for (Value *v : op.operands()) {
    auto it = map.find(v);
    copy->addOperand(it == map.end() ? v : it->second);
  }
  for (unsigned i = 0; i < op.numResults(); ++i)
    map[op.result(i)] = copy->addResult(op.result(i)->type, op.result(i)->name);
  if (op.body) {
    copy->body = std::make_unique<Block>();
    for (const auto &a : op.body->args)
      map[a.get()] = copy->body->addArg(a->type, a->name);
    cloneOps(*op.body, *copy->body, nullptr, map);
  }
  return copy;
}

void cloneOps(const Block &from, Block &to, Op *before, llvm::DenseMap<const Value *, Value *> &map) {
  for (const Op &op : from)
    cloneOp(op, to, before, map);
}

// ---- builder --------------------------------------------------------------------------------------------------------

Op *Builder::op(OpKind kind, llvm::ArrayRef<Value *> operands, AttrMap attrs) {
  const OpDef &def = opDef(kind);
  GPTC_CHECK(def.infer, "the result type of '{}' must be given: {}", def.name, def.infer.why());
  Op *o = op(kind, operands, llvm::ArrayRef<Type>(), std::move(attrs));
  std::vector<Type> types;
  std::string error;
  GPTC_CHECK(def.infer(*o, types, error), "'{}': {}\n{}", def.name, error, print(*o));
  for (size_t i = 0; i < types.size(); ++i)
    o->addResult(std::move(types[i]));
  return o;
}

Op *Builder::op(OpKind kind, llvm::ArrayRef<Value *> operands, llvm::ArrayRef<Type> types, AttrMap attrs) {
  while (!operands.empty() && !operands.back())
    operands = operands.drop_back();
  GPTC_CHECK(!llvm::is_contained(operands, nullptr), "'{}': a null operand before a given one", nameOf(kind).str());
  Op *o = block->insert(kind, before);
  o->attrs = std::move(attrs);
  o->loc = loc;
  o->layer = layer;
  for (Value *v : operands)
    o->addOperand(v);
  std::string error = checkSignature(*o);
  GPTC_CHECK(error.empty(), "'{}' {}", o->name().str(), error);
  for (const Type &t : types)
    o->addResult(t);
  return o;
}

Value *Builder::read(const State &s) {
  Op *o = op(OpKind::read, {}, {s.type});
  o->state = s.name;
  return o->result();
}

Op *Builder::write(const State &s, Value *v) {
  GPTC_CHECK(v->type == s.type, "writing {} to @{} : {}", v->type.str(), s.name, s.type.str());
  Op *o = op(OpKind::write, {v}, llvm::ArrayRef<Type>());
  o->state = s.name;
  return o;
}

Value *Builder::constant(double v, Type type) {
  return op(OpKind::constant, {}, {std::move(type)}, gptc::attrs({{"value", v}}))->result();
}

Op *Builder::ret(llvm::ArrayRef<Value *> values) { return op(OpKind::ret, values, llvm::ArrayRef<Type>()); }

}  // namespace gptc
