// Also the sum over each row of output and gradient, which the gradient of the keys reads.
extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(
    const T *queries, const T *keys, const T *values, const int *bounds, const T *output, const float *logs,
    const T *grads, T *of_queries, float *inner, __grid_constant__ const Info info) {
    __shared__ __align__(128) T memory[4 * KEYS * SIZE > 2 * QUERIES * SIZE ? 4 * KEYS * SIZE : 2 * QUERIES * SIZE];
    Block block = block_of(info, info.heads, QUERIES, CAUSAL);
    int row = block.row, head = block.head, first = block.first;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + 16 * warp;
    int length = info.length, read = info.read;
    const T *key = head_of(keys, info.key, row, head / info.shared), *value = head_of(values, info.value, row, head / info.shared);

    copy<QUERIES>(memory, head_of(queries, info.query, row, head), info.query.step, first, length);
    copy<QUERIES>(memory + QUERIES * SIZE, head_of(grads, info.grad, row, head), info.grad.step, first, length);
    copied();
    int2 tiles = tiles_of(bounds, info, row, first);
    int2 low = keys_of(bounds, info, row, own + lane / 4), high = keys_of(bounds, info, row, own + lane / 4 + 8);
    arrived<0>();
    __syncthreads();
    u32 query[DEPTH][4], grad[DEPTH][4];
#pragma unroll
    for (int depth = 0; depth < DEPTH; depth++) {
        load_rows(query[depth], memory, 16 * warp, depth);
        load_rows(grad[depth], memory + QUERIES * SIZE, 16 * warp, depth);
    }
    __syncthreads();

    auto fetch = [&](int tile) {
        T *to = memory + tile % 2 * 2 * KEYS * SIZE;
        if (tile < tiles.y) {
            copy<KEYS>(to, key, info.key.step, tile * KEYS, read);
            copy<KEYS>(to + KEYS * SIZE, value, info.value.step, tile * KEYS, read);
        }
        copied();
    };
    fetch(tiles.x);
    float log[2], of_row[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at = own + lane / 4 + 8 * half;
        long long place = (row * info.heads + head) * info.length + at;
        const T *out = head_of(output, info.output, row, head) + at * info.output.step + 2 * (lane % 4);
        float sum = 0;
        if (at < length) {
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                float2 a = widened(*reinterpret_cast<const u32 *>(out + 8 * j)), b = widened(grad[j / 2][j % 2 * 2 + half]);
                sum += a.x * b.x + a.y * b.y;
            }
        }
        of_row[half] = sum_of_row(sum);
        log[half] = at < length ? logs[place] * LOG2_E : 0;
        if (lane % 4 == 0 && at < length) inner[place] = of_row[half];
    }

    float factor = (float)info.scale * LOG2_E;
    float sums[PIECES][4] = {};
    for (int tile = tiles.x; tile < tiles.y; tile++) {
        fetch(tile + 1);
        arrived<1>();
        __syncthreads();
        T *of_keys = memory + tile % 2 * 2 * KEYS * SIZE, *of_values = of_keys + KEYS * SIZE;
        float weights[KEYS / 8][4], slopes[KEYS / 8][4];
        scores(weights, query, of_keys);
        scores(slopes, grad, of_values);
        unread(weights, tile * KEYS, low, high, [](float &score) { score = -ENDLESS; });
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                slopes[j][i] = power_of_2(weights[j][i] * factor - log[i / 2]) * (slopes[j][i] - of_row[i / 2]);
        add_rows<KEYS>(sums, slopes, of_keys);
        __syncthreads();
    }
    write(head_of(of_queries, info.of_query, row, head), info.of_query.step, own, length, sums, info.scale, info.scale);
}
