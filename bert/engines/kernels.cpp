// What lies between BERT's matrix products, fused for the CPU: dropout + residual + LayerNorm, softmax + dropout, GELU's
// derivative, and the copies that split and join attention heads; and AdamW. One pass over memory each, where a framework takes
// three to eight.
//
// Plain C++ behind a C interface: no framework, no Python, no OpenMP of its own (see `Team`). Matrices are row-major, `T` is
// the type of the matrix products (float, float16 or bfloat16), sums and everything else are float. A result never depends on the
// number of threads. bert/engines/kernels.py loads this file and holds the same functions in PyTorch.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// Two vectors of eight numbers interleaved: their first halves, or their last ones.
#if defined(__clang__)
#define FIRST_HALVES(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define LAST_HALVES(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define FIRST_LANES(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LAST_LANES(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define FIRST_HALVES(a, b) __builtin_shuffle(a, b, Row{0, 8, 1, 9, 2, 10, 3, 11})
#define LAST_HALVES(a, b) __builtin_shuffle(a, b, Row{4, 12, 5, 13, 6, 14, 7, 15})
#define FIRST_LANES(a, b) __builtin_shuffle(a, b, Places{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23})
#define LAST_LANES(a, b) __builtin_shuffle(a, b, Places{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31})
#endif
#define RESTRICT __restrict  // no two of a function's arrays overlap: what lets its loops use the vector units

namespace {

// --- threads ---------------------------------------------------------------------------------------------------------

// GOMP_parallel of the OpenMP library that PyTorch itself uses: a second team of threads would fight with that one for
// the cores. Runs function(data) once on each of `threads` threads.
using Team = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
Team team = nullptr;

// body(first, last) over all rows, `grain` rows at a time, each piece on whichever thread comes next.
template <class Body>
void for_rows(int64_t rows, int64_t grain, int threads, const Body& body) {
  struct Work {
    const Body& body;
    int64_t rows, grain;
    std::atomic<int64_t> next;
  } work{body, rows, grain, {0}};
  auto run = [](void* data) {
    Work& work = *static_cast<Work*>(data);
    for (;;) {
      const int64_t first = work.next.fetch_add(work.grain, std::memory_order_relaxed);
      if (first >= work.rows) return;
      work.body(first, std::min(first + work.grain, work.rows));
    }
  };
  if (team && threads > 1 && rows > grain)
    team(run, &work, static_cast<unsigned>(threads), 0);
  else
    run(&work);
}

// --- numbers ---------------------------------------------------------------------------------------------------------

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

inline float load(float x) { return x; }
inline float load(bfloat16 x) { return bits_as<float>(static_cast<uint32_t>(x.bits) << 16); }

inline float load(float16 x) {
  const uint32_t u = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const float finite = bits_as<float>(u) * 0x1p112f;  // the exponent's other bias; subnormals become normal
  const uint32_t size = (x.bits & 0x7c00) == 0x7c00 ? u | 0x7f800000 : bits_as<uint32_t>(finite);
  return bits_as<float>(size | static_cast<uint32_t>(x.bits & 0x8000) << 16);
}

inline void store(float& to, float x) { to = x; }
inline void store(bfloat16& to, float x) {  // to the nearest, ties to even; NaN stays NaN
  const uint32_t u = bits_as<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
inline void store(float16& to, float x) {  // to the nearest, ties to even; too large becomes infinite; NaN stays NaN
  const uint32_t u = bits_as<uint32_t>(x) & 0x7fffffff;
  const uint32_t normal = (u + 0xc8000fff + ((u >> 13) & 1)) >> 13;
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(u) + 0.5f) - 0x3f000000;  // the sum rounds at 2**-24
  const uint32_t large = u > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t size = u >= 0x47800000 ? large : u < 0x38800000 ? subnormal : normal;
  to.bits = static_cast<uint16_t>(size | (bits_as<uint32_t>(x) >> 16 & 0x8000));
}

// exp(x) for x <= 0, relative error below 2e-7; 0 below -87, where it would be about 1e-38. NaN gives NaN.
// x = n ln 2 + r with |r| <= ln(2) / 2, and Taylor's polynomial for exp(r).
inline float exp_negative(float exponent) {
  const float x = exponent < -87.0f ? -87.0f : exponent;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2**23: the sum's low bits are the nearest integer
  const float n = shifted - 12582912.0f;
  float r = x - n * 0.693145752f;
  r = r - n * 1.42860677e-6f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  p *= bits_as<float>((bits_as<uint32_t>(shifted) << 23) + 0x3f800000u);
  return exponent < -87.0f ? 0.0f : p;
}

// The sum of N numbers, a power of 2, in log2(N) steps, where one after the other would take N - 1.
template <size_t N>
inline float sum_lanes(float (&lanes)[N]) {
  for (size_t width = N / 2; width; width /= 2)
#pragma omp simd
    for (size_t j = 0; j < width; j++) lanes[j] += lanes[j + width];
  return lanes[0];
}

// --- dropout ---------------------------------------------------------------------------------------------------------

// A random number for every element from its place alone, so that the backward pass draws the same ones again instead of
// keeping them: an integer hash (two multiply-xorshift rounds; constants of lowbias32 by C. Wellons) under a 64-bit key.
// One 32-bit hash serves two neighbours in a row; an element is dropped where its 16 bits are below `threshold`.
struct Dropout {
  uint32_t key0, key1, threshold;
  float scale;  // 1 / (share that is kept)
};

// factors[0 .. n): 0 where an element is dropped, else the scale; the elements' first hash is number `place`
inline void draw_words(Dropout dropout, int64_t place, int64_t n, uint32_t* RESTRICT words, float* RESTRICT factors) {
  if (!dropout.threshold) {
    std::fill(factors, factors + n, 1.0f);
    return;
  }
  const int64_t count = (n + 1) / 2;
  const uint32_t first = static_cast<uint32_t>(place);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    uint32_t x = (first + static_cast<uint32_t>(i)) ^ dropout.key0;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) + dropout.key1;
    x *= 0x846ca68bu;
    words[i] = x ^ (x >> 16);
  }
  // Both halves of a word, in the order in which they lie in memory.
  const int32_t threshold = static_cast<int32_t>(dropout.threshold);
  const float scale = dropout.scale;
