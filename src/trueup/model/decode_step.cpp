// One decode step of a Llama-class model on a CPU: one token a row, all layers in one parallel region.
//
// Activations and sums are fp32. Weights are fp32, or int8 with a scale for each output, widened in registers: a
// step waits for them to be read, and nothing else is rounded. Every sum is taken in an order that depends on
// neither the other rows nor the threads, so a row's bits are the same in any company.
//
// B rows, H hidden size, F feed-forward size, J query heads, K key heads, D numbers of a head, V vocabulary.
// Inputs of matrices and D are multiples of 16. MOST_ROWS, of one step, is given to the compiler.

#include "cpu_vectors.h"

#include <omp.h>

extern "C" {

struct Matrix {  // (outputs, inputs) row by row; fp32 where it has no scales
    const void* weight;
    const float *scales, *bias;  // bias: or none
    int64_t outputs, inputs;
};

struct Layer {
    const float *input_norm, *feed_norm;
    Matrix qkv, out, gate, up, down;
};

struct Model {
    int64_t layers, hidden, feed, heads, keys, head_dim, positions;
    float eps, scaling;
    const Layer* layer;
    const float *final_norm, *turn;  // turn: cosines by position, then sines whose first half is negative
    Matrix head;
};

struct Step {
    int64_t rows, width, block_size, threads;
    const int64_t *positions, *slots, *tables;  // (B), (B), (B, width): blocks of each row's context
    float* const* pools;                        // of each layer: (slots, 2, K, D)
    float *stream, *qkv, *seen, *gated;         // (B, H), (B, J + 2K, D), (B, J, D), (B, F)
    float *normed, *scores;                     // for each thread: (B, H), (J / K, context)
    float* logits;                              // (B, V)
};
}

namespace {

template <class Weight>
constexpr int LINE = 64 / sizeof(Weight);  // weights of a cache line
constexpr int AHEAD = 8;  // outputs whose weights are on their way to the second cache: the first has no room

// totals (ROWS, OUTPUTS) of products, each summed in a register. FETCH: the weights that follow are fetched
// meanwhile; a row of them is too short for the processor to run ahead by itself.
template <int ROWS, int OUTPUTS, bool FETCH = false, class Weight>
void tile(const float* x, const Weight* weight, int64_t inputs, float* totals) {
    static_assert(ROWS * OUTPUTS <= WIDE, "one vector takes all sums");
    Floats sums[ROWS * OUTPUTS] = {};
    for (int64_t i = 0; i < inputs; i += WIDE) {
        Floats columns[OUTPUTS];
#pragma GCC unroll 16
        for (int o = 0; o < OUTPUTS; o++) {
            columns[o] = load(weight + o * inputs + i);
            if (FETCH && i % LINE<Weight> < WIDE) __builtin_prefetch(weight + (AHEAD + o) * inputs + i, 0, 2);
        }
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            Floats own = load(x + row * inputs + i);
#pragma GCC unroll 16
            for (int o = 0; o < OUTPUTS; o++) {
                Floats& sum = sums[row * OUTPUTS + o];
                sum = fused(own, columns[o], sum);
            }
        }
    }
    Floats all = sums_of<ROWS * OUTPUTS>(sums);
    std::memcpy(totals, &all, ROWS * OUTPUTS * sizeof(float));
}

constexpr int BLOCK = 16;  // outputs whose weights stay near while all rows take them

// Into sums (rows, BLOCK), from row `first` on as many rows as make whole tiles; returns the first that is left.
template <int ROWS, class Weight>
int64_t tiles(const float* x, int64_t first, int64_t rows, const Weight* weight, int64_t inputs, int outputs,
              float* sums) {
    constexpr int WIDTH = WIDE / ROWS < 8 ? WIDE / ROWS : 8;
    const int64_t end = rows - (rows - first) % ROWS;
    float totals[ROWS * WIDTH];
    for (int o = 0, width; o < outputs; o += width) {
        width = o + WIDTH <= outputs ? WIDTH : 1;
        for (int64_t row = first; row < end; row += ROWS) {
            const float* own = x + row * inputs;
            if (width == 1)
                tile<ROWS, 1>(own, weight + o * inputs, inputs, totals);
            else if (row == 0)
                tile<ROWS, WIDTH, true>(own, weight + o * inputs, inputs, totals);
            else
                tile<ROWS, WIDTH>(own, weight + o * inputs, inputs, totals);
            float* into = sums + row * BLOCK + o;
            for (int r = 0; r < ROWS; r++, into += BLOCK)
                if (width == WIDTH)
                    std::memcpy(into, totals + r * WIDTH, WIDTH * sizeof(float));
                else
                    *into = totals[r];
        }
    }
    return end;
}

