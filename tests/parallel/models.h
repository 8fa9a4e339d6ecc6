// Small models as users train them, each with inputs and a loss: of replicated and of sharded training alike.
#pragma once

#include "tests/parallel/support.h"

namespace tutti::test {

// As in examples/, smaller and without dropout.
struct Cnn : nn::Module<Cnn> {
  nn::Conv2d conv1{1, 4, 3, {.padding = 1}}, conv2{4, 8, 3, {.padding = 1}};
  nn::Linear fc1{8 * 2 * 2, 16}, fc2{16, 10};
  TUTTI_FIELDS(conv1, conv2, fc1, fc2)
  Tensor forward(const Tensor& images) {
    Tensor h = max_pool2d(relu(conv1(images)), 2);
    return fc2(relu(fc1(max_pool2d(relu(conv2(h)), 2).flatten(1))));
  }
  static Tensor input(uint64_t seed, int64_t rows) { return numbers({rows, 1, 8, 8}, seed); }
  Tensor loss(const Tensor& y, const Tensor& x) {
    return cross_entropy(y, (x.flatten(1).sum(1).abs() * 3).to(i64) % 10);
  }
};

struct Lstm : nn::Module<Lstm> {
  nn::LSTM lstm{3, 8, {.layers = 2, .batch_first = true}};
  nn::Linear head{8, 1};
  TUTTI_FIELDS(lstm, head)
  Tensor forward(const Tensor& x) { return head(lstm(x).output); }
  static Tensor input(uint64_t seed, int64_t rows) { return numbers({rows, 7, 3}, seed); }
  Tensor loss(const Tensor& y, const Tensor& x) { return mse_loss(y, x.sum({2}, true)); }
};

}  // namespace tutti::test