#pragma omp simd
  for (int64_t i = 0; i < n / 2; i++) {
    factors[2 * i] = static_cast<int32_t>(words[i] & 0xffff) >= threshold ? scale : 0.0f;
    factors[2 * i + 1] = static_cast<int32_t>(words[i] >> 16) >= threshold ? scale : 0.0f;
  }
  if (n % 2) factors[n - 1] = static_cast<int32_t>(words[n / 2] & 0xffff) >= threshold ? scale : 0.0f;
}

// factors of row number `row`, of n elements
inline void draw(Dropout dropout, int64_t row, int64_t n, uint32_t* RESTRICT words, float* RESTRICT factors) {
  draw_words(dropout, row * ((n + 1) / 2), n, words, factors);
}

// Room for a few rows, per piece of work.
struct Scratch {
  std::vector<uint32_t> words;
  std::vector<float> floats;
  int64_t n;
  explicit Scratch(int64_t n) : words((n + 1) / 2), floats(3 * n), n(n) {}
  float* row(int which) { return floats.data() + which * n; }
};

constexpr int64_t GRAIN = 32;  // rows: enough work to hand out, and few enough partial sums

}  // namespace

// --- the kernels -----------------------------------------------------------------------------------------------------

template <class T>
static void add_norm_row(const float* RESTRICT x, const T* RESTRICT y,
                         const float* RESTRICT weight, const float* RESTRICT bias, float eps, const float* RESTRICT factors,
                         float* RESTRICT out, T* RESTRICT low, float& mean, float& rstd, int64_t n) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; j++) {
    const float s = x[j] + load(y[j]) * factors[j];
    out[j] = s;
    sum += s;
  }
  const float m = sum / static_cast<float>(n);
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < n; j++) squares += (out[j] - m) * (out[j] - m);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float v = (out[j] - m) * r * weight[j] + bias[j];
    out[j] = v;
    store(low[j], v);
  }
  mean = m;
  rstd = r;
}

// out = LayerNorm(x + dropout(y)), and `low` = out in T.
// x, out: rows x n float; y: rows x n of T; mean, rstd: rows, for the backward pass.
template <class T>
static void add_norm(const float* x, const T* y, const float* weight, const float* bias,
                     float eps, Dropout dropout, float* out, T* low, float* mean, float* rstd,
                     int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(n);
    float* factors = scratch.row(0);
    for (int64_t row = first; row < last; row++) {
      if (dropout.threshold || row == first) draw(dropout, row, n, scratch.words.data(), factors);
      add_norm_row(x + row * n, y + row * n, weight, bias, eps, factors, out + row * n, low + row * n,
                   mean[row], rstd[row], n);
    }
  });
}

template <class T>
static void add_norm_backward_row(float* RESTRICT grad, T* RESTRICT grad_low, const float* RESTRICT x,
                                  const T* RESTRICT y, const float* RESTRICT weight,
                                  const float* RESTRICT factors, float mean, float rstd, float* RESTRICT normal, float* RESTRICT weighted,
                                  float* RESTRICT weight_sums, float* RESTRICT bias_sums, int64_t n) {
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t j = 0; j < n; j++) {
    const float g = grad[j] + load(grad_low[j]);
    const float h = (x[j] + load(y[j]) * factors[j] - mean) * rstd;
    const float gw = g * weight[j];
    weight_sums[j] += g * h;
    bias_sums[j] += g;
    normal[j] = h;
    weighted[j] = gw;
    sum += gw;
    product += gw * h;
  }
  sum /= static_cast<float>(n);
  product /= static_cast<float>(n);
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float v = rstd * (weighted[j] - sum - normal[j] * product);
    grad[j] = v;
    store(grad_low[j], v * factors[j]);
  }
}

// The gradients of add_norm: grad and grad_low, those of out and low, become those of x and y; those of weight and bias come
// as one partial sum per GRAIN rows: partials (pieces x 2 x n).
template <class T>
static void add_norm_backward(float* grad, T* grad_low, const float* x, const T* y,
                              const float* weight, Dropout dropout, const float* mean,
                              const float* rstd, float* partials, int64_t rows, int64_t n,
                              int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(n);
    float* factors = scratch.row(0);
    float* sums = partials + first / GRAIN * 2 * n;
    std::fill(sums, sums + 2 * n, 0.0f);
    for (int64_t row = first; row < last; row++) {
      if (dropout.threshold || row == first) draw(dropout, row, n, scratch.words.data(), factors);
      add_norm_backward_row(grad + row * n, grad_low + row * n, x + row * n, y + row * n, weight, factors,
                            mean[row], rstd[row], scratch.row(1), scratch.row(2), sums,
                            sums + n, n);
    }
  });
}

