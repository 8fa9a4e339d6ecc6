// Gradients over ranks, checked as those of one function: of all ranks' inputs, which every rank holds, to all ranks'
// outputs. Each rank computes its own part of that function and of its gradient, and they exchange the results; so the
// check for one process does the rest, on every rank the same.
#include "base/check.h"
#include "tutti/comm/functional.h"
#include "tutti/comm/objects.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::fn {
namespace {

using Body = std::function<TensorList(const TensorList&)>;

// Tensors as one row of real numbers.
Tensor flatten(const TensorList& xs) {
  TensorList rows;
  for (const Tensor& x : xs) rows.push_back((x.is_complex() ? view_as_real(x) : x).reshape({-1}).to(DType::f64));
  return rows.empty() ? zeros({0}, {.dtype = DType::f64, .device = Device()}) : cat(rows);
}

// All ranks' rows, one behind the other. Not differentiable.
Tensor exchange(const Tensor& row, const Group& group, std::vector<int64_t>* counts = nullptr) {
  NoGrad guard;
  std::vector<int64_t> lengths = all_gather_object(row.numel(), {.group = group});
  TensorList rooms;
  for (int64_t n : lengths) rooms.push_back(zeros({n}, {.dtype = DType::f64, .device = Device()}));
  tutti::all_gather(rooms, row.detach(), {.group = group});
  if (counts) *counts = lengths;
  return cat(rooms);
}

// This rank's inputs among all: those of the ranks before it come first.
struct Share {
  size_t first = 0, count = 0;
};

struct Joint : Function<Joint> {
  Group group;
  Share share;
  TensorList leaves, outputs;
  std::vector<int64_t> counts;  // of all ranks' output numbers
  std::vector<Tensor> all;

  Tensor forward(const TensorList& inputs, const Body& f, const Group& g, const Share& s) {
    group = g;
    share = s;
    all = inputs;
    EnableGrad guard;
    for (size_t i = 0; i < share.count; ++i) {
      const Tensor& x = inputs[share.first + i];
      leaves.push_back(x.requires_grad() ? x.detach().requires_grad_() : x.detach());
    }
    outputs = f(leaves);
    return exchange(flatten(outputs), group, &counts);
  }

  TensorList backward(const TensorList& g) {
    auto me = static_cast<size_t>(group.rank());
    int64_t before = 0;
    for (size_t k = 0; k < me; ++k) before += counts[k];
    TensorList wanted, found;
    for (const Tensor& x : leaves)
      if (x.requires_grad()) wanted.push_back(x);
    {
      EnableGrad guard;
      Tensor row = flatten(outputs);
      found = tutti::grad(TensorList{row}, wanted, {.retain_graph = true, .allow_unused = true},
                          {g[0].narrow(0, before, counts[me]).detach()});
    }
    for (size_t i = 0; i < found.size(); ++i)
      if (!found[i].defined()) found[i] = zeros_like(wanted[i]);
    return unflatten(exchange(flatten(found), group));
  }

  // A gradient for each input that wants one.
  TensorList unflatten(const Tensor& row) const {
    TensorList list;
    int64_t at = 0;
    for (const Tensor& x : all) {
      if (!x.requires_grad()) {
        list.emplace_back();
        continue;
      }
      int64_t count = x.numel() * (x.is_complex() ? 2 : 1);
      Tensor part = row.narrow(0, at, count);
      at += count;
      if (x.is_complex()) {
        Shape pairs = x.sizes();
        pairs.push_back(2);
        list.push_back(view_as_complex(part.reshape(pairs)));
      } else {
        list.push_back(part.reshape(x.sizes()));
      }
    }
    return list;
  }
};

// All ranks' inputs, on every rank.
TensorList gather_inputs(const TensorList& mine, const Group& group, Share& share, const char* name) {
  for (const Tensor& x : mine)
    check<DTypeError>(x.defined() && (x.dtype() == DType::f64 || x.dtype() == DType::c128), name,
                      "inputs must be f64 or c128 to be moved by small differences");
  std::vector<int64_t> flags;
  for (const Tensor& x : mine) flags.push_back(x.requires_grad());
  auto tensors = all_gather_object(mine, {.group = group});
  auto wants = all_gather_object(flags, {.group = group});
  TensorList all;
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (static_cast<int>(k) == group.rank()) share = {all.size(), mine.size()};
    for (size_t i = 0; i < tensors[k].size(); ++i)
      all.push_back(wants[k][i] ? tensors[k][i].requires_grad_() : tensors[k][i]);
  }
  return all;
}

bool check_jointly(const Body& f, const TensorList& inputs, const GradcheckOptions& options, const Group& given,
                   const char* name) {
  Group group = given.defined() ? given : world();
  Share share;
  TensorList all = gather_inputs(inputs, group, share, name);
  // Which of all the tensors want a gradient is asked of the originals: differences are taken without a graph.
  std::vector<bool> wants;
  for (const Tensor& x : all) wants.push_back(x.requires_grad());
  return tutti::gradcheck(
      [&](const TensorList& xs) -> TensorList {
        TensorList list;
        for (size_t i = 0; i < xs.size(); ++i)
          list.push_back(wants[i] && !xs[i].requires_grad() ? xs[i].detach().requires_grad_() : xs[i]);
        return {Joint::apply(list, f, group, share)};
      },
      all, options);
}

}  // namespace

bool gradcheck(const Body& f, const TensorList& inputs, const GradcheckOptions& options, const Group& group) {
  return check_jointly(f, inputs, options, group, "gradcheck");
}

bool gradgradcheck(const Body& f, const TensorList& inputs, const GradcheckOptions& options, const Group& group) {
  // The first derivative as a function of the inputs and of the gradients of the outputs.
  TensorList all = inputs, outputs;
  {
    EnableGrad guard;
    outputs = f(inputs);
  }
  size_t count = inputs.size();
  for (const Tensor& y : outputs) {
    NoGrad guard;
    Tensor v = tutti::rand(y.sizes(), {.dtype = DType::f64}) + 0.5;
    if (y.is_complex()) v = complex(v, tutti::rand(y.sizes(), {.dtype = DType::f64}) + 0.5);
    all.push_back(v.requires_grad_());
  }
  auto first = [&](const TensorList& xs) {
    TensorList some(xs.begin(), xs.begin() + static_cast<int64_t>(count)),
        gradients(xs.begin() + static_cast<int64_t>(count), xs.end()), wanted;
    for (const Tensor& x : some)
      if (x.requires_grad()) wanted.push_back(x);
    TensorList found = tutti::grad(f(some), wanted, {.create_graph = true, .allow_unused = true}, gradients);
    for (size_t i = 0; i < found.size(); ++i)
      if (!found[i].defined()) found[i] = zeros_like(wanted[i]);
    return found;
  };
  return check_jointly(first, all, options, group, "gradgradcheck");
}

}  // namespace tutti::fn