template <class Weight>
void products(const Weight* weight, const float* x, int64_t rows, int64_t inputs, int outputs, float* sums) {
    int64_t row = tiles<4>(x, 0, rows, weight, inputs, outputs, sums);
    row = tiles<2>(x, row, rows, weight, inputs, outputs, sums);
    tiles<1>(x, row, rows, weight, inputs, outputs, sums);
}

struct Share {  // of one thread, in whole blocks
    int64_t from, to;
    Share(int64_t size, int64_t thread, int64_t threads) {
        int64_t each = (size + threads * BLOCK - 1) / (threads * BLOCK) * BLOCK;
        from = thread * each < size ? thread * each : size;
        to = from + each < size ? from + each : size;
    }
};

enum Into { SET, ADD, TIMES };

// A share of the outputs of x W' + b, into `out` (rows, outputs).
void multiply(const Matrix& a, const float* x, int64_t rows, Share share, float* out, Into into) {
    float sums[MOST_ROWS * BLOCK];
    const auto joined = [into](auto there, auto value) {
        return into == SET ? value : into == ADD ? there + value : there * value;
    };
    for (int64_t o = share.from; o < share.to; o += BLOCK) {
        const int outputs = share.to - o < BLOCK ? share.to - o : BLOCK;
        if (a.scales)
            products(static_cast<const int8_t*>(a.weight) + o * a.inputs, x, rows, a.inputs, outputs, sums);
        else
            products(static_cast<const float*>(a.weight) + o * a.inputs, x, rows, a.inputs, outputs, sums);
        for (int64_t row = 0; row < rows; row++) {
            float *own = sums + row * BLOCK, *at = out + row * a.outputs + o;
            int c = 0;
            for (; c + WIDE <= outputs; c += WIDE) {
                Floats value = load(own + c);
                if (a.scales) value *= load(a.scales + o + c);
                if (a.bias) value += load(a.bias + o + c);
                store(at + c, joined(load(at + c), value));
            }
            for (; c < outputs; c++) {
                float value = own[c];
                if (a.scales) value *= a.scales[o + c];
                if (a.bias) value += a.bias[o + c];
                at[c] = joined(at[c], value);
            }
        }
    }
}