template <class T>
static void drop_row(const float* RESTRICT x, const T* RESTRICT x_low, const float* RESTRICT factors, float* RESTRICT out,
                     T* RESTRICT low, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float v = (x[j] + (x_low ? load(x_low[j]) : 0.0f)) * factors[j];
    out[j] = v;
    if (low) store(low[j], v);
  }
}

// out = dropout(x + x_low), and `low` = out in T, rows x n. x_low and low may be null: forwards there is no x_low, backwards
// no low.
template <class T>
static void drop(const float* x, const T* x_low, Dropout dropout, float* out, T* low, int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(n);
    for (int64_t row = first; row < last; row++) {
      draw(dropout, row, n, scratch.words.data(), scratch.row(0));
      drop_row(x + row * n, x_low ? x_low + row * n : nullptr, scratch.row(0), out + row * n, low ? low + row * n : nullptr, n);
    }
  });
}

// The standard normal distribution at x. cdf is 1/2 (1 + erf(x / sqrt 2)) with erf after Abramowitz & Stegun 7.1.26
// (absolute error below 1.5e-7), which needs the same exponential as the density.
struct Normal {
  float cdf, density;
  explicit inline Normal(float x) {
    const float e = exp_negative(-0.5f * x * x);
    const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * std::fabs(x));
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float tail = 0.5f * p * t * e;
    cdf = x < 0 ? tail : 1.0f - tail;
    density = 0.39894228f * e;
  }
};

template <class T>
static void gelu_backward_row(T* RESTRICT grad, const T* RESTRICT x, float* RESTRICT sums,
                              int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float v = load(x[j]);
    const Normal normal(v);
    const float g = load(grad[j]) * (normal.cdf + v * normal.density);
    store(grad[j], g);
    sums[j] += g;
  }
}

// grad, the gradient of gelu(x), becomes that of x, rows x n of T; its column sums, the gradient of a bias inside x, come as
// one partial sum per GRAIN rows: partials (pieces x n).
template <class T>
static void gelu_backward(T* grad, const T* x, float* partials, int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    float* sums = partials + first / GRAIN * n;
    std::fill(sums, sums + n, 0.0f);
    for (int64_t row = first; row < last; row++) gelu_backward_row(grad + row * n, x + row * n, sums, n);
  });
}

template <class T>
static void add_row(const T* RESTRICT x, float* RESTRICT sums, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) sums[j] += load(x[j]);
}

// The sums of x's columns, rows x n of T, one partial sum per GRAIN rows: partials (pieces x n).
template <class T>
static void column_sums(const T* x, float* partials, int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    float* sums = partials + first / GRAIN * n;
    std::fill(sums, sums + n, 0.0f);
    for (int64_t row = first; row < last; row++) add_row(x + row * n, sums, n);
  });
}

// One tile of 8 x 8 16-bit numbers: row i of the result is column i.
static inline void transpose_tile(const uint16_t* x, int64_t x_stride, uint16_t* out, int64_t out_stride) {
  using Row = uint16_t __attribute__((vector_size(16)));
  Row r[8], s[8];
  for (int i = 0; i < 8; i++) std::memcpy(&r[i], x + i * x_stride, sizeof(Row));
  // Three rounds of interleaving rows i and i + 4 carry the three bits of the row number over to the column number.
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 4; i++) {
      s[2 * i] = FIRST_HALVES(r[i], r[i + 4]);
      s[2 * i + 1] = LAST_HALVES(r[i], r[i + 4]);
    }
    for (int i = 0; i < 8; i++) r[i] = s[i];
  }
  for (int i = 0; i < 8; i++) std::memcpy(out + i * out_stride, &r[i], sizeof(Row));
}

// out (n x rows) = x (rows x n) transposed, 16-bit numbers.
static void transpose_16(const uint16_t* x, uint16_t* out, int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {  // whose numbers fill the cache lines that they go to
    for (int64_t column = 0; column < n; column += 8) {
      for (int64_t row = first; row < last; row += 8) {
        if (row + 8 <= last && column + 8 <= n) {
          transpose_tile(x + row * n + column, n, out + column * rows + row, rows);
        } else {
          for (int64_t i = row; i < std::min(row + 8, last); i++)
            for (int64_t j = column; j < std::min(column + 8, n); j++) out[j * rows + i] = x[i * n + j];
        }
      }
    }
  });
}

// --- attention -------------------------------------------------------------------------------------------------------

// Sixteen floats, whatever the machine's vectors hold: the compiler splits them or not.
using Lanes = float __attribute__((vector_size(64)));
using Places = int32_t __attribute__((vector_size(64)));
constexpr int64_t LANES = 16;
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 8, TILE_LANES = 2;  // 16 of 32 vector registers hold sums
#else
constexpr int TILE_ROWS = 4, TILE_LANES = 1;  // 8 of 16, where a register holds half of Lanes
#endif

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline void read_lanes(const float* from, Lanes& to) { std::memcpy(&to, from, sizeof to); }

