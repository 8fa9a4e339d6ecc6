// The results of all collectives, for comparing ways to run them.
#pragma once

#include <algorithm>
#include <complex>
#include <functional>
#include <string>
#include <utility>

#include "tutti/comm.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::test {

/// What collectives give a rank: a line for each, with a hash of its bytes, for sizes that go all ways.
inline std::string fingerprint() {
  std::string text, what;
  auto add = [&](const char* name, const Tensor& x) {
    std::string bytes(static_cast<const char*>(x.raw_data()), static_cast<size_t>(x.numel()) * size_of(x.dtype()));
    text += what + " " + name + " " + std::to_string(std::hash<std::string>{}(bytes)) + "\n";
  };
  int n = world_size(), me = rank();
  for (int64_t size : {0, 1, 5, 3'001, 150'007})
    for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::c64, DType::c128}) {
      if (size > 100'000 && dtype == DType::c128) continue;  // goes the ways of c64
      manual_seed(static_cast<uint64_t>(me * 1000 + size));
      Tensor x = (rand({size}) * 100 - 30).to(dtype);
      if (is_complex(dtype)) x = x + (rand({size}) * 7 - 3).to(dtype) * tensor({std::complex<double>(0, 1)}).to(dtype);
      what = std::string(name(dtype)) + "[" + std::to_string(size) + "]";
      auto once = [&](const char* name, const ReduceOptions& options) {
        Tensor y = x.clone();
        all_reduce(y, options);
        add(name, y);
      };
      once("sum", {});
      if (!is_complex(dtype)) once("max", {.op = Reduce::max});
      if (dtype != DType::i32) once("average", {.op = Reduce::average, .weight = me + 0.5});
      if (dtype != DType::i32) once("scaled", {.factor = 0.3 * me + 0.1});
      Tensor whole = std::exchange(x, (x * 0.03).to(dtype));  // products of which none is too large
      once("product", {.op = Reduce::product});
      x = whole;
      Tensor root = x.clone();
      reduce(root, {.root = n - 1});
      if (me == n - 1) add("reduce", root);
      Tensor sent = x.clone();
      broadcast(sent, {.root = n / 2});
      add("broadcast", sent);
      Tensor all = zeros({n * size}, {.dtype = dtype}), mine = zeros({size}, {.dtype = dtype});
      all_gather(all, x);
      add("all_gather", all);
      reduce_scatter(mine, all);
      add("reduce_scatter", mine);
      Tensor turned = zeros({n * size}, {.dtype = dtype});
      all_to_all(turned, all);
      add("all_to_all", turned);
      // Coalesced in other ways than one: a list of other sizes, and parts of the same tensor in one call.
      TensorList list{x.clone(), x.slice(0, 0, size / 2).clone(), x.clone()};
      all_reduce(list);
      for (const Tensor& t : list) add("list", t);
      TensorList pieces;
      for (int64_t at = 0; at < size; at += 1 + size / 3)
        pieces.push_back(x.slice(0, at, std::min(size, at + 1 + size / 3)).clone());
      Tensor alone = x.clone();
      all_reduce(pieces);
      all_reduce(alone);
      if (size > 0 && !equal(cat(pieces), alone)) text += what + " other bits when it is cut into parts\n";
      TensorList parts;
      if (me == 1 % n)
        for (int k = 0; k < n; ++k) parts.push_back(x + k);
      Tensor part = zeros({size}, {.dtype = dtype});
      scatter(part, parts, {.root = 1 % n});
      add("scatter", part);
      TensorList got;
      if (me == 0)
        for (int k = 0; k < n; ++k) got.push_back(zeros({size}, {.dtype = dtype}));
      gather(got, x, {.root = 0});
      for (const Tensor& t : got) add("gather", t);
    }
  return text;
}

}  // namespace tutti::test
