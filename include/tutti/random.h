// Random numbers. A Generator is a seed and a position in an endless stream of numbers. Which of the numbers after the
// position an element of a tensor takes depends on its index alone (Note [Random streams] in src/ops/random/philox.h),
// so results do not depend on how many threads fill the tensor; a call then advances the position by whole groups of
// blocks of four numbers, some of which no element may have used.
//
// The current generator is part of the thread context. The main thread starts with seed 0 and every rank with one of
// its own, so that programs repeat themselves. Any other thread, on which a program started it itself, takes the next
// of a row of seeds when it first draws: threads never draw the same numbers, but which thread gets which is up to
// their order. Call manual_seed in it where that matters. Ranks that call manual_seed with the same number draw the
// same numbers from there on.
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
  explicit Generator(uint64_t seed = 0, int rank = -1) : seed_(seed), rank_(rank) {}
  State state() const { return {seed_, position_}; }
  void set_state(State state, int rank = -1) {
    seed_ = state.seed;
    position_ = state.position;
    rank_ = rank;
  }
  /// Whose own numbers these are: the seeds of ranks follow each other. -1: somebody chose the seed.
  int rank() const { return rank_; }
  /// Takes `blocks` blocks of four 32-bit numbers from the stream; returns where they begin.
  State reserve(uint64_t blocks) { return {seed_, position_.fetch_add(blocks)}; }

 private:
  std::atomic<uint64_t> seed_, position_{0};
  std::atomic<int> rank_;
};

/// The calling thread's generator.
Generator& generator();
/// Starts the calling thread's generator anew from this seed.
void manual_seed(uint64_t seed);

/// Uniform in [0, 1).
Tensor rand(const Shape& sizes, const Options& options = {});
/// Normal with mean 0 and deviation 1.
Tensor randn(const Shape& sizes, const Options& options = {});
template <OneOption O>
Tensor rand(const Shape& sizes, O option) {
  return rand(sizes, detail::options_of(option));
}
template <OneOption O>
Tensor randn(const Shape& sizes, O option) {
  return randn(sizes, detail::options_of(option));
}
/// Integers in [low, high).
Tensor randint(int64_t low, int64_t high, const Shape& sizes, const Options& options = {});
/// From 0 on.
inline Tensor randint(int64_t high, const Shape& sizes, const Options& options = {}) {
  return randint(0, high, sizes, options);
}
template <OneOption O>
Tensor randint(int64_t low, int64_t high, const Shape& sizes, O option) {
  return randint(low, high, sizes, detail::options_of(option));
}
template <OneOption O>
Tensor randint(int64_t high, const Shape& sizes, O option) {
  return randint(0, high, sizes, detail::options_of(option));
}
/// 0 ... n-1 in random order.
Tensor randperm(int64_t n, const Options& options = {});
template <OneOption O>
Tensor randperm(int64_t n, O option) {
  return randperm(n, detail::options_of(option));
}
Tensor rand_like(const Tensor& x, const Options& options = {});
Tensor randn_like(const Tensor& x, const Options& options = {});
template <OneOption O>
Tensor rand_like(const Tensor& x, O option) {
  return rand_like(x, detail::options_of(option));
}
template <OneOption O>
Tensor randn_like(const Tensor& x, O option) {
  return randn_like(x, detail::options_of(option));
}
/// 1 with the probability given by each element of p, else 0; dtype of p.
Tensor bernoulli(const Tensor& p);
/// `count` indices drawn by the weights in the last dim; unless they are put back (replacement), no index comes twice.
Tensor multinomial(const Tensor& weights, int64_t count, bool replacement = false);
/// Zeroes elements with probability p and scales the rest by 1/(1-p); the identity when not training.
Tensor dropout(const Tensor& x, double p, bool training = true);
Tensor& dropout_(Tensor& x, double p, bool training = true);

}  // namespace tutti