// R x (16 C) numbers of a product; see `multiply`.
template <int R, int C>
inline void multiply_tile(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row, float* c,
                          int64_t c_row, int64_t inner, bool add) {
  Lanes sums[R][C] = {};
  if (add)
    for (int i = 0; i < R; i++)
      for (int j = 0; j < C; j++) read_lanes(c + i * c_row + j * LANES, sums[i][j]);
  for (int64_t k = 0; k < inner; k++) {
    Lanes right[C];
    for (int j = 0; j < C; j++) read_lanes(b + k * b_row + j * LANES, right[j]);
    for (int i = 0; i < R; i++)
      for (int j = 0; j < C; j++) sums[i][j] += a[i * a_row + k * a_column] * right[j];
  }
  for (int i = 0; i < R; i++)
    for (int j = 0; j < C; j++) {
      const Lanes sum = sums[i][j];  // a copy: an array whose address is taken would not stay in registers
      std::memcpy(c + i * c_row + j * LANES, &sum, sizeof sum);
    }
}

// c (rows x columns) = a (rows x inner) b (inner x columns), or added to c. `columns` is a multiple of 16; element (i, k) of a
// lies at i a_row + k a_column, so that a may be transposed. R: rows of a tile, a power of 2; what is left goes to smaller ones.
template <int R = TILE_ROWS>
inline void multiply(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row, float* c, int64_t c_row,
                     int64_t rows, int64_t columns, int64_t inner, bool add = false) {
  for (; rows >= R; rows -= R, a += R * a_row, c += R * c_row) {
    int64_t j = 0;
    for (; j + TILE_LANES * LANES <= columns; j += TILE_LANES * LANES)
      multiply_tile<R, TILE_LANES>(a, a_row, a_column, b + j, b_row, c + j, c_row, inner, add);
    for (; j < columns; j += LANES) multiply_tile<R, 1>(a, a_row, a_column, b + j, b_row, c + j, c_row, inner, add);
  }
  if constexpr (R > 1)
    if (rows) multiply<R / 2>(a, a_row, a_column, b, b_row, c, c_row, rows, columns, inner, add);
}

// Where the heads of a batch's rows lie. Row r holds tokens offsets[r] to offsets[r + 1]; token t's head h of a tensor begins
// at t * stride + h * size. A row has as many queries as tokens, or one, its number its row's (`alone`).
struct Heads {
  const int64_t* offsets;
  int64_t rows, heads, size;
  int64_t q_stride, kv_stride;
  int64_t longest;  // row, in tokens
  int64_t alone;
};

constexpr int64_t QUERIES = 32;  // whose scores are held at once

// What one head of one row needs, in float32: per thread, kept from call to call.
struct HeadScratch {
  int64_t tokens, padded, size, wide;  // padded: tokens, wide: size, each to whole Lanes
  float *q, *k, *k_turned, *v, *v_turned, *grad, *grad_q, *grad_k, *grad_v, *scores, *grad_scores, *factors;
  uint32_t* words;

  HeadScratch(int64_t tokens, int64_t size, bool backward)
      : tokens(tokens), padded(round_up(tokens, LANES)), size(size), wide(round_up(size, LANES)) {
    static thread_local std::vector<float> floats;
    static thread_local std::vector<uint32_t> integers;
    const int64_t columns = round_up(tokens, 2 * LANES);
    const int64_t tokens_wide = tokens * wide, size_padded = size * padded, queries_wide = QUERIES * wide;
    const int64_t block = QUERIES * padded;
    const int64_t sizes[] = {queries_wide, size_padded, tokens_wide, block, QUERIES * columns,  // forward
                             tokens_wide, size_padded, queries_wide, queries_wide, tokens_wide, tokens_wide, block};
    float** const places[] = {&q, &k_turned, &v, &scores, &factors,
                              &k, &v_turned, &grad, &grad_q, &grad_k, &grad_v, &grad_scores};
    const int count = backward ? 12 : 5;
    int64_t total = 0;
    for (int i = 0; i < count; i++) total += sizes[i];
    if (static_cast<int64_t>(floats.size()) < total) floats.resize(total);
    if (static_cast<int64_t>(integers.size()) < columns / 2) integers.resize(columns / 2);
    float* next = floats.data();
    for (int i = 0; i < count; i++) *places[i] = next, next += sizes[i];
    words = integers.data();
  }

  // rows of `size` numbers, `stride` apart -> rows of `wide` floats, times `factor`
  template <class T>
  void read(const T* from, int64_t stride, int64_t rows, float factor, float* to) const {
    // The usual sizes as numbers that the compiler knows: a few instructions in place of a loop.
    if (size == 32) return read_rows<32>(from, stride, rows, factor, to);
    if (size == 64) return read_rows<64>(from, stride, rows, factor, to);
    read_rows<0>(from, stride, rows, factor, to);
    for (int64_t i = 0; i < rows; i++) std::fill(to + i * wide + size, to + (i + 1) * wide, 0.0f);
  }

