// The graphs that compile() makes: typed values, and nodes that run in order. Small on purpose: a node is an operator's
// descriptor with attributes, or one of a few effects on tensors that are no operators.
//
// Note [Memory in graphs]
// A value is a tensor: a piece of memory under a geometry. Values whose `memory` is the same value share their storage.
// A node that writes a value in place lists it among its outputs again (`writes`), and all values of that memory see
// it: graphs are lists of steps, not expressions, and a pass that moves or removes steps asks written_memories() first.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/operator.h"

namespace tutti::graph {

using ValueId = int32_t;
inline constexpr ValueId kNone = -1;  // an undefined tensor

struct Type {
  DType dtype = DType::f32;
  Shape sizes = {}, strides = {};
  int64_t offset = 0;
  Device device = {};
  Layout layout = Layout::strided;
  bool number = false;  // made from a C++ number: it gives way in promotion
  friend bool operator==(const Type&, const Type&) = default;
};
Type type_of(const Tensor& tensor);
/// Bytes of memory that a value of this type needs.
int64_t bytes_of(const Type& type);

enum class Origin : uint8_t {
  argument,  // `index`: its place among the arguments' tensors
  captured,  // `tensor`, used without being an argument: a parameter
  gradient,  // .grad() of the tensor that input value `index` is
  saved,     // of a backward graph: value `index` of the forward graph
  constant,  // `tensor`, made from numbers
};
const char* name(Origin origin);

/// What a graph is given before it runs.
struct Input {
  ValueId value = kNone;
  Origin origin = Origin::argument;
  int32_t index = 0;
  Tensor tensor = {};
  bool fresh = false;  // of a constant that the graph writes: it gets a copy each time
};

struct Value {
  Type type;
  ValueId memory = kNone;    // the first value of the same storage; itself, if it is the first
  int32_t producer = kNone;  // a node; none for inputs
};

enum class Kind : uint8_t {
  call,          // an operator
  alias,         // the same memory under the output's geometry: detach()
  empty,         // memory, as yet without values
  resize,        // gives input 0's storage `number` bytes
  version,       // remembers input 0's version as `number`
  set_version,   // sets input 0's version to the one remembered by node `number`; or, `absolute`, to that number
  set_grad,      // makes input 1 the gradient of input 0; none: there is no gradient
  require_grad,  // input 0, an input of the graph, requires a gradient from here on (`number`: whether)
  host,          // of a captured backward pass: node `number` of the pass runs itself, hooks and all
  set_data,      // input 0, an input of the graph, gets the memory and geometry of input 1
  wait,          // until the collective that made input 0 is done; its results and inputs are the inputs
};
const char* name(Kind kind);

struct Node {
  Kind kind = Kind::call;
  const Operator* op = nullptr;
  Attributes attributes = {};
  std::shared_ptr<const void> owner = {};  // of the attributes
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  uint32_t writes = 0;         // bit i: output i existed before and is written in place
  bool keeps_version = false;  // written under PreserveVersion
  bool absolute = false;
  bool starts = false;  // a collective that only begins here; a `wait` comes later
  int64_t number = 0;
  int32_t group = kNone;   // the fusion group it belongs to
  std::string place = {};  // "train.cpp:12", of collectives

  bool is_written(size_t output) const { return writes >> (output < 31 ? output : 31) & 1; }
  /// Whether anything but its outputs comes of it, so that it must stay where it is.
  bool has_effect() const { return kind > Kind::empty || writes || (op && (op->random || op->collective)); }
};

/// Nodes that can run as one loop: pointwise operators over one shape, perhaps ending in a reduction.
struct FusionGroup {
  std::vector<int32_t> nodes = {};
  Shape sizes = {};
  bool reduces = false;
  std::vector<ValueId> inputs = {}, outputs = {};  // what it reads from and leaves in memory
};

/// Where values live: those whose lives do not meet share a buffer.
struct MemoryPlan {
  /// From the first node that needs the memory to the last, both included; results live on past the last node.
  struct Life {
    ValueId value;
    int32_t buffer, first, last;
  };
  std::vector<Life> lives = {};         // in the order in which they begin
  std::vector<int32_t> buffer = {};     // of each value that owns memory made by the graph; -1 for others
  std::vector<int64_t> bytes = {};      // of each buffer
  int64_t peak = 0, without_reuse = 0;  // bytes
};

struct Graph {
  std::string name = {};
  bool exact = true;  // CompileOptions::exact
  std::vector<Value> values = {};
  std::vector<Node> nodes = {};
  std::vector<Input> inputs = {};
  std::vector<ValueId> outputs = {};
  std::vector<FusionGroup> groups = {};
  MemoryPlan plan = {};

  ValueId add_value(Type type, ValueId memory, int32_t producer);
  /// The value whose storage v shares.
  ValueId memory_of(ValueId v) const { return values[static_cast<size_t>(v)].memory; }
  const Type& type(ValueId v) const { return values[static_cast<size_t>(v)].type; }
  /// The input that value v is, or null.
  const Input* input_of(ValueId v) const;
  size_t count(const char* operator_name) const;
};

/// By memory: whether some node writes (or resizes) it.
std::vector<bool> written_memories(const Graph& graph);

/// Throws InternalError, naming the pass that broke it, unless values come before their uses, types and memories agree,
/// and every node has what its kind needs.
void verify(const Graph& graph, const char* after);

/// The graph as text, a node a line; fusion groups and the plan of memory where they are known.
std::string to_string(const Graph& graph);
/// The same as a page to look at, with nothing beside it; `code` is what was generated for each, if anything.
std::string to_html(const std::vector<std::shared_ptr<const Graph>>& graphs, const std::string& title,
                    const std::vector<std::string>& code = {});
/// What the graph asks of other ranks, a line each: equal on all ranks, or they would wait for each other.
std::vector<std::string> collectives(const Graph& graph);

}  // namespace tutti::graph
