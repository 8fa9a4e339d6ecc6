// Random numbers. A Generator is a seed and a position in an endless stream of numbers; element i of a tensor takes the
// i-th number after the position, so results do not depend on how many threads fill the tensor. The current generator
// is part of the thread context: every rank has its own.
#pragma once

#include <atomic>
#include <memory>

#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti {

class Generator {
 public:
  struct State {
    uint64_t seed = 0, position = 0;
    TUTTI_FIELDS(seed, position)
    friend bool operator==(const State&, const State&) = default;
  };
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  State state() const { return {seed_, position_}; }
  void set_state(State state) {
    seed_ = state.seed;
    position_ = state.position;
  }
  /// Takes `blocks` blocks of four 32-bit numbers from the stream; returns where they begin.
  State reserve(uint64_t blocks) { return {seed_, position_.fetch_add(blocks)}; }

 private:
  std::atomic<uint64_t> seed_, position_{0};
};

/// The calling thread's generator.
Generator& generator();
/// Starts the calling thread's generator anew from this seed.
void manual_seed(uint64_t seed);

/// Uniform in [0, 1).
Tensor rand(const Shape& sizes, const Options& options = {});
/// Normal with mean 0 and deviation 1.
Tensor randn(const Shape& sizes, const Options& options = {});
/// Integers in [low, high).
Tensor randint(int64_t low, int64_t high, const Shape& sizes, const Options& options = {});
/// 0 ... n-1 in random order.
Tensor randperm(int64_t n, const Options& options = {});
Tensor rand_like(const Tensor& x, const Options& options = {});
Tensor randn_like(const Tensor& x, const Options& options = {});
/// 1 with the probability given by each element of p, else 0; dtype of p.
Tensor bernoulli(const Tensor& p);
/// `count` indices drawn by the weights in the last dim, with or without putting back.
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement = true);
/// Zeroes elements with probability p and scales the rest by 1/(1-p); the identity when not training.
Tensor dropout(const Tensor& x, double p, bool training = true);

}  // namespace tutti