  template <int64_t SIZE, class T>
  void read_rows(const T* RESTRICT from, int64_t stride, int64_t rows, float factor, float* RESTRICT to) const {
    for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
      for (int64_t j = 0; j < (SIZE ? SIZE : size); j++)
        to[i * (SIZE ? SIZE : wide) + j] = load(from[i * stride + j]) * factor;
    }
  }

  template <class T>
  void write(const float* from, int64_t rows, float factor, T* to, int64_t stride) const {
    if (size == 32) return write_rows<32>(from, rows, factor, to, stride);
    if (size == 64) return write_rows<64>(from, rows, factor, to, stride);
    write_rows<0>(from, rows, factor, to, stride);
  }

  template <int64_t SIZE, class T>
  void write_rows(const float* RESTRICT from, int64_t rows, float factor, T* RESTRICT to, int64_t stride) const {
    for (int64_t i = 0; i < rows; i++) {
#pragma omp simd
      for (int64_t j = 0; j < (SIZE ? SIZE : size); j++)
        store(to[i * stride + j], from[i * (SIZE ? SIZE : wide) + j] * factor);
    }
  }

  // tokens x wide -> size x padded
  void turn(const float* RESTRICT from, float* RESTRICT to) const {
    int64_t i = 0;
    for (; i + LANES <= tokens; i += LANES)
      for (int64_t j = 0; j < size; j += LANES) turn_lanes(from + i * wide + j, to + j * padded + i, std::min(LANES, size - j));
    for (int64_t j = 0; j < size; j++) {
      for (int64_t k = i; k < tokens; k++) to[j * padded + k] = from[k * wide + j];
      std::fill(to + j * padded + tokens, to + (j + 1) * padded, 0.0f);
    }
  }

  // The first `rows` rows of a square of Lanes transposed.
  void turn_lanes(const float* from, float* to, int64_t rows) const {
    Lanes r[LANES], s[LANES];
    for (int i = 0; i < LANES; i++) std::memcpy(&r[i], from + i * wide, sizeof(Lanes));
    for (int round = 0; round < 4; round++) {  // as in transpose_tile
      for (int i = 0; i < LANES / 2; i++) {
        s[2 * i] = FIRST_LANES(r[i], r[i + LANES / 2]);
        s[2 * i + 1] = LAST_LANES(r[i], r[i + LANES / 2]);
      }
      for (int i = 0; i < LANES; i++) r[i] = s[i];
    }
    for (int64_t i = 0; i < rows; i++) std::memcpy(to + i * padded, &r[i], sizeof(Lanes));
  }
};

// e (n numbers, a multiple of 16) = softmax(e) over the first `count`; the others become 0
inline void softmax_row(float* RESTRICT e, int64_t count, int64_t n) {
  std::fill(e + count, e + n, -INFINITY);
  float highest = -INFINITY, sums[LANES] = {};
#pragma omp simd reduction(max : highest)
  for (int64_t j = 0; j < n; j++) highest = e[j] > highest ? e[j] : highest;
  for (int64_t i = 0; i < n; i += LANES)
#pragma omp simd
    for (int64_t j = 0; j < LANES; j++) {
      const float v = exp_negative(e[i + j] - highest);
      e[i + j] = v;
      sums[j] += v;
    }
  const float whole = 1.0f / sum_lanes(sums);
#pragma omp simd
  for (int64_t j = 0; j < n; j++) e[j] *= whole;
}

inline void scale_row(float* RESTRICT x, const float* RESTRICT factors, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) x[j] *= factors[j];
}

// From p = softmax(s) and g, the gradient of p * factors: g becomes the gradient of s, and p becomes p * factors.
inline void softmax_backward_row(float* RESTRICT g, float* RESTRICT p, const float* RESTRICT factors, int64_t n) {
  float sums[LANES] = {};
  for (int64_t i = 0; i < n; i += LANES)
#pragma omp simd
    for (int64_t j = 0; j < LANES; j++) {
      g[i + j] *= factors[i + j];
      sums[j] += g[i + j] * p[i + j];
    }
  const float sum = sum_lanes(sums);
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    g[j] = p[j] * (g[j] - sum);
    p[j] *= factors[j];
  }
}

// Factors of the shares of one query of one head.
inline void draw_shares(Dropout dropout, const Heads& at, int64_t query, int64_t head, HeadScratch& scratch, float* factors) {
  const int64_t columns = round_up(scratch.tokens, 2 * LANES), row_words = round_up(at.longest, 2 * LANES) / 2;
  draw_words(dropout, (query * at.heads + head) * row_words, columns, scratch.words, factors);
}

// out (queries x heads x size, no gaps) = dropout(softmax(scale * q k^T)) v for each head of each row, all of T.
template <class T>
static void attention(const T* q, const T* k, const T* v, const Heads& at, float scale, Dropout dropout, T* out, int threads) {
  for_rows(at.rows * at.heads, 1, threads, [=](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t row = piece / at.heads, head = piece % at.heads, hidden = at.heads * at.size;
      const int64_t begin = at.offsets[row], tokens = at.offsets[row + 1] - begin;
      const int64_t queries = at.alone ? 1 : tokens, first_query = at.alone ? row : begin;
      HeadScratch s(tokens, at.size, false);
      s.read(k + begin * at.kv_stride + head * at.size, at.kv_stride, tokens, 1.0f, s.v);
      s.turn(s.v, s.k_turned);
      s.read(v + begin * at.kv_stride + head * at.size, at.kv_stride, tokens, 1.0f, s.v);
      for (int64_t i = 0; i < queries; i += QUERIES) {
        const int64_t query = first_query + i, count = std::min(QUERIES, queries - i);
        s.read(q + query * at.q_stride + head * at.size, at.q_stride, count, scale, s.q);
        multiply(s.q, s.wide, 1, s.k_turned, s.padded, s.scores, s.padded, count, s.padded, at.size);
        for (int64_t j = 0; j < count; j++) {
          softmax_row(s.scores + j * s.padded, tokens, s.padded);
          if (!dropout.threshold) continue;
          draw_shares(dropout, at, query + j, head, s, s.factors);
          scale_row(s.scores + j * s.padded, s.factors, s.padded);
        }
        multiply(s.scores, s.padded, 1, s.v, s.wide, s.q, s.wide, count, s.wide, tokens);
        s.write(s.q, count, 1.0f, out + query * hidden + head * at.size, hidden);
      }
    }
  });
}

