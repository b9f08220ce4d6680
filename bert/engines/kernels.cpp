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
#else
#define FIRST_HALVES(a, b) __builtin_shuffle(a, b, Row{0, 8, 1, 9, 2, 10, 3, 11})
#define LAST_HALVES(a, b) __builtin_shuffle(a, b, Row{4, 12, 5, 13, 6, 14, 7, 15})
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

// factors of `rows` rows of n elements from row `row` on. Where n is even their words follow each other: one loop draws all.
inline void draw(Dropout dropout, int64_t row, int64_t rows, int64_t n, uint32_t* RESTRICT words, float* RESTRICT factors) {
  if (n % 2 == 0) return draw_words(dropout, row * (n / 2), rows * n, words, factors);
  for (int64_t i = 0; i < rows; i++) draw_words(dropout, (row + i) * ((n + 1) / 2), n, words, factors + i * n);
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
constexpr int64_t BLOCK = 16;  // rows of attention whose dropout is drawn at once: short rows cost more than their work

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
// x, out: rows x n float; a row of x begins every x_stride elements; y: rows x n of T; mean, rstd: rows, for the backward pass.
template <class T>
static void add_norm(const float* x, int64_t x_stride, const T* y, const float* weight, const float* bias,
                     float eps, Dropout dropout, float* out, T* low, float* mean, float* rstd,
                     int64_t rows, int64_t n, int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(n);
    float* factors = scratch.row(0);
    for (int64_t row = first; row < last; row++) {
      if (dropout.threshold || row == first) draw(dropout, row, 1, n, scratch.words.data(), factors);
      add_norm_row(x + row * x_stride, y + row * n, weight, bias, eps, factors, out + row * n, low + row * n,
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
static void add_norm_backward(float* grad, T* grad_low, const float* x, int64_t x_stride, const T* y,
                              const float* weight, Dropout dropout, const float* mean,
                              const float* rstd, float* partials, int64_t rows, int64_t n,
                              int threads) {
  for_rows(rows, GRAIN, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(n);
    float* factors = scratch.row(0);
    float* sums = partials + first / GRAIN * 2 * n;
    std::fill(sums, sums + 2 * n, 0.0f);
    for (int64_t row = first; row < last; row++) {
      if (dropout.threshold || row == first) draw(dropout, row, 1, n, scratch.words.data(), factors);
      add_norm_backward_row(grad + row * n, grad_low + row * n, x + row * x_stride, y + row * n, weight, factors,
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
      draw(dropout, row, 1, n, scratch.words.data(), scratch.row(0));
      drop_row(x + row * n, x_low ? x_low + row * n : nullptr, scratch.row(0), out + row * n, low ? low + row * n : nullptr, n);
    }
  });
}

template <class T>
static void softmax_row(T* RESTRICT scores, int64_t count, float scale, const float* RESTRICT factors,
                        float* RESTRICT e, T* RESTRICT dropped, int64_t n) {
  float highest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : highest)
  for (int64_t j = 0; j < count; j++) {
    e[j] = load(scores[j]) * scale;
    highest = e[j] > highest ? e[j] : highest;
  }
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; j++) {
    const float v = exp_negative(e[j] - highest);
    e[j] = v;
    sum += v;
  }
  std::fill(e + count, e + n, 0.0f);
  const float whole = 1.0f / sum;
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    const float p = e[j] * whole;
    store(scores[j], p);
    store(dropped[j], p * factors[j]);
  }
}

// The scores become shares: softmax(scale * scores) over the first valid[row / rows_per_valid] of n columns, the others 0
// (valid null: over all); dropped = dropout(shares). All rows x n of T.
template <class T>
static void softmax_dropout(T* scores, const int64_t* valid, int64_t rows_per_valid, float scale, Dropout dropout,
                            T* dropped, int64_t rows, int64_t n, int threads) {
  for_rows(rows, 8 * BLOCK, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(BLOCK * n);
    for (int64_t row = first; row < last; row++) {
      float* factors = scratch.row(0) + (row - first) % BLOCK * n;
      if ((row - first) % BLOCK == 0) draw(dropout, row, std::min(BLOCK, last - row), n, scratch.words.data(), factors);
      softmax_row(scores + row * n, valid ? valid[row / rows_per_valid] : n, scale, factors, scratch.row(1),
                  dropped + row * n, n);
    }
  });
}

template <class T>
static void softmax_backward_row(T* RESTRICT grad, const T* RESTRICT shares, float scale,
                                 const float* RESTRICT factors, float* RESTRICT g, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; j++) {
    const float v = load(grad[j]) * factors[j];
    g[j] = v;
    sum += v * load(shares[j]);
  }
#pragma omp simd
  for (int64_t j = 0; j < n; j++) store(grad[j], scale * load(shares[j]) * (g[j] - sum));
}