void norm(const float* x, const float* weight, int64_t rows, int64_t size, float eps, float* out) {
    for (int64_t row = 0; row < rows; row++, x += size, out += size) {
        float squares;
        tile<1, 1>(x, x, size, &squares);
        const float scale = 1 / std::sqrt(squares / size + eps);
        for (int64_t i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
    }
}

// into (GROUPS, size), from number `from` on: the values of the context by weight, a sweep for PARTS vectors of
// each. `weights` (GROUPS, `most`) add up to `totals`.
template <int GROUPS, int PARTS>
int64_t weighted(const float* weights, int64_t most, const float* totals, Walk start, int64_t count, int64_t from,
                 int64_t size, float* into) {
    for (; from + PARTS * WIDE <= size; from += PARTS * WIDE) {
        Floats sums[GROUPS * PARTS] = {};
        Walk walk = start;
        for (int64_t t = 0; t < count; t++) {
            const float* value = walk.next() + from;
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                Floats own = load(value + part * WIDE);
#pragma GCC unroll 4
                for (int g = 0; g < GROUPS; g++) sums[g * PARTS + part] += weights[g * most + t] * own;
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                store(into + g * size + from + part * WIDE, sums[g * PARTS + part] / totals[g]);
    }
    return from;
}

template <int GROUPS>
void blend(const float* weights, int64_t most, const float* totals, Walk start, int64_t count, int64_t size,
           float* into) {
    constexpr int PARTS = WIDE / 4;  // what registers there are for
    int64_t from = weighted<GROUPS, PARTS>(weights, most, totals, start, count, 0, size, into);
    weighted<GROUPS, 1>(weights, most, totals, start, count, from, size, into);
}

// The queries of one row and key head: turns them and the new key, keeps key and value in the pool, and reads the
// context where it lies. A row of padding, whose slot is in the null block, keeps nothing and sees zeros.
void attend(const Model& m, const Step& s, float* pool, int64_t row, int64_t head, float* scores) {
    const int64_t size = m.head_dim, groups = m.heads / m.keys, slot = s.slots[row], count = s.positions[row] + 1;
    const int64_t wide = m.keys * size;  // from a slot's keys to its values
    float *queries = s.qkv + (row * (m.heads + 2 * m.keys) + head * groups) * size;
    float *key = s.qkv + (row * (m.heads + 2 * m.keys) + m.heads + head) * size;
    float* seen = s.seen + (row * m.heads + head * groups) * size;
    if (slot < s.block_size) {
        std::memset(seen, 0, groups * size * sizeof(float));
        return;
    }
    const float *cosine = m.turn + (count - 1) * size, *sine = cosine + m.positions * size;
    turn(key, cosine, sine, size);
    float* kept = pool + slot * 2 * wide + head * size;
    std::memcpy(kept, key, size * sizeof(float));
    std::memcpy(kept + wide, key + wide, size * sizeof(float));
    for (int64_t g = 0; g < groups; g++) turn(queries + g * size, cosine, sine, size);
    const Walk start(pool + head * size, s.tables + row * s.width, s.block_size, 2 * wide);
    const int64_t most = (s.width * s.block_size + WIDE - 1) / WIDE * WIDE;
    Walk walk = start;
    for (int64_t first = 0; first < count; first += WIDE) {
        const float* keys[WIDE];
        for (int t = 0; t < WIDE; t++) {
            keys[t] = first + t < count ? walk.next() : keys[0];
            for (int64_t i = 0; i < size; i += LINE<float>) __builtin_prefetch(keys[t] + wide + i, 0, 2);
        }
        for (int64_t g = 0; g < groups; g++) {
            Floats sums[WIDE] = {};
            for (int64_t i = 0; i < size; i += WIDE) {
                Floats query = load(queries + g * size + i);
#pragma GCC unroll 16
                for (int t = 0; t < WIDE; t++) sums[t] += query * load(keys[t] + i);
            }
            store(scores + g * most + first, sums_of<WIDE>(sums) * m.scaling);
        }
    }
    for (int64_t g = 0, at_once; g < groups; g += at_once) {
        float *weights = scores + g * most, totals[4];
        at_once = groups - g < 4 ? groups - g : 4;
        for (int64_t one = 0; one < at_once; one++) totals[one] = exponents(weights + one * most, count);
        const auto by = at_once == 1 ? blend<1> : at_once == 2 ? blend<2> : at_once == 3 ? blend<3> : blend<4>;
        Walk values = start;
        values.pool += wide;
        by(weights, most, totals, values, count, size, seen + g * size);
    }
}

// silu(gate) * up: a share of the feed-forward part.
void gated(const Layer& layer, const float* x, int64_t rows, Share share, float* out) {
    const int64_t feed = layer.gate.outputs;
    multiply(layer.gate, x, rows, share, out, SET);
    for (int64_t row = 0; row < rows; row++)
        for (float *at = out + row * feed + share.from; at < out + row * feed + share.to; at += WIDE)
            store(at, load(at) / (exp_of(-load(at)) + 1.0f));
    multiply(layer.up, x, rows, share, out, TIMES);
}

}  // namespace

extern "C" void decode(const Model* model, const Step* step) {
    const Model& m = *model;
    const Step& s = *step;
    const int64_t rows = s.rows, hidden = m.hidden, groups = m.heads / m.keys;
    const int64_t context = (s.width * s.block_size + WIDE - 1) / WIDE * WIDE;
#pragma omp parallel num_threads(s.threads)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        float *normed = s.normed + thread * rows * hidden, *scores = s.scores + thread * groups * context;
        auto multiplied = [&](const Matrix& a, const float* x, float* out, Into into) {
            multiply(a, x, rows, Share(a.outputs, thread, threads), out, into);
        };
        for (int64_t l = 0; l < m.layers; l++) {
            const Layer& layer = m.layer[l];
            norm(s.stream, layer.input_norm, rows, hidden, m.eps, normed);
            multiplied(layer.qkv, normed, s.qkv, SET);
#pragma omp barrier
            for (int64_t task = thread; task < rows * m.keys; task += threads)
                attend(m, s, s.pools[l], task / m.keys, task % m.keys, scores);
#pragma omp barrier
            multiplied(layer.out, s.seen, s.stream, ADD);
#pragma omp barrier
            norm(s.stream, layer.feed_norm, rows, hidden, m.eps, normed);
            gated(layer, normed, rows, Share(m.feed, thread, threads), s.gated);
#pragma omp barrier
            multiplied(layer.down, s.gated, s.stream, ADD);
#pragma omp barrier
        }
        norm(s.stream, m.final_norm, rows, hidden, m.eps, normed);
        multiplied(m.head, normed, s.logits, SET);
    }
}