// The gradients of q, k and v, which lie as those do, from grad, that of out. The shares are computed again.
template <class T>
static void attention_backward(const T* grad, const T* q, const T* k, const T* v, const Heads& at, float scale,
                               Dropout dropout, T* grad_q, T* grad_k, T* grad_v, int threads) {
  for_rows(at.rows * at.heads, 1, threads, [=](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t row = piece / at.heads, head = piece % at.heads, hidden = at.heads * at.size;
      const int64_t begin = at.offsets[row], tokens = at.offsets[row + 1] - begin;
      const int64_t queries = at.alone ? 1 : tokens, first_query = at.alone ? row : begin;
      const int64_t place = begin * at.kv_stride + head * at.size;
      HeadScratch s(tokens, at.size, true);
      s.read(v + place, at.kv_stride, tokens, 1.0f, s.v);
      s.turn(s.v, s.v_turned);
      s.read(k + place, at.kv_stride, tokens, 1.0f, s.k);
      s.turn(s.k, s.k_turned);
      for (int64_t i = 0; i < queries; i += QUERIES) {
        const int64_t query = first_query + i, count = std::min(QUERIES, queries - i);
        s.read(q + query * at.q_stride + head * at.size, at.q_stride, count, scale, s.q);
        s.read(grad + query * hidden + head * at.size, hidden, count, 1.0f, s.grad);
        multiply(s.q, s.wide, 1, s.k_turned, s.padded, s.scores, s.padded, count, s.padded, at.size);
        multiply(s.grad, s.wide, 1, s.v_turned, s.padded, s.grad_scores, s.padded, count, s.padded, at.size);
        if (!dropout.threshold) std::fill(s.factors, s.factors + s.padded, 1.0f);
        for (int64_t j = 0; j < count; j++) {
          softmax_row(s.scores + j * s.padded, tokens, s.padded);
          if (dropout.threshold) draw_shares(dropout, at, query + j, head, s, s.factors);
          softmax_backward_row(s.grad_scores + j * s.padded, s.scores + j * s.padded, s.factors, s.padded);
        }
        multiply(s.grad_scores, s.padded, 1, s.k, s.wide, s.grad_q, s.wide, count, s.wide, tokens);
        s.write(s.grad_q, count, scale, grad_q + query * at.q_stride + head * at.size, at.q_stride);
        multiply(s.grad_scores, 1, s.padded, s.q, s.wide, s.grad_k, s.wide, tokens, s.wide, count, i > 0);
        multiply(s.scores, 1, s.padded, s.grad, s.wide, s.grad_v, s.wide, tokens, s.wide, count, i > 0);
      }
      s.write(s.grad_k, tokens, 1.0f, grad_k + place, at.kv_stride);
      s.write(s.grad_v, tokens, 1.0f, grad_v + place, at.kv_stride);
    }
  });
}

// The same in four steps for long rows in bfloat16, between which the matrix units multiply: the heads are split into padded
// matrices of width x size, their scores become shares, and the heads are joined again.

// (tokens, heads, size) of T -> (rows, heads, width, size), zero where a row has no token, or back
template <bool SPLIT, class T>
static void move_heads(T* joined, int64_t stride, T* split, const Heads& at, int64_t width, int threads) {
  for_rows(at.rows * at.heads, 4, threads, [=](int64_t first, int64_t last) {
    const int64_t bytes = at.size * sizeof(T);
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t row = piece / at.heads, begin = at.offsets[row], tokens = at.offsets[row + 1] - begin;
      T* j = joined + begin * stride + piece % at.heads * at.size;
      T* s = split + piece * width * at.size;
      for (int64_t i = 0; i < tokens; i++) {
        if (SPLIT)
          std::memcpy(s + i * at.size, j + i * stride, bytes);
        else
          std::memcpy(j + i * stride, s + i * at.size, bytes);
      }
      if (SPLIT) std::memset(s + tokens * at.size, 0, (width - tokens) * bytes);
    }
  });
}

// scores (rows, heads, width, width) become shares, softmax(scale * scores); dropped = dropout(shares); 0 where there is no token
template <class T>
static void softmax_dropout(T* scores, const Heads& at, int64_t width, float scale, Dropout dropout, T* dropped, int threads) {
  for_rows(at.rows * at.heads, 1, threads, [=](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t begin = at.offsets[piece / at.heads], tokens = at.offsets[piece / at.heads + 1] - begin;
      HeadScratch scratch(tokens, at.size, false);
      float* e = scratch.scores;
      for (int64_t i = 0; i < width; i++) {
        T* RESTRICT shares = scores + (piece * width + i) * width;
        T* RESTRICT kept = dropped + (piece * width + i) * width;
        const int64_t count = i < tokens ? tokens : 0;
        if (count) {
#pragma omp simd
          for (int64_t j = 0; j < count; j++) e[j] = load(shares[j]) * scale;
          softmax_row(e, count, scratch.padded);
          draw_shares(dropout, at, begin + i, piece % at.heads, scratch, scratch.factors);
          const float* RESTRICT factors = scratch.factors;
#pragma omp simd
          for (int64_t j = 0; j < count; j++) {
            store(shares[j], e[j]);
            store(kept[j], e[j] * factors[j]);
          }
        }
        std::memset(shares + count, 0, (width - count) * sizeof(T));
        std::memset(kept + count, 0, (width - count) * sizeof(T));
      }
    }
  });
}

