// Attention of a prefill step on a CPU, one layer: new tokens of several rows, one row after another and without
// padding, over a paged pool of keys and values.
//
// The scores that a tile of queries needs are all there at once, up to its last query's own place: what no query
// sees is not computed, and nothing but the row's own context is read. Every sum is taken in an order that depends
// on neither the other rows nor the threads nor how a prompt was cut into chunks.
//
// N new tokens of all rows, B rows, J query heads, K key heads, G = J / K, D numbers of a head, a multiple of 16.

#include "cpu_vectors.h"

#include <omp.h>

extern "C" {

struct Prefill {
    int64_t tokens, rows, width, block_size, threads;     // N, B, blocks of a row's table
    int64_t heads, keys, head_dim, positions;             // J, K, D, of `turn`
    int64_t tile, context;                                // tokens of a tile; the longest context, whole vectors
    const int64_t *firsts, *places, *slots, *tables;      // (B): a row's first of the N; (N), (N), (B, width)
    const float* turn;                                    // cosines by position, then sines, first half negative
    float* scratch;                                       // for each thread, `scratch_of` numbers
    float scaling;
};

int64_t scratch_of(const Prefill* step);
}

namespace {

constexpr int CONTEXT = 64;  // of the context at a time: what is laid out of them stays in the first cache

// c (ROWS, VECTORS * WIDE), or what is added to it: a (ROWS, depth) times b (depth, VECTORS * WIDE).
template <int ROWS, int VECTORS>
void product(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t depth, float* c,
             int64_t c_step, bool add) {
    Floats sums[ROWS * VECTORS] = {};
    if (add)
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++) sums[row * VECTORS + v] = load(c + row * c_step + v * WIDE);
    for (int64_t k = 0; k < depth; k++) {
        Floats own[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) own[v] = load(b + k * b_step + v * WIDE);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            const Floats factor = a[row * a_step + k] - Floats{};
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++)
                sums[row * VECTORS + v] = fused(factor, own[v], sums[row * VECTORS + v]);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) store(c + row * c_step + v * WIDE, sums[row * VECTORS + v]);
}

// The same for any number of rows, and columns in whole vectors.
void products(const float* a, int64_t a_step, int64_t rows, const float* b, int64_t b_step, int64_t columns,
              int64_t depth, float* c, int64_t c_step, bool add) {
    constexpr int TALL = 6;  // times two vectors: the sums have registers where there are sixteen
    for (int64_t at = 0, wide; at < columns; at += wide) {
        wide = at + 2 * WIDE <= columns ? 2 * WIDE : WIDE;
        for (int64_t row = 0, tall; row < rows; row += tall) {
            tall = row + TALL <= rows ? TALL : 1;
            const auto by = tall == TALL ? (wide == WIDE ? product<TALL, 1> : product<TALL, 2>)
                                         : (wide == WIDE ? product<1, 1> : product<1, 2>);
            by(a + row * a_step, a_step, b + at, b_step, depth, c + row * c_step + at, c_step, add);
        }
    }
}

struct Scratch {  // of one thread, for R = G * tile queries
    float *queries, *laid, *scores, *seen, *totals;  // (R, D), (CONTEXT, D) or (D, CONTEXT), (R, context), (R, D), (R)
    Scratch(const Prefill& s, int64_t thread) {
        const int64_t many = s.heads / s.keys * s.tile;
        queries = s.scratch + thread * scratch_of(&s);
        laid = queries + many * s.head_dim;
        scores = laid + CONTEXT * s.head_dim;
        seen = scores + many * s.context;
        totals = seen + many * s.head_dim;
    }
};

// Turns a token's new keys, and keeps keys and values in the pool. Padding, whose slot is in the null block, keeps
// nothing.
void keep(const Prefill& s, float* pool, float* qkv, int64_t token) {
    const int64_t size = s.head_dim, wide = s.keys * size, slot = s.slots[token];
    if (slot < s.block_size) return;
    float* keys = qkv + token * (s.heads + 2 * s.keys) * size + s.heads * size;
    const float *cosine = s.turn + s.places[token] * size, *sine = cosine + s.positions * size;
    for (int64_t head = 0; head < s.keys; head++) turn(keys + head * size, cosine, sine, size);
    std::memcpy(pool + slot * 2 * wide, keys, 2 * wide * sizeof(float));
}

