constexpr int KEYS = 64;
constexpr int QUERIES = SIZE <= 64 ? 64 : SIZE == 96 ? 32 : 16;
constexpr int STAGES = SIZE == 128 ? 1 : 2;
constexpr bool KEEPS_VALUES = SIZE < 128; // in registers

extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(
    const T *queries, const T *keys, const T *values, const int *bounds, const float *logs, const float *inner,
    const T *grads, T *of_keys, T *of_values, __grid_constant__ const Info info) {
    constexpr int TILE = QUERIES * SIZE, FREE = 2 * STAGES * TILE;
    constexpr int FOR_KEYS = (KEEPS_VALUES ? 2 : 1) * KEYS * SIZE;
    // The values, if they stay here, then for each stage the queries and the gradients of a tile; before them, the keys.
    __shared__ __align__(128) T memory[(KEEPS_VALUES ? 0 : KEYS * SIZE) + (FREE > FOR_KEYS ? FREE : FOR_KEYS)];
    __shared__ float log[STAGES][QUERIES], of_row[STAGES][QUERIES];
#if !CAUSAL
    __shared__ int2 reads[STAGES][QUERIES];
#endif
    long long key_heads = info.heads / info.shared;
    Block block = block_of(info, key_heads, KEYS, false);
    int row = block.row, head = block.head, first = block.first;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    int length = info.length, read = info.read;

    T *of_value = memory, *stages = KEEPS_VALUES ? memory : memory + KEYS * SIZE;
    T *of_key = KEEPS_VALUES ? memory + KEYS * SIZE : stages;
    copy<KEYS>(of_value, head_of(values, info.value, row, head), info.value.step, first, read);
    copy<KEYS>(of_key, head_of(keys, info.key, row, head), info.key.step, first, read);
    copied();
    arrived<0>();
    __syncthreads();
    u32 key[DEPTH][4], value[KEEPS_VALUES ? DEPTH : 1][4];
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) {
        load_rows(key[depth], of_key, 16 * warp, depth);
        if (KEEPS_VALUES) load_rows(value[depth], of_value, 16 * warp, depth);
    }
    __syncthreads();

    int tiles = (length + QUERIES - 1) / QUERIES, all = tiles * (int)info.shared;
    // The next tile of queries, of the same head or of the next that shares these keys, that reads one of them.
    auto next = [&](int at) {
        for (; at < all; at++) {
            int tile = at % tiles;
#if CAUSAL
            int last = min(tile * QUERIES + QUERIES, length) - 1;
            if (keys_of(bounds, info, row, last).y > first) break;
#else
            int2 found = make_int2(0, 0);
            if (threadIdx.x < QUERIES) found = keys_of(bounds, info, row, tile * QUERIES + threadIdx.x);
            if (__syncthreads_or(found.x < found.y && found.x < first + KEYS && found.y > first)) break;
#endif
        }
        return at;
    };
    auto fetch = [&](int at, int stage) {
        if (at < all) {
            int of_head = head * info.shared + at / tiles, query = at % tiles * QUERIES;
            T *to = stages + stage * 2 * TILE;
            copy<QUERIES>(to, head_of(queries, info.query, row, of_head), info.query.step, query, length);
            copy<QUERIES>(to + TILE, head_of(grads, info.grad, row, of_head), info.grad.step, query, length);
            if (threadIdx.x < QUERIES) {
                int own = query + threadIdx.x;
                long long place = (row * info.heads + of_head) * info.length + own;
                // Powers of -infinity are zeros: there is no such query.
                log[stage][threadIdx.x] = own < length ? logs[place] * LOG2_E : ENDLESS;
                of_row[stage][threadIdx.x] = own < length ? inner[place] : 0;
#if !CAUSAL
                reads[stage][threadIdx.x] = keys_of(bounds, info, row, own);
#endif
            }
        }
        copied();
    };

    float factor = (float)info.scale * LOG2_E;
    float of_k[PIECES][4] = {}, of_v[PIECES][4] = {};
    int at = next(0), stage = 0;
    fetch(at, 0);
    while (at < all) {
        int after = next(at + 1);
        if (STAGES == 2) fetch(after, 1 - stage);
        arrived<STAGES - 1>();
        __syncthreads();
        T *query = stages + stage * 2 * TILE, *grad = query + TILE;
        float weights[QUERIES / 8][4] = {}, slopes[QUERIES / 8][4] = {};
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) add_scores<QUERIES>(weights, key[depth], query, depth);
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            if (!KEEPS_VALUES) load_rows(value[0], of_value, 16 * warp, depth);
            add_scores<QUERIES>(slopes, value[KEEPS_VALUES ? depth : 0], grad, depth);
        }
#pragma unroll
        for (int j = 0; j < QUERIES / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int column = 8 * j + 2 * (lane % 4) + i % 2, k = own + lane / 4 + i / 2 * 8;
#if CAUSAL
                bool is_read = k <= at % tiles * QUERIES + column + read - length;
#else
                int2 keys = reads[stage][column];
                bool is_read = keys.x <= k && k < keys.y;
#endif
                weights[j][i] = is_read ? power_of_2(weights[j][i] * factor - log[stage][column]) : 0;
                slopes[j][i] = weights[j][i] * (slopes[j][i] - of_row[stage][column]);
            }
        add_rows<QUERIES>(of_v, weights, grad);
        add_rows<QUERIES>(of_k, slopes, query);
        __syncthreads();
        if (STAGES == 1) fetch(after, 0);
        at = after;
        stage = STAGES - 1 - stage;
    }
    write(head_of(of_keys, info.of_key, row, head), info.of_key.step, own, read, of_k, info.scale, info.scale);
    write(head_of(of_values, info.of_value, row, head), info.of_value.step, own, read, of_v, 1, 1);
}
