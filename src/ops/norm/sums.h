// Sums over rows, for the *.isa.cpp files of this family.
#pragma once

#include <cstdint>

#include "ops/reduce/lanes.h"

namespace tutti::normalization {
inline namespace TUTTI_ISA {

using pointwise::Vec;
using reduction::load_filled;
using reduction::store_first;

template <class T>
using Lanes = Vec<T, reduction::lanes_of<T>>;

// Elements that are added up in lanes of T before they go on in f64: errors stay those of short sums.
inline constexpr int64_t kBlock = 4096;

/// Calls body(i, n) for vectors of elements [0, count); n is below the number of lanes in the last only.
template <class T, class Body>
TUTTI_HD void for_each_vector(int64_t count, Body&& body) {
  constexpr int N = Lanes<T>::lanes;
  int64_t i = 0;
  for (; i + N <= count; i += N) body(i, N);
  if (i < count) body(i, static_cast<int>(count - i));
}

/// Two sums over a row at once. values(i, n, p, q) sets p and q to the vectors at i, 0 in the lanes beyond n.
template <class T, class Values>
TUTTI_HD void sum_row(int64_t count, double& first, double& second, Values&& values) {
  using V = Lanes<T>;
  constexpr int N = V::lanes;
  auto add = [](auto a, auto b) { return a + b; };
  first = second = 0;
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t end = count - start < kBlock ? count : start + kBlock, i = start;
    V p0(0), p1(0), p2(0), p3(0), q0(0), q1(0), q2(0), q3(0), p, q;
    for (; i + 4 * N <= end; i += 4 * N) {
      values(i, N, p, q);
      p0 = p0 + p;
      q0 = q0 + q;
      values(i + N, N, p, q);
      p1 = p1 + p;
      q1 = q1 + q;
      values(i + 2 * N, N, p, q);
      p2 = p2 + p;
      q2 = q2 + q;
      values(i + 3 * N, N, p, q);
      p3 = p3 + p;
      q3 = q3 + q;
    }
    for (; i < end; i += N) {
      values(i, static_cast<int>(end - i < N ? end - i : N), p, q);
      p0 = p0 + p;
      q0 = q0 + q;
    }
    first += static_cast<double>(reduction::fold_lanes((p0 + p1) + (p2 + p3), add));
    second += static_cast<double>(reduction::fold_lanes((q0 + q1) + (q2 + q3), add));
  }
}

/// One sum over a row.
template <class T, class Value>
TUTTI_HD double sum_row(int64_t count, Value&& value) {
  using V = Lanes<T>;
  constexpr int N = V::lanes;
  double total = 0;
  for (int64_t start = 0; start < count; start += kBlock) {
    int64_t end = count - start < kBlock ? count : start + kBlock, i = start;
    V p0(0), p1(0), p2(0), p3(0);
    for (; i + 4 * N <= end; i += 4 * N) {
      p0 = p0 + value(i, N);
      p1 = p1 + value(i + N, N);
      p2 = p2 + value(i + 2 * N, N);
      p3 = p3 + value(i + 3 * N, N);
    }
    for (; i < end; i += N) p0 = p0 + value(i, static_cast<int>(end - i < N ? end - i : N));
    total += static_cast<double>(reduction::fold_lanes((p0 + p1) + (p2 + p3), [](auto a, auto b) { return a + b; }));
  }
  return total;
}

/// The mean of a row and Σ(x - mean)² are found by two passes: the second is around a mean in T, and corrected for
/// that.
template <class T>
TUTTI_HD T first_mean(const T* x, int64_t count) {
  using V = Lanes<T>;
  double sum = sum_row<T>(count, [&](int64_t i, int n) __attribute__((always_inline)) {
    return n == V::lanes ? V::load(x + i) : V::load(x + i, n);
  });
  return static_cast<T>(sum / static_cast<double>(count));
}
template <class T>
TUTTI_HD void deviations(const T* x, int64_t count, T near, double& mean, double& squares) {
  using V = Lanes<T>;
  V shift(near);
  double rest;
  sum_row<T>(count, rest, squares, [&](int64_t i, int n, V& p, V& q) __attribute__((always_inline)) {
    p = load_filled<V>(x + i, n, near) - shift;
    q = p * p;
  });
  mean = static_cast<double>(near) + rest / static_cast<double>(count);
  squares -= rest * rest / static_cast<double>(count);
  if (squares < 0) squares = 0;  // NaN stays
}

}  // namespace TUTTI_ISA
}  // namespace tutti::normalization