// grad, the gradient of `dropped`, becomes that of the scores
template <class T>
static void softmax_dropout_backward(T* grad, const T* shares, const Heads& at, int64_t width, float scale, Dropout dropout,
                                     int threads) {
  for_rows(at.rows * at.heads, 1, threads, [=](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; piece++) {
      const int64_t begin = at.offsets[piece / at.heads], tokens = at.offsets[piece / at.heads + 1] - begin;
      HeadScratch scratch(tokens, at.size, true);
      float *g = scratch.grad_scores, *p = scratch.scores;
      for (int64_t i = 0; i < width; i++) {
        T* RESTRICT here = grad + (piece * width + i) * width;
        const T* RESTRICT share = shares + (piece * width + i) * width;
        const int64_t count = i < tokens ? tokens : 0;
        if (count) {
          std::fill(g + count, g + scratch.padded, 0.0f);
          std::fill(p + count, p + scratch.padded, 0.0f);
#pragma omp simd
          for (int64_t j = 0; j < count; j++) {
            g[j] = load(here[j]);
            p[j] = load(share[j]);
          }
          draw_shares(dropout, at, begin + i, piece % at.heads, scratch, scratch.factors);
          softmax_backward_row(g, p, scratch.factors, scratch.padded);
#pragma omp simd
          for (int64_t j = 0; j < count; j++) store(here[j], g[j] * scale);
        }
        std::memset(here + count, 0, (width - count) * sizeof(T));
      }
    }
  });
}

// --- AdamW -----------------------------------------------------------------------------------------------------------

// What one update of AdamW needs, beside the tensors; as in torch.optim.AdamW.
struct Adam {
  float scale;       // the gradient's factor: unscaling and clipping
  float decay;       // 1 - learning rate * weight decay
  float beta2, rest1, rest2;  // beta2, 1 - beta1 and 1 - beta2, each rounded by itself
  float step_size;   // learning rate / (1 - beta1 ** step)
  float correction;  // 1 / sqrt(1 - beta2 ** step)
  float epsilon;
};

// One row of n numbers; `g`, its gradient, is float or T, or absent (null) where it is zero.
template <bool GRADIENT, class T>
inline void adam_row(Adam adam, float* RESTRICT w, const T* RESTRICT g, float* RESTRICT m, float* RESTRICT v, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float x = GRADIENT ? load(g[j]) * adam.scale : 0.0f;
    m[j] += (x - m[j]) * adam.rest1;
    v[j] = v[j] * adam.beta2 + x * x * adam.rest2;
    w[j] = w[j] * adam.decay - adam.step_size * m[j] / (std::sqrt(v[j]) * adam.correction + adam.epsilon);
  }
}

template <class T>
inline void round_row(const float* RESTRICT w, T* RESTRICT low, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; j++) store(low[j], w[j]);
}

constexpr int64_t CHUNK = 8192;  // numbers of a tensor that are handed out at once
constexpr int64_t NEAR = 1024;   // and at most so many at once: small enough to be read again from the nearest cache

// One tensor of n numbers. Its gradient is `g`, or `g_low` in T where g is null; `low`, the weight's copy in T, is rounded anew
// (null: there is none).
template <class T>
static void adamw(Adam adam, float* w, const float* g, const T* g_low, float* m, float* v, T* low, int64_t n, int threads) {
  for_rows(n, CHUNK, threads, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += NEAR) {
      const int64_t size = std::min(NEAR, last - i);
      if (g)
        adam_row<true>(adam, w + i, g + i, m + i, v + i, size);
      else
        adam_row<true>(adam, w + i, g_low + i, m + i, v + i, size);
      if (low) round_row(w + i, low + i, size);
    }
  });
}

template <class T>
inline float sum_squares_near(const T* RESTRICT x, int64_t n) {
  float sums[4 * LANES] = {};  // four vectors: one addition need not wait for the last
  int64_t i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma omp simd
    for (int64_t j = 0; j < 4 * LANES; j++) sums[j] += load(x[i + j]) * load(x[i + j]);
  for (int64_t j = 0; i + j < n; j++) sums[j] += load(x[i + j]) * load(x[i + j]);
  return sum_lanes(sums);
}

// The sum of the squares of n numbers.
template <class T>
static double sum_squares(const T* x, int64_t n, int threads) {
  std::vector<double> partials((n + CHUNK - 1) / CHUNK);
  double* sums = partials.data();
  for_rows(n, CHUNK, threads, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += NEAR) sums[first / CHUNK] += sum_squares_near(x + i, std::min(NEAR, last - i));
  });
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum;
}

// Some rows of a table whose rows seldom have a gradient. A row sleeps until it is needed: only then the updates that it slept
// through, in which its gradient was zero, are done one after the other in the nearest cache, with the same result as if each
// had been done at its time. `adams` are all `updates` updates, done[row] says how many of them a row has had; where a row has never
// had a gradient (not seen[row]) its moments are zero and all there is to do is the decay.
// rows (null: the first `count` ones), each once, are brought to the last update; with `g` (count x n), to the one before, and
// then have the last one with row i of g for rows[i].
static void adamw_table(const Adam* adams, int64_t updates, float* w, const float* g, const int64_t* rows, int64_t count,
                        int64_t* done, uint8_t* seen, float* m, float* v, int64_t n, int threads) {
  for_rows(count, GRAIN, threads, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const int64_t row = rows ? rows[i] : i;
      float* const weight = w + row * n;
      for (int64_t update = done[row]; update < updates - (g != nullptr); update++) {
        const Adam& adam = adams[update];
        if (seen[row]) {
          adam_row<false, float>(adam, weight, nullptr, m + row * n, v + row * n, n);
        } else if (adam.decay != 1.0f) {
          for (int64_t j = 0; j < n; j++) weight[j] *= adam.decay;
        }
      }
      if (g) {
        adam_row<true>(adams[updates - 1], weight, g + i * n, m + row * n, v + row * n, n);
        seen[row] = 1;
      }
      done[row] = updates;
    }
  });
}