// The queries of one key head and of `count` tokens of a row from `token` on.
void attend(const Prefill& s, const float* pool, const float* qkv, int64_t row, int64_t head, int64_t token,
            int64_t count, const Scratch& own, float* seen) {
    const int64_t size = s.head_dim, groups = s.heads / s.keys, many = groups * count, wide = s.keys * size;
    const int64_t context = s.places[token + count - 1] + 1;  // that the last of them sees
    const int64_t* table = s.tables + row * s.width;
    for (int64_t r = 0; r < many; r++) {
        const int64_t at = token + r / groups;
        float* query = own.queries + r * size;
        std::memcpy(query, qkv + (at * (s.heads + 2 * s.keys) + head * groups + r % groups) * size,
                    size * sizeof(float));
        const float *cosine = s.turn + s.places[at] * size, *sine = cosine + s.positions * size;
        turn(query, cosine, sine, size);
        for (int64_t i = 0; i < size; i++) query[i] *= s.scaling;
    }
    Walk keys(pool + head * size, table, s.block_size, 2 * wide);
    for (int64_t first = 0; first < context; first += CONTEXT) {
        const int64_t there = context - first < CONTEXT ? context - first : CONTEXT;
        const int64_t columns = (there + WIDE - 1) / WIDE * WIDE;  // scores beyond `there` are not looked at
        for (int64_t t = 0; t < there; t++) {
            const float* key = keys.next();
            for (int64_t i = 0; i < size; i++) own.laid[i * CONTEXT + t] = key[i];
        }
        products(own.queries, size, many, own.laid, CONTEXT, columns, size, own.scores + first, s.context, false);
    }
    for (int64_t r = 0; r < many; r++) {
        float* scores = own.scores + r * s.context;
        const int64_t sees = s.places[token + r / groups] + 1, end = (sees + WIDE - 1) / WIDE * WIDE;
        for (int64_t t = sees; t < end; t++) scores[t] = scores[0];
        own.totals[r] = exponents(scores, sees);
        for (int64_t t = end; t < context; t++) scores[t] = 0;
    }
    Walk values(pool + wide + head * size, table, s.block_size, 2 * wide);
    for (int64_t first = 0; first < context; first += CONTEXT) {
        const int64_t there = context - first < CONTEXT ? context - first : CONTEXT;
        for (int64_t t = 0; t < there; t++)
            std::memcpy(own.laid + t * size, values.next(), size * sizeof(float));
        products(own.scores + first, s.context, many, own.laid, size, size, there, own.seen, size, first > 0);
    }
    for (int64_t r = 0; r < many; r++) {
        float* into = seen + ((token + r / groups) * s.heads + head * groups + r % groups) * size;
        for (int64_t i = 0; i < size; i++) into[i] = own.seen[r * size + i] / own.totals[r];
    }
}

}  // namespace

extern "C" int64_t scratch_of(const Prefill* step) {
    const int64_t many = step->heads / step->keys * step->tile;
    return many * (2 * step->head_dim + step->context + 1) + CONTEXT * step->head_dim;
}

// qkv (N, J + 2K, D), of which the keys are turned; seen (N, J, D).
extern "C" void attend_prefill(const Prefill* step, float* pool, float* qkv, float* seen) {
    const Prefill& s = *step;
#pragma omp parallel num_threads(s.threads)
    {
        const Scratch own(s, omp_get_thread_num());
#pragma omp for schedule(static)
        for (int64_t token = 0; token < s.tokens; token++) keep(s, pool, qkv, token);
        for (int64_t row = s.rows - 1; row >= 0; row--) {
            const int64_t first = s.firsts[row], count = (row + 1 < s.rows ? s.firsts[row + 1] : s.tokens) - first;
            const int64_t tiles = (count + s.tile - 1) / s.tile;
#pragma omp for schedule(dynamic) nowait
            for (int64_t task = 0; task < tiles * s.keys; task++) {
                const int64_t begin = (tiles - 1 - task / s.keys) * s.tile;  // the longest contexts first
                const int64_t many = count - begin < s.tile ? count - begin : s.tile;
                attend(s, pool, qkv, row, task % s.keys, first + begin, many, own, seen);
            }
        }
    }
}
