// Small things that the kernels of this family do with the lanes of vectors. For *.isa.cpp files only.
#pragma once

#include "tutti/pointwise/prim_basic.h"

namespace tutti::reduction {
inline namespace TUTTI_ISA {

/// Elements that kernels work on at a time, on every instruction set.
template <class T>
inline constexpr int lanes_of = sizeof(T) == 4 ? 16 : 8;

template <class T, int N>
TUTTI_HD pointwise::Vec<T, N / 2> lower(pointwise::Vec<T, N> x) {
  if constexpr (requires { x.lo; })
    return x.lo;
  else
    return pointwise::Vec<T, N / 2>::from_register(pointwise::detail::lower_half<T, N>(x.v));
}
template <class T, int N>
TUTTI_HD pointwise::Vec<T, N / 2> upper(pointwise::Vec<T, N> x) {
  if constexpr (requires { x.hi; })
    return x.hi;
  else
    return pointwise::Vec<T, N / 2>::from_register(pointwise::detail::upper_half<T, N>(x.v));
}

/// a·b as a number of its own. GCC 12 makes vfmaddsub of the products and sums of complex arithmetic even under
/// -ffp-contract=off, which would give other bits where there is such an instruction.
template <class T>
TUTTI_HD T rounded_product(T a, T b) {
#if defined(__GNUC__) && !defined(__clang__)
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}
template <class C>
TUTTI_HD C complex_product(C a, C b) {
  return {rounded_product(a.real(), b.real()) - rounded_product(a.imag(), b.imag()),
          rounded_product(a.real(), b.imag()) + rounded_product(a.imag(), b.real())};
}

/// The lanes of x combined in a tree: lane i with lane i + N/2, and so on with the halves.
template <class T, int N, class Combine>
TUTTI_HD T fold_lanes(pointwise::Vec<T, N> x, Combine&& combine) {
  if constexpr (N * sizeof(T) > 16) {
    return fold_lanes(combine(lower(x), upper(x)), combine);
  } else {
    T lane[N];
    x.store(lane);
    using One = pointwise::Vec<T, 1>;
    for (int half = N / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lane[i] = combine(One(lane[i]), One(lane[i + half])).v;
    return lane[0];
  }
}

/// The first n elements at p, and `fill` in the other lanes.
template <class V>
TUTTI_HD V load_filled(const typename V::Element* p, int n, typename V::Element fill) {
  if (n == V::lanes) return V::load(p);
  using T = typename V::Element;
  alignas(64) static constexpr T kNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select(V::load(kNumbers) < V(n), V::load(p, n), V(fill));
}
template <class V>
TUTTI_HD void store_first(typename V::Element* p, int n, V v) {
  if (n == V::lanes)
    v.store(p);
  else
    v.store(p, n);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::reduction