extern "C" {

void set_team(void* gomp_parallel) { team = reinterpret_cast<Team>(gomp_parallel); }

// Which text this was built from: bert/engines/kernels.py calls no library of another one.
const char* source_digest() { return SOURCE_DIGEST; }

int64_t grain() { return GRAIN; }

void adamw_rows(const Adam* adams, int64_t updates, float* w, const float* g, const int64_t* rows, int64_t count, int64_t* done,
                uint8_t* seen, float* m, float* v, int64_t n, int threads) {
  adamw_table(adams, updates, w, g, rows, count, done, seen, m, v, n, threads);
}

void transpose(const uint16_t* x, uint16_t* out, int64_t rows, int64_t n, int threads) { transpose_16(x, out, rows, n, threads); }

#define FOR_TYPE(T, name)                                                                                                   \
  void adamw_##name(const Adam* adam, float* w, const float* g, const T* g_low, float* m, float* v, T* low, int64_t n,       \
                    int threads) {                                                                                          \
    adamw<T>(*adam, w, g, g_low, m, v, low, n, threads);                                                                    \
  }                                                                                                                         \
  double sum_squares_##name(const T* x, int64_t n, int threads) { return sum_squares<T>(x, n, threads); }                   \
  void add_norm_##name(const float* x, const T* y, const float* weight, const float* bias,                \
                       float eps, const Dropout* dropout, float* out, T* low, float* mean, float* rstd,                     \
                       int64_t rows, int64_t n, int threads) {                                                              \
    add_norm<T>(x, y, weight, bias, eps, *dropout, out, low, mean, rstd, rows, n, threads);                       \
  }                                                                                                                         \
  void add_norm_backward_##name(float* grad, T* grad_low, const float* x, const T* y,                     \
                                const float* weight, const Dropout* dropout, const float* mean,                             \
                                const float* rstd, float* partials, int64_t rows, int64_t n,                                \
                                int threads) {                                                                              \
    add_norm_backward<T>(grad, grad_low, x, y, weight, *dropout, mean, rstd, partials,                            \
                         rows, n, threads);                                                                                 \
  }                                                                                                                         \
  void drop_##name(const float* x, const T* x_low, const Dropout* dropout, float* out, T* low, int64_t rows, int64_t n,     \
                   int threads) {                                                                                           \
    drop<T>(x, x_low, *dropout, out, low, rows, n, threads);                                                                \
  }                                                                                                                         \
  void attention_##name(const T* q, const T* k, const T* v, const Heads* heads, float scale, const Dropout* dropout, T* out,  \
                        int threads) {                                                                                      \
    attention<T>(q, k, v, *heads, scale, *dropout, out, threads);                                                           \
  }                                                                                                                         \
  void attention_backward_##name(const T* grad, const T* q, const T* k, const T* v, const Heads* heads, float scale,        \
                                 const Dropout* dropout, T* grad_q, T* grad_k, T* grad_v, int threads) {                    \
    attention_backward<T>(grad, q, k, v, *heads, scale, *dropout, grad_q, grad_k, grad_v, threads);                         \
  }                                                                                                                         \
  void split_heads_##name(T* joined, int64_t stride, T* split, const Heads* heads, int64_t width, int threads) {            \
    move_heads<true, T>(joined, stride, split, *heads, width, threads);                                                     \
  }                                                                                                                         \
  void join_heads_##name(T* joined, int64_t stride, T* split, const Heads* heads, int64_t width, int threads) {             \
    move_heads<false, T>(joined, stride, split, *heads, width, threads);                                                    \
  }                                                                                                                         \
  void softmax_dropout_##name(T* scores, const Heads* heads, int64_t width, float scale, const Dropout* dropout,            \
                              T* dropped, int threads) {                                                                    \
    softmax_dropout<T>(scores, *heads, width, scale, *dropout, dropped, threads);                                           \
  }                                                                                                                         \
  void softmax_dropout_backward_##name(T* grad, const T* shares, const Heads* heads, int64_t width, float scale,            \
                                       const Dropout* dropout, int threads) {                                               \
    softmax_dropout_backward<T>(grad, shares, *heads, width, scale, *dropout, threads);                                     \
  }                                                                                                                         \
  void gelu_backward_##name(T* grad, const T* x, float* partials, int64_t rows, int64_t n, int threads) {                   \
    gelu_backward<T>(grad, x, partials, rows, n, threads);                                                                  \
  }                                                                                                                         \
  void column_sums_##name(const T* x, float* partials, int64_t rows, int64_t n, int threads) {                              \
    column_sums<T>(x, partials, rows, n, threads);                                                                          \
  }

FOR_TYPE(float, float32)
FOR_TYPE(bfloat16, bfloat16)
FOR_TYPE(float16, float16)
}
