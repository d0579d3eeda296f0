constexpr int QUERIES = 64;
constexpr int KEYS = SIZE <= 64 ? 64 : 32;

// Tiles of keys that the queries of a block read: the first, and the one after the last.
__device__ __forceinline__ int2 tiles_of(const int *bounds, const Info &info, int row, int first) {
#if CAUSAL
    int last = min(first + QUERIES, (int)info.length) - 1;
    return make_int2(0, max(0, last + (int)(info.read - info.length) + KEYS) / KEYS);
#else
    __shared__ int2 of_warp[4];
    int low = 1 << 30, high = 0;
    int2 keys = keys_of(bounds, info, row, first + threadIdx.x / 2);
    if (keys.x < keys.y) low = keys.x, high = keys.y;
    for (int lanes = 16; lanes; lanes /= 2) {
        low = min(low, __shfl_xor_sync(~0u, low, lanes));
        high = max(high, __shfl_xor_sync(~0u, high, lanes));
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = make_int2(low, high);
    __syncthreads();
    for (int warp = 0; warp < 4; warp++) low = min(low, of_warp[warp].x), high = max(high, of_warp[warp].y);
    if (low >= high) return make_int2(0, 0);
    return make_int2(low / KEYS, (high + KEYS - 1) / KEYS);
#endif
}

// Sums of the queries' products with the keys of a tile.
__device__ __forceinline__ void scores(float (&sums)[KEYS / 8][4], const u32 (&rows)[DEPTH][4], T *tile) {
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) add_scores<KEYS>(sums, rows[depth], tile, depth);
}

// Calls `with` for each sum of a tile that its query does not read.
template <class With> __device__ __forceinline__ void unread(float (&sums)[KEYS / 8][4], int key, int2 low, int2 high, With with) {
    bool reads_all = low.x <= key && key + KEYS <= low.y && high.x <= key && key + KEYS <= high.y;
    if (reads_all) return;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = key + 8 * j + 2 * (threadIdx.x % 4) + i % 2;
            int2 keys = i < 2 ? low : high;
            if (at < keys.x || at >= keys.y) with(sums[j][i]);
        }
}