// grad, the gradient of `dropped`, becomes that of the scores.
template <class T>
static void softmax_dropout_backward(T* grad, const T* shares, float scale, Dropout dropout, int64_t rows,
                                     int64_t n, int threads) {
  for_rows(rows, 8 * BLOCK, threads, [=](int64_t first, int64_t last) {
    Scratch scratch(BLOCK * n);
    for (int64_t row = first; row < last; row++) {
      float* factors = scratch.row(0) + (row - first) % BLOCK * n;
      if ((row - first) % BLOCK == 0) draw(dropout, row, std::min(BLOCK, last - row), n, scratch.words.data(), factors);
      softmax_backward_row(grad + row * n, shares + row * n, scale, factors, scratch.row(1), n);
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
  for_rows((n + 63) / 64, 1, threads, [=](int64_t first, int64_t last) {
    const int64_t end = std::min(64 * last, n);
    for (int64_t row = 0; row < rows; row += 8) {
      for (int64_t column = 64 * first; column < end; column += 8) {
        if (row + 8 <= rows && column + 8 <= n) {
          transpose_tile(x + row * n + column, n, out + column * rows + row, rows);
        } else {
          for (int64_t i = row; i < std::min(row + 8, rows); i++)
            for (int64_t j = column; j < std::min(column + 8, n); j++) out[j * rows + i] = x[i * n + j];
        }
      }
    }
  });
}

// (batch, tokens, heads, bytes) <-> (batch, heads, tokens, bytes): `bytes` are one head's share of a token. On the joined side
// a batch row begins every `row_stride` bytes and a token every `token_stride`; the split side has no gaps.
template <bool SPLIT, int64_t BYTES>
static void move_heads(char* joined, int64_t row_stride, int64_t token_stride, char* split, int64_t batch, int64_t tokens,
                       int64_t heads, int64_t bytes, int threads) {
  const int64_t size = BYTES ? BYTES : bytes;
  for_rows(batch * tokens, 2 * GRAIN, threads, [=](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; k++) {
      const int64_t row = k / tokens, token = k % tokens;
      char* j = joined + row * row_stride + token * token_stride;
      char* s = split + (row * heads * tokens + token) * size;
      for (int64_t head = 0; head < heads; head++) {
        if (SPLIT)
          std::memcpy(s + head * tokens * size, j + head * size, size);
        else
          std::memcpy(j + head * size, s + head * tokens * size, size);
      }
    }
  });
}

template <bool SPLIT>
static void move_any_heads(void* joined, int64_t row_stride, int64_t token_stride, void* split, int64_t batch, int64_t tokens,
                           int64_t heads, int64_t bytes, int threads) {
  // The usual heads of 32 or 64 numbers by a size that the compiler knows: a few instructions in place of a call.
  const auto move = bytes == 64    ? move_heads<SPLIT, 64>
                    : bytes == 128 ? move_heads<SPLIT, 128>
                    : bytes == 256 ? move_heads<SPLIT, 256>
                                   : move_heads<SPLIT, 0>;
  move(static_cast<char*>(joined), row_stride, token_stride, static_cast<char*>(split), batch, tokens, heads, bytes, threads);
}

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

// The sum of the squares of n numbers.
template <class T>
static double sum_squares(const T* x, int64_t n, int threads) {
  std::vector<double> partials((n + CHUNK - 1) / CHUNK);
  double* sums = partials.data();
  for_rows(n, CHUNK, threads, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += NEAR) {
      const int64_t end = std::min(i + NEAR, last);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = i; j < end; j++) sum += load(x[j]) * load(x[j]);
      sums[first / CHUNK] += sum;
    }
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

void split_heads(void* joined, int64_t row_stride, int64_t token_stride, void* split, int64_t batch, int64_t tokens,
                 int64_t heads, int64_t bytes, int threads) {
  move_any_heads<true>(joined, row_stride, token_stride, split, batch, tokens, heads, bytes, threads);
}

void join_heads(void* joined, int64_t row_stride, int64_t token_stride, void* split, int64_t batch, int64_t tokens,
                int64_t heads, int64_t bytes, int threads) {
  move_any_heads<false>(joined, row_stride, token_stride, split, batch, tokens, heads, bytes, threads);
}

#define FOR_TYPE(T, name)                                                                                                   \
  void adamw_##name(const Adam* adam, float* w, const float* g, const T* g_low, float* m, float* v, T* low, int64_t n,       \
                    int threads) {                                                                                          \
    adamw<T>(*adam, w, g, g_low, m, v, low, n, threads);                                                                    \
  }                                                                                                                         \
  double sum_squares_##name(const T* x, int64_t n, int threads) { return sum_squares<T>(x, n, threads); }                   \
  void add_norm_##name(const float* x, int64_t x_stride, const T* y, const float* weight, const float* bias,                \
                       float eps, const Dropout* dropout, float* out, T* low, float* mean, float* rstd,                     \
                       int64_t rows, int64_t n, int threads) {                                                              \
    add_norm<T>(x, x_stride, y, weight, bias, eps, *dropout, out, low, mean, rstd, rows, n, threads);                       \
  }                                                                                                                         \
  void add_norm_backward_##name(float* grad, T* grad_low, const float* x, int64_t x_stride, const T* y,                     \
                                const float* weight, const Dropout* dropout, const float* mean,                             \
                                const float* rstd, float* partials, int64_t rows, int64_t n,                                \
                                int threads) {                                                                              \
    add_norm_backward<T>(grad, grad_low, x, x_stride, y, weight, *dropout, mean, rstd, partials,                            \
                         rows, n, threads);                                                                                 \
  }                                                                                                                         \
  void drop_##name(const float* x, const T* x_low, const Dropout* dropout, float* out, T* low, int64_t rows, int64_t n,     \
                   int threads) {                                                                                           \
    drop<T>(x, x_low, *dropout, out, low, rows, n, threads);                                                                \
  }                                                                                                                         \
  void softmax_dropout_##name(T* scores, const int64_t* valid, int64_t rows_per_valid, float scale,                         \
                              const Dropout* dropout, T* dropped, int64_t rows, int64_t n, int threads) {                   \
    softmax_dropout<T>(scores, valid, rows_per_valid, scale, *dropout, dropped, rows, n, threads);                          \
  }                                                                                                                         \
  void softmax_dropout_backward_##name(T* grad, const T* shares, float scale, const Dropout* dropout,                       \
                                       int64_t rows, int64_t n, int threads) {                                              \
    softmax_dropout_backward<T>(grad, shares, scale, *dropout, rows, n, threads);                                           \
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
