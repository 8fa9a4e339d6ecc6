// Every primitive against long double libm: the error bound, the special values, the same bits in every lane count, and
// one golden hash of the results that all instruction sets share. To check another instruction set, compile this file
// alone with its -march.
#include "tutti/pointwise/primitives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace tutti::pointwise {
namespace {

constexpr long double kPi = 3.14159265358979323846264338327950288L;
constexpr long double kInfinity = std::numeric_limits<long double>::infinity();
constexpr long double kNan = std::numeric_limits<long double>::quiet_NaN();

// ---- references

long double reference_sigmoid(long double x, long double) {
  return x > 0 ? 1 / (1 + expl(-x)) : expl(x) / (1 + expl(x));
}
// Newton's method on erf, or on erfc where 1 - |x| is small.
long double reference_erfinv(long double x, long double) {
  long double a = fabsl(x);
  if (!(a < 1)) return a == 1 ? x * kInfinity : kNan;
  if (a < 1e-9L) return x * 0.886226925452758013649083741670572591L;
  bool central = a < 0.7L;
  long double q = 1 - a, l = -logl(q);
  long double y = central ? a * 0.886L : sqrtl(fmaxl(l - 0.5L * logl(kPi * fmaxl(l, 0.5L)), 0.3L));
  for (int i = 0; i < 10; ++i) {
    long double slope = 1.12837916709551257389615890312154517L * expl(-y * y);
    long double step = central ? (erfl(y) - a) / slope : (q - erfcl(y)) / slope;
    y -= step / (1 + y * step);
  }
  return copysignl(y, x);
}
// Recurrence up to 20, then the asymptotic series; reflection for negative x.
long double reference_digamma(long double x, long double) {
  if (x == 0) return -1 / x;
  if (x < 0) {
    long double r = x - rintl(x);
    if (r == 0 || std::isinf(x)) return kNan;
    return reference_digamma(1 - x, 0) - kPi * cosl(kPi * r) / sinl(kPi * r);
  }
  if (std::isinf(x)) return x;
  long double sum = 0;
  for (; x < 20; x += 1) sum -= 1 / x;
  constexpr long double bernoulli[] = {1 / 12.0L,  -1 / 120.0L,     1 / 252.0L, -1 / 240.0L,
                                       1 / 132.0L, -691 / 32760.0L, 1 / 12.0L,  -3617 / 8160.0L};
  long double u = 1 / (x * x), series = 0;
  for (int i = 7; i >= 0; --i) series = u * (series + bernoulli[i]);
  return sum + (logl(x) - 0.5L / x - series);
}
// Far left no longer distinct from 0, but negative: the sign of such a 0 is free.
long double reference_normal_ramp(long double x, long double) {
  return x < -100 ? -std::numeric_limits<long double>::min() : x > 100 ? x : x * erfcl(-x / sqrtl(2)) / 2;
}
long double reference_remainder(long double x, long double y) {
  long double r = fmodl(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
long double reference_min(long double x, long double y) { return std::isnan(x) || x < y ? x : y; }
long double reference_max(long double x, long double y) { return std::isnan(x) || x > y ? x : y; }
long double reference_sign(long double x, long double) { return x > 0 ? 1 : x < 0 ? -1 : x; }

// ---- inputs

struct Random {
  uint64_t state;
  uint64_t next() {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

template <class T>
T from_bits(uint64_t bits) {
  UintOf<T> low = static_cast<UintOf<T>>(bits);
  T x;
  std::memcpy(&x, &low, sizeof(T));
  return x;
}

template <class T>
std::vector<T> special_values() {
  using L = std::numeric_limits<T>;
  std::vector<T> v = {T(0),          T(0.5),      T(1),
                      T(1.5),        T(2),        T(2.5),
                      T(3),          T(3.5),      T(7),
                      T(0.75),       T(0.25),     T(100),
                      T(1e30),       T(16777215), T(16777216),
                      T(8388607.5),  T(8388609),  T(9007199254740991.0),
                      L::infinity(), L::max(),    L::denorm_min(),
                      L::min(),      L::epsilon()};
  v.push_back(std::nextafter(T(1), T(2)));
  v.push_back(std::nextafter(T(1), T(0)));
  v.push_back(std::nextafter(L::min(), T(0)));
  size_t n = v.size();
  for (size_t i = 0; i < n; ++i) v.push_back(-v[i]);
  v.push_back(L::quiet_NaN());
  return v;
}

struct Range {
  double low, high;
};

template <class T>
struct Inputs {
  std::vector<T> x, y;
};

// Every pair of special values, random bit patterns, and even sweeps of each range; a multiple of 16 of them.
template <class T>
Inputs<T> make_inputs(bool binary, const std::vector<Range>& x_ranges, const std::vector<Range>& y_ranges) {
  Inputs<T> in;
  auto add = [&](T x, T y) {
    in.x.push_back(x);
    in.y.push_back(y);
  };
  std::vector<T> specials = special_values<T>();
  for (T x : specials) {
    for (T y : specials) {
      add(x, y);
      if (!binary) break;
    }
  }
  Random random{1};
  for (int i = 0; i < 30000; ++i) {
    T x = from_bits<T>(random.next());
    add(x, from_bits<T>(random.next()));
  }
  constexpr int steps = 12000;
  for (size_t r = 0; r < x_ranges.size(); ++r) {
    Range xr = x_ranges[r], yr = binary ? y_ranges[r] : Range{0, 0};
    for (int i = 0; i <= steps; ++i) {
      double u = (i + (i == 0 || i == steps ? 0 : random.uniform() - 0.5)) / steps;
      add(static_cast<T>(xr.low + (xr.high - xr.low) * u),
          static_cast<T>(yr.low + (yr.high - yr.low) * random.uniform()));
    }
  }
  while (in.x.size() % 16 != 0) add(1, 1);
  return in;
}

// ---- measures

template <class T>
long double ulp(long double x) {
  using L = std::numeric_limits<T>;
  int exponent = 0;
  if (x != 0) std::frexp(x, &exponent);
  return ldexpl(1, std::max(exponent, L::min_exponent) - L::digits);
}

// The error of got in units in the last place of the exact value, 1e9 for what no rounding explains.
template <class T>
double error_of(T got, long double exact, bool relative_to_one) {
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got) ? 0 : 1e9;
  T rounded = static_cast<T>(exact);
  if (std::isinf(rounded) || std::isinf(got)) {
    if (rounded == got) return 0;
    // One of the two is just below the overflow threshold.
    long double threshold = ldexpl(1, std::numeric_limits<T>::max_exponent);
    if (std::isinf(exact) || std::signbit(got) != std::signbit(exact)) return 1e9;
    long double other = std::isinf(got) ? threshold : fabsl(static_cast<long double>(got));
    return static_cast<double>(fabsl(other - fabsl(exact)) / ulp<T>(threshold / 2));
  }
  if (got == 0 && exact == 0 && std::signbit(got) != std::signbit(exact)) return 1e9;
  long double unit = ulp<T>(relative_to_one ? fmaxl(1, fabsl(exact)) : exact);
  return static_cast<double>(fabsl(static_cast<long double>(got) - exact) / unit);
}

template <class T>
bool same_bits(T a, T b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
uint64_t hash_of(const std::vector<T>& values) {
  uint64_t h = 0xcbf29ce484222325u;
  for (T v : values) {
    UintOf<T> bits;
    std::memcpy(&bits, &v, sizeof(T));
    if (std::isnan(v)) bits = 1;  // which NaN it is may differ
    h = (h ^ bits) * 0x100000001b3u;
    h ^= h >> 29;
  }
  return h;
}

// ---- the check of one primitive

using Reference = long double (*)(long double, long double);

struct Bounds {
  double ulps;
  bool relative_to_one = false;
};

template <class V, class F>
__attribute__((noinline)) std::vector<typename V::Element> evaluate(F f, const Inputs<typename V::Element>& in) {
  using T = typename V::Element;
  std::vector<T> out(in.x.size());
  for (size_t i = 0; i < out.size(); i += V::lanes) f(V::load(&in.x[i]), V::load(&in.y[i])).store(&out[i]);
  return out;
}

template <class T, class F>
void check_type(const char* name, F f, Reference reference, Bounds bounds, const Inputs<T>& in, uint64_t golden) {
  std::vector<T> wide = evaluate<Vec<T, 64 / sizeof(T)>>(f, in), single = evaluate<Vec<T, 1>>(f, in);
  double worst = 0;
  size_t at = 0, differing = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    double e = error_of<T>(wide[i], reference(in.x[i], in.y[i]), bounds.relative_to_one);
    if (e > worst) {
      worst = e;
      at = i;
    }
    differing += !same_bits(wide[i], single[i]);
  }
  std::string type = std::string(name) + (sizeof(T) == 4 ? " of float" : " of double");
  EXPECT_EQ(differing, 0u) << type << ": lanes and scalar give different bits";
  EXPECT_LE(worst, bounds.ulps) << type << " at " << in.x[at] << ", " << in.y[at] << ": got " << wide[at] << ", exact "
                                << static_cast<double>(reference(in.x[at], in.y[at]));
  EXPECT_EQ(hash_of(wide), golden) << type << ": the bits are not those of the other instruction sets; 0x" << std::hex
                                   << hash_of(wide);
}

struct Golden {
  uint64_t of_float, of_double;
};

template <class F>
void check(const char* name, F f, Reference reference, Bounds bounds, Golden golden, std::vector<Range> x,
           std::vector<Range> y = {}) {
  bool binary = !y.empty();
  check_type<float>(name, f, reference, bounds, make_inputs<float>(binary, x, y), golden.of_float);
  check_type<double>(name, f, reference, bounds, make_inputs<double>(binary, x, y), golden.of_double);
}

// A primitive with its name, and a long double function, as check() wants them.
#define UNARY(name) #name, [](auto x, auto) { return pointwise::name(x); }
#define BINARY(name) #name, [](auto x, auto y) { return pointwise::name(x, y); }
#define EXACT(expression) [](long double x, [[maybe_unused]] long double y) -> long double { return expression; }

constexpr Bounds kExact{0};
constexpr Bounds kUlps{1.5};
constexpr Bounds kAbsolute{1.5, true};

TEST(Primitives, Exact) {
  check(UNARY(abs), EXACT(fabsl(x)), kExact, {0xe6f0b27794c1e647, 0x19be9dd66d1b8d63}, {{-2, 2}});
  check(UNARY(sign), reference_sign, kExact, {0xe31ade5b35fa2591, 0x4d455e2e44ea11e7}, {{-4, 4}});
  check(BINARY(min), reference_min, kExact, {0xb8648b2b3458c32, 0x525090d58cbb0ac9}, {{-10, 10}}, {{-10, 10}});
  check(BINARY(max), reference_max, kExact, {0xc78d2de4d6ad9e1e, 0xa72cf45f6baafe3e}, {{-10, 10}}, {{-10, 10}});
  check(BINARY(copysign), EXACT(copysignl(x, y)), kExact, {0x95ca0f31a50ba53f, 0x57b87cb79c0176d9}, {{-10, 10}},
        {{-10, 10}});
  check(UNARY(floor), EXACT(floorl(x)), kExact, {0x6f97f4000735c964, 0x50a5f0bcc7bda505}, {{-4, 4}, {-1e7, 1e7}});
  check(UNARY(ceil), EXACT(ceill(x)), kExact, {0xc12bc1358da0fd83, 0x8f93391dec7e45a}, {{-4, 4}, {-1e7, 1e7}});
  check(UNARY(trunc), EXACT(truncl(x)), kExact, {0x4eb0babf9b5a67c, 0x7aece9f0aee4db5f}, {{-4, 4}, {-1e7, 1e7}});
  check(UNARY(round), EXACT(rintl(x)), kExact, {0x6c24be89dc08d50, 0xbd0920576abfa2e1}, {{-4, 4}, {-1e7, 1e7}});
  check(BINARY(fmod), EXACT(fmodl(x, y)), kExact, {0xdba63bb2777f39b0, 0xff1bc8f9cdf9d629}, {{-10, 10}, {-1e6, 1e6}},
        {{-3, 3}, {-1e-3, 1e-3}});
  check(BINARY(remainder), reference_remainder, Bounds{0.5001}, {0x892bd06569522ff5, 0xe621fde75bbb3983},
        {{-10, 10}, {-1e6, 1e6}}, {{-3, 3}, {-1e-3, 1e-3}});
}

TEST(Primitives, Roots) {
  check(UNARY(sqrt), EXACT(sqrtl(x)), Bounds{0.5001}, {0x6065e5e1a00535e1, 0xa8e7761c768534d6}, {{0, 4}, {0, 1e30}});
  check(UNARY(rsqrt), EXACT(1 / sqrtl(x)), kUlps, {0x9c008e07d828b805, 0xbcfc35d1cbd30ff}, {{0, 4}, {0, 1e30}});
  check(BINARY(hypot), EXACT(hypotl(x, y)), kUlps, {0x297e283acb7fcfd6, 0x4df0c0ab652ec55b},
        {{-10, 10}, {-1e38, 1e38}, {-1e-38, 1e-38}}, {{-10, 10}, {-1e38, 1e38}, {-1e-38, 1e-38}});
}

TEST(Primitives, Exponentials) {
  check(UNARY(exp), EXACT(expl(x)), kUlps, {0xe7a77b5d765c246f, 0x6503c09c549241ae},
        {{-1, 1}, {-104, 89}, {-746, 710}, {88, 89}});
  check(UNARY(exp2), EXACT(exp2l(x)), kUlps, {0x1b1fbf9cffdbcc74, 0x7c78fd67c5216ba2},
        {{-1, 1}, {-150, 129}, {-1075, 1025}});
  check(UNARY(expm1), EXACT(expm1l(x)), kUlps, {0xee3cb045b15f70bc, 0xdde4cd867df27780},
        {{-1, 1}, {-0.01, 0.01}, {-20, 89}, {-40, 710}});
  check(UNARY(sigmoid), reference_sigmoid, kUlps, {0xc0f8050d873577f2, 0xa3638de97ac3d05a},
        {{-4, 4}, {-110, 20}, {-750, 40}});
}

TEST(Primitives, Logarithms) {
  check(UNARY(log), EXACT(logl(x)), kUlps, {0x9c71be33c0c64ea9, 0x5139572d4f05982e},
        {{0, 4}, {0.5, 1.5}, {0.99, 1.01}, {0, 1e10}});
  check(UNARY(log2), EXACT(log2l(x)), kUlps, {0x4ec617b97e7a08b9, 0x6653fa419578f7c2},
        {{0, 4}, {0.5, 1.5}, {0.99, 1.01}, {0, 1e10}});
  check(UNARY(log10), EXACT(log10l(x)), kUlps, {0x182b8e6dc3f3cf63, 0x81a0a923fec33c7f},
        {{0, 4}, {0.5, 1.5}, {0.99, 1.01}, {0, 1e10}});
  check(UNARY(log1p), EXACT(log1pl(x)), kUlps, {0x51e39aeafa39b060, 0x1e91074412be9a1e},
        {{-1, 4}, {-0.5, 0.5}, {-0.01, 0.01}, {0, 1e10}});
}

TEST(Primitives, Power) {
  check(BINARY(pow), EXACT(powl(x, y)), kUlps, {0xa803d81a9b8786e7, 0x80f6a1e0bcb748aa},
        {{0, 10}, {0.9, 1.1}, {0.999, 1.001}, {-20, 20}, {0, 1e-38}},
        {{-30, 30}, {-900, 900}, {-80000, 80000}, {-9, 9}, {-1, 1}});
}

TEST(Primitives, Trigonometric) {
  check(UNARY(sin), EXACT(sinl(x)), kUlps, {0x50e5006dd44783e8, 0x3f3ecdc5203b05ad},
        {{-4, 4}, {-0.5, 1}, {-1e4, 1e4}, {1e15, 1e16}});
  check(UNARY(cos), EXACT(cosl(x)), kUlps, {0xb3d9d94f70de323, 0xc18793ae7b8a5cc4},
        {{-4, 4}, {-0.5, 1}, {-1e4, 1e4}, {1e15, 1e16}});
  check(UNARY(tan), EXACT(tanl(x)), kUlps, {0x1b05be7409b3d5d9, 0xf2fd291e2baa2740},
        {{-4, 4}, {-0.5, 1}, {-1e4, 1e4}, {1e15, 1e16}});
}

TEST(Primitives, InverseTrigonometric) {
  check(UNARY(asin), EXACT(asinl(x)), kUlps, {0xcae7f1b3a27527a0, 0xba4e0fdca5dcb72d},
        {{-1, 1}, {0.4, 0.6}, {0.99, 1}, {-0.01, 0.01}});
  check(UNARY(acos), EXACT(acosl(x)), kUlps, {0xfef560734c25df4a, 0xdae58d1c5edc0bfe},
        {{-1, 1}, {0.4, 0.6}, {0.99, 1}, {-0.01, 0.01}});
  check(UNARY(atan), EXACT(atanl(x)), kUlps, {0xbca02af3bddab9af, 0x7ce238dd637dff2c},
        {{-4, 4}, {0.3, 0.5}, {-100, 100}, {-0.01, 0.01}});
  check(BINARY(atan2), EXACT(atan2l(x, y)), kUlps, {0xc347fc2fe7c43405, 0x6448e2fd03e4d9c6},
        {{-10, 10}, {-1e38, 1e38}, {-1e-38, 1e-38}, {-1e-40, 1e-40}},
        {{-10, 10}, {-1e38, 1e38}, {-1e-38, 1e-38}, {-2, 2}});
}

TEST(Primitives, Hyperbolic) {
  check(UNARY(sinh), EXACT(sinhl(x)), kUlps, {0xf5e66090d8e32e8b, 0x54bc59aaa23d6eea},
        {{-2, 2}, {-90, 90}, {-711, 711}});
  check(UNARY(cosh), EXACT(coshl(x)), kUlps, {0x8e9d0ab2d4b3e166, 0xc67819fd8eeca4e7},
        {{-2, 2}, {-90, 90}, {-711, 711}});
  check(UNARY(tanh), EXACT(tanhl(x)), kUlps, {0x67010a23eb4b0c7b, 0xf9777cf5a687eb78},
        {{-2, 2}, {-0.1, 0.1}, {-20, 20}});
}

TEST(Primitives, InverseHyperbolic) {
  check(UNARY(asinh), EXACT(asinhl(x)), kUlps, {0x2bc51c62e812b6fd, 0x61ac1b1337e27d1d},
        {{-2, 2}, {-0.01, 0.01}, {-1e6, 1e6}});
  check(UNARY(acosh), EXACT(acoshl(x)), kUlps, {0xb858cb8f90abd26, 0xe161dd94b3b9063a}, {{1, 4}, {1, 1.01}, {1, 1e6}});
  check(UNARY(atanh), EXACT(atanhl(x)), kUlps, {0x52b3f039e5a000a8, 0xbacee5e8dff4f195},
        {{-1, 1}, {-0.01, 0.01}, {0.99, 1}});
}

TEST(Primitives, ErrorFunctions) {
  check(UNARY(erf), EXACT(erfl(x)), kUlps, {0xb41f28998f243a, 0x16c29b714947ee0a},
        {{-4, 4}, {0.7, 0.8}, {-0.01, 0.01}, {4, 6}});
  check(UNARY(erfc), EXACT(erfcl(x)), kUlps, {0xfc69374a0a87f9e3, 0x44d54141cdbfedfd},
        {{-4, 4}, {0.7, 0.8}, {4, 11}, {10, 28}});
  check(UNARY(normal_cdf), EXACT(erfcl(-x / sqrtl(2)) / 2), Bounds{0.6, true}, {0x9838bbf31feb26c8, 0x5a27218a2be0f710},
        {{-4, 4}, {5, 6}, {-40, 10}});
  check(UNARY(normal_ramp), reference_normal_ramp, Bounds{1.2, true}, {0x3786d08c41395a2e, 0x5f625f046bd84628},
        {{-4, 4}, {-7, -5}, {-40, 10}});
  check(UNARY(erfinv), reference_erfinv, kUlps, {0x1f96a7f00dc503d8, 0x7f6c9c10c369df88},
        {{-1, 1}, {-0.01, 0.01}, {0.98, 1}, {0.9999999, 1}});
}

// Relative to results that are nearly 0, as far as there is more to be had than an absolute bound.
TEST(Primitives, NormalRampOfFloatsNearZero) {
  double worst = 0, worst_tail = 0;
  for (int i = -800'000; i <= 400'000; ++i) {
    float x = static_cast<float>(i + 0.5) * 1e-5f;
    auto got = static_cast<long double>(normal_ramp(Vec<float, 1>(x)).v), exact = reference_normal_ramp(x, 0);
    double& side = x < -2 ? worst_tail : worst;
    side = std::max(side, static_cast<double>(fabsl(got - exact) / (x < -2 ? 1 : fabsl(exact))));
    ASSERT_LE(x < 0 ? got : -got, 0) << x;
  }
  EXPECT_LE(worst, 0x1p-22);
  EXPECT_LE(worst_tail, 0x1p-26);
}

TEST(Primitives, GammaFunctions) {
  check(UNARY(lgamma), EXACT(lgammal(x)), kAbsolute, {0xdbc17185727c5447, 0x798688a8722ecea1},
        {{0, 4}, {0.4, 2.6}, {3, 100}, {-10, 0}, {-100, 0}});
  check(UNARY(digamma), reference_digamma, kAbsolute, {0x8a16725f820e5109, 0xc1fca5c23f766515},
        {{0, 4}, {0.4, 2.6}, {3, 100}, {-10, 0}, {-100, 0}});
}

// ---- Vec and Mask

template <class T>
class VecTest : public testing::Test {};
using Elements = testing::Types<float, double, int64_t, int32_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(VecTest, Elements);

template <class T>
using Wide = Vec<T, 64 / sizeof(T)>;

template <class V>
std::vector<typename V::Element> lanes_of(V v) {
  std::vector<typename V::Element> out(V::lanes);
  v.store(out.data());
  return out;
}
template <class T, int N>
std::vector<int> lanes_of(Mask<T, N> m) {
  uint8_t bytes[N];
  store_mask(bytes, m);
  return std::vector<int>(bytes, bytes + N);
}

template <class T>
__attribute__((noinline)) void expect_lanes(const std::vector<T>& got, const std::vector<T>& want, int line) {
  EXPECT_EQ(got, want) << "line " << line;
}

// Random lanes through every operator, against the same operator on scalars.
template <class V>
void check_operators(uint64_t seed) {
  using T = typename V::Element;
  Random random{seed};
  T a[V::lanes], b[V::lanes];
  for (int i = 0; i < V::lanes; ++i) {
    uint64_t pattern = random.next();
    a[i] = static_cast<T>(static_cast<int64_t>(random.next() >> (pattern % 60)));
    b[i] = pattern % 3 == 0 ? a[i] : static_cast<T>(static_cast<int64_t>(random.next() >> (pattern % 61)));
    if (pattern % 5 == 0) b[i] = static_cast<T>(0) - b[i];
  }
  V x = V::load(a), y = V::load(b);
  auto expect = [&](V got, auto f, int line = __builtin_LINE()) {
    std::vector<T> want;
    for (int i = 0; i < V::lanes; ++i) want.push_back(static_cast<T>(f(a[i], b[i])));
    expect_lanes(lanes_of(got), want, line);
  };
  auto expect_mask = [&](auto got, auto f, int line = __builtin_LINE()) {
    std::vector<int> want;
    for (int i = 0; i < V::lanes; ++i) want.push_back(f(a[i], b[i]) ? 1 : 0);
    expect_lanes(lanes_of(got), want, line);
  };
  if constexpr (std::is_floating_point_v<T>) {
    expect(x + y, [](T p, T q) { return p + q; });
    expect(x * y, [](T p, T q) { return p * q; });
    expect(1 - x, [](T p, T) { return 1 - p; });
    expect(x * 0.1, [](T p, T) { return p * static_cast<T>(0.1); });
    expect(-x, [](T p, T) { return -p; });
    expect(fma(x, y, 0.1), [](T p, T q) { return std::fma(p, q, static_cast<T>(0.1)); });
    expect(x / (y * y + 1), [](T p, T q) { return p / (q * q + 1); });
  } else {
    using U = std::make_unsigned_t<T>;
    expect(x + y, [](T p, T q) { return U(p) + U(q); });
    expect(x - y, [](T p, T q) { return U(p) - U(q); });
    expect(x * y, [](T p, T q) { return U(p) * U(q); });
    expect(3 - x, [](T p, T) { return 3 - U(p); });
    expect(-x, [](T p, T) { return U(0) - U(p); });
    expect(x & y, [](T p, T q) { return p & q; });
    expect(x | y, [](T p, T q) { return p | q; });
    expect(x ^ y, [](T p, T q) { return p ^ q; });
    expect(~x, [](T p, T) { return ~p; });
    expect(x << 3, [](T p, T) { return U(p) << 3; });
    expect(x >> 3, [](T p, T) { return p >> 3; });
    expect(x << (y & 7), [](T p, T q) { return U(p) << (q & 7); });
    expect(x >> (y & 7), [](T p, T q) { return p >> (q & 7); });
    expect(x / y, [](T p, T q) { return q == 0 ? T(0) : q == T(-1) && std::is_signed_v<T> ? T(U(0) - U(p)) : p / q; });
    expect(x % y, [](T p, T q) { return q == 0 || (q == T(-1) && std::is_signed_v<T>) ? T(0) : p % q; });
    expect(remainder(x, y | 1), [](T p, T q) {
      q |= 1;
      if (q == T(-1) && std::is_signed_v<T>) return T(0);
      T r = p % q;
      return r != 0 && (r < 0) != (q < 0) ? T(r + q) : r;
    });
  }
  expect(select(x < y, x, y), [](T p, T q) { return p < q ? p : q; });
  expect(select(x == y, 5, x), [](T p, T q) { return p == q ? T(5) : p; });
  expect(V::from_mask(x >= y), [](T p, T q) { return p >= q; });
  expect(min(x, y), [](T p, T q) { return p < q ? p : q; });
  expect(max(x, y), [](T p, T q) { return p > q ? p : q; });
  expect(sign(x), [](T p, T) { return p > 0 ? 1 : p < 0 ? -1 : 0; });
  expect_mask(x < y, [](T p, T q) { return p < q; });
  expect_mask(x <= y, [](T p, T q) { return p <= q; });
  expect_mask(x > y, [](T p, T q) { return p > q; });
  expect_mask(x >= y, [](T p, T q) { return p >= q; });
  expect_mask(x == y, [](T p, T q) { return p == q; });
  expect_mask(x != y, [](T p, T q) { return p != q; });
  expect_mask((x < y) & !(x != 0), [](T p, T q) { return p < q && p == 0; });
  expect_mask((x < y) | (y < 1), [](T p, T q) { return p < q || q < 1; });
  expect_mask((x < y) ^ (y < 1), [](T p, T q) { return (p < q) != (q < 1); });
}
TYPED_TEST(VecTest, OperatorsAreThoseOfTheElements) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    check_operators<Wide<TypeParam>>(seed);
    check_operators<Vec<TypeParam, 1>>(seed);
  }
}

TEST(Vec, IntegerDivisionNeverTraps) {
  using V = Wide<int64_t>;
  int64_t lowest = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(lanes_of(V(lowest) / V(-1)), lanes_of(V(lowest)));
  EXPECT_EQ(lanes_of(V(lowest) % V(-1)), lanes_of(V(0)));
  EXPECT_EQ(lanes_of(V(lowest) / V(0)), lanes_of(V(0)));
  EXPECT_EQ(lanes_of(abs(V(-5))), lanes_of(V(5)));
}

// Without the instruction fma is emulated; results that need the exact product, and the ends of the range.
TEST(Vec, FusedMultiplyAddRoundsOnce) {
  Random random{3};
  for (int i = 0; i < 20000; ++i) {
    float a = from_bits<float>(random.next()), b = from_bits<float>(random.next());
    float c = i % 3 == 0 ? from_bits<float>(random.next()) : -(a * b);
    if (i % 3 == 2) c = std::nextafter(c, 0.0f);
    EXPECT_TRUE(same_bits(lanes_of(fma(Wide<float>(a), b, c))[i % 16], std::fma(a, b, c))) << a << " " << b << " " << c;
  }
}

TEST(Vec, Conversions) {
  using F = Vec<float, 16>;
  float in[16];
  for (int i = 0; i < 16; ++i) in[i] = static_cast<float>(i * 3 - 20);
  Vec<double, 16> d = convert<double>(F::load(in));
  Vec<int32_t, 16> n = convert<int32_t>(F::load(in));
  Vec<int64_t, 16> l = convert<int64_t>(d);
  EXPECT_EQ(lanes_of(convert<float>(d)), lanes_of(F::load(in)));
  EXPECT_EQ(lanes_of(convert<float>(n)), lanes_of(F::load(in)));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(lanes_of(l)[i], i * 3 - 20);
  EXPECT_EQ(lanes_of(select(d > 0, F(1), 0)), lanes_of(select(F::load(in) > 0, F(1), 0)));
  EXPECT_EQ(lanes_of(as_float(as_int(F::load(in)))), lanes_of(F::load(in)));
}

template <class T>
void check_classification() {
  using V = Vec<T, 64 / sizeof(T)>;
  std::vector<T> v = special_values<T>();
  for (T x : v) {
    EXPECT_EQ(lanes_of(isnan(V(x)))[1], std::isnan(x)) << x;
    EXPECT_EQ(lanes_of(isinf(V(x)))[1], std::isinf(x)) << x;
    EXPECT_EQ(lanes_of(isfinite(V(x)))[1], std::isfinite(x)) << x;
    EXPECT_EQ(lanes_of(signbit(V(x)))[1], std::signbit(x)) << x;
  }
}
// The double closest to a multiple of pi/2 of all, and a float among the closest: the cosine is nearly zero.
TEST(Primitives, WorstCaseOfTheAngleReduction) {
  double hard = std::ldexp(6381956970095103.0, 797);
  EXPECT_LE(error_of<double>(cos(Vec<double, 1>(hard)).v, cosl(hard), false), 0.6);
  float hard_float = std::ldexp(16367173.0f, 72);
  EXPECT_LE(error_of<float>(cos(Vec<float, 1>(hard_float)).v, cosl(hard_float), false), 0.6);
}

TEST(Primitives, Classification) {
  check_classification<float>();
  check_classification<double>();
}

}  // namespace
}  // namespace tutti::pointwise
