extern "C" __global__ void __launch_bounds__(THREADS, SIZE <= 64 ? 3 : 2) KERNEL(
    const T *queries, const T *keys, const T *values, const int *bounds, T *output, float *logs,
    __grid_constant__ const Info info) {
    __shared__ __align__(128) T memory[4 * KEYS * SIZE > QUERIES * SIZE ? 4 * KEYS * SIZE : QUERIES * SIZE];
    Block block = block_of(info, info.heads, QUERIES, CAUSAL);
    int row = block.row, head = block.head, first = block.first;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    int length = info.length, read = info.read;
    const T *key = head_of(keys, info.key, row, head / info.shared), *value = head_of(values, info.value, row, head / info.shared);

    copy<QUERIES>(memory, head_of(queries, info.query, row, head), info.query.step, first, length);
    copied();
    int2 tiles = tiles_of(bounds, info, row, first);
    int2 low = keys_of(bounds, info, row, own + lane / 4), high = keys_of(bounds, info, row, own + lane / 4 + 8);
    arrived<0>();
    __syncthreads();
    u32 query[DEPTH][4];
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) load_rows(query[depth], memory, 16 * warp, depth);
    __syncthreads();

    auto fetch = [&](int tile) {
        T *to = memory + tile % 2 * 2 * KEYS * SIZE;
        if (tile < tiles.y) {
            copy<KEYS>(to, key, info.key.step, tile * KEYS, read);
            copy<KEYS>(to + KEYS * SIZE, value, info.value.step, tile * KEYS, read);
        }
        copied();
    };
    float factor = (float)info.scale * LOG2_E;
    float most[2] = {-ENDLESS, -ENDLESS}, sum[2] = {0, 0}, out[PIECES][4] = {};
    fetch(tiles.x);
    for (int tile = tiles.x; tile < tiles.y; tile++) {
        fetch(tile + 1);
        arrived<1>();
        __syncthreads();
        T *of_keys = memory + tile % 2 * 2 * KEYS * SIZE, *of_values = of_keys + KEYS * SIZE;
        float weights[KEYS / 8][4];
        scores(weights, query, of_keys);
        unread(weights, tile * KEYS, low, high, [](float &score) { score = -ENDLESS; });
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float now = most[half];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) now = fmaxf(now, fmaxf(weights[j][2 * half], weights[j][2 * half + 1]));
            now = most_of_row(now);
            // Nothing has been read yet: all weights are powers of -infinity.
            float from = now == -ENDLESS ? 0 : now * factor;
            float kept = power_of_2(most[half] * factor - from);
            most[half] = now;
            sum[half] *= kept;
#pragma unroll
            for (int j = 0; j < PIECES; j++) out[j][2 * half] *= kept, out[j][2 * half + 1] *= kept;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    weights[j][i] = power_of_2(weights[j][i] * factor - from);
                    sum[half] += weights[j][i];
                }
        }
        add_rows<KEYS>(out, weights, of_values);
        __syncthreads();
    }
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = sum_of_row(sum[half]);
        int2 keys_read = half ? high : low;
        bool reads = keys_read.x < keys_read.y;
        inverse[half] = reads ? 1 / sum[half] : 0;
        int at = own + lane / 4 + 8 * half;
        if (lane % 4 == 0 && at < length)
            logs[(row * info.heads + head) * info.length + at] = reads ? most[half] * (float)info.scale + logf(sum[half]) : 0;
    }
    write(head_of(output, info.output, row, head), info.output.step, own, length, out, inverse[0], inverse[1]);
}
