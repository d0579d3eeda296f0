// Attention in tiles, forward and backward, for GPUs of NVIDIA's from compute capability 8.0 on.
//
// Before this text come: `T`, the dtype; `IS_F16`; `SIZE`, the numbers of a head: 32, 64, 96 or 128; `CAUSAL`, 1 if each
// query reads the keys up to its own, 0 if bounds say which. `KERNEL` is replaced by a name that says which these are.
//
// A block has 4 warps. Products are those of mma.sync.m16n8k16 with sums in f32: with g = lane / 4 and t = lane % 4, a lane
// holds of A the rows g and g + 8, of B the column g, and of a sum the columns 2 t and 2 t + 1 of rows g and g + 8. So two
// neighbouring tiles of a sum, rounded, are the A of the next product, and weights never leave the registers.

typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef __CUDACC_RTC__
// Compiled for a processor, in tests: there all memory is one.
#define __cvta_generic_to_shared(place) ((u64)(place))
#endif

constexpr int THREADS = 128;
constexpr int PIECES = SIZE / 8; // of 16 bytes, in a row of a head
constexpr int DEPTH = SIZE / 16; // steps of a product over a row of a head

// Where a tensor [batch, heads, length, SIZE] has its first number, and the numbers from one row, head and position to the next.
struct Place {
    long long first, row, head, step;
};

struct Info {
    Place query, key, value, output, grad, of_query, of_key, of_value;
    // Query heads; how many share a head of keys; queries; keys; rows of the bounds; blocks of an attention's head.
    long long heads, shared, length, read, masks, tiles;
    double scale;
};

// Rows of a head in shared memory. Pieces change places from row to row, so that the rows of a column lie in other banks.
__device__ __forceinline__ T *piece(T *tile, int row, int piece) {
    int turned = SIZE % 64 ? piece ^ (row >> 1 & 3) : piece ^ (row & 7);
    return tile + (row * PIECES + turned) * 8;
}

// Begins to copy rows to shared memory. Rows from `end` on are zeros.
template <int ROWS> __device__ __forceinline__ void copy(T *tile, const T *from, long long step, int first, int end) {
    for (int at = threadIdx.x; at < ROWS * PIECES; at += THREADS) {
        int row = at / PIECES, column = at % PIECES;
        bool is_there = first + row < end;
        const T *source = from + (is_there ? (first + row) * step : 0) + column * 8;
        u64 target = __cvta_generic_to_shared(piece(tile, row, column));
        int bytes = is_there ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "l"(target), "l"(source), "r"(bytes));
    }
}
__device__ __forceinline__ void copied() { asm volatile("cp.async.commit_group;"); }
// Waits until all but the last `pending` groups of copies are there.
template <int PENDING> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING));
}

__device__ __forceinline__ void load(u32 (&to)[4], T *from) {
    u64 place = __cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(place));
}
__device__ __forceinline__ void load_turned(u32 (&to)[4], T *from) {
    u64 place = __cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(place));
}

// The A of rows from `row` on, and of columns from 16 `depth` on.
__device__ __forceinline__ void load_rows(u32 (&to)[4], T *tile, int row, int depth) {
    int lane = threadIdx.x % 32;
    load(to, piece(tile, row + lane % 16, 2 * depth + lane / 16));
}
// The B of a product with the turned tile: its columns are 16 rows of the tile.
__device__ __forceinline__ void load_columns(u32 (&to)[4], T *tile, int row, int depth) {
    int lane = threadIdx.x % 32;
    load(to, piece(tile, row + lane / 16 * 8 + lane % 8, 2 * depth + lane / 8 % 2));
}
// The B of a product with the tile: 16 of its rows, and 16 of its columns.
__device__ __forceinline__ void load_turned_columns(u32 (&to)[4], T *tile, int row, int column) {
    int lane = threadIdx.x % 32;
    load_turned(to, piece(tile, row + lane / 8 % 2 * 8 + lane % 8, 2 * column + lane / 16));
}

#if IS_F16
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

__device__ __forceinline__ u32 rounded(float low, float high) {
#if IS_F16
    __half2 pair = __float22half2_rn(make_float2(low, high));
#else
    __nv_bfloat162 pair = __float22bfloat162_rn(make_float2(low, high));
#endif
    return *reinterpret_cast<u32 *>(&pair);
}
__device__ __forceinline__ float2 widened(u32 pair) {
#if IS_F16
    return __half22float2(*reinterpret_cast<__half2 *>(&pair));
#else
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
#endif
}
// The A of two neighbouring tiles of a sum.
__device__ __forceinline__ void rounded(u32 (&to)[4], const float (&left)[4], const float (&right)[4]) {
    to[0] = rounded(left[0], left[1]), to[1] = rounded(left[2], left[3]);
    to[2] = rounded(right[0], right[1]), to[3] = rounded(right[2], right[3]);
}

// Adds the products of 16 rows, at one step of their depth, with the ROWS rows of a tile.
template <int ROWS> __device__ __forceinline__ void add_scores(float (&sums)[ROWS / 8][4], const u32 (&rows)[4], T *tile, int depth) {
#pragma unroll
    for (int j = 0; j < ROWS / 16; j++) {
        u32 b[4];
        load_columns(b, tile, 16 * j, depth);
        multiply(sums[2 * j], rows, b[0], b[1]);
        multiply(sums[2 * j + 1], rows, b[2], b[3]);
    }
}
// Adds the products of weights with the ROWS rows of a tile.
template <int ROWS> __device__ __forceinline__ void add_rows(float (&to)[PIECES][4], const float (&weights)[ROWS / 8][4], T *tile) {
#pragma unroll
    for (int j = 0; j < ROWS / 16; j++) {
        u32 a[4];
        rounded(a, weights[2 * j], weights[2 * j + 1]);
#pragma unroll
        for (int column = 0; column < DEPTH; column++) {
            u32 b[4];
            load_turned_columns(b, tile, 16 * j, column);
            multiply(to[2 * column], a, b[0], b[1]);
            multiply(to[2 * column + 1], a, b[2], b[3]);
        }
    }
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Over the 4 lanes that share a row.
__device__ __forceinline__ float most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

constexpr float LOG2_E = 1.4426950408889634f;
#define ENDLESS __int_as_float(0x7f800000)

// The keys that a query reads.
__device__ __forceinline__ int2 keys_of(const int *bounds, const Info &info, int row, int query) {
    if (query >= info.length) return make_int2(0, 0);
#if CAUSAL
    return make_int2(0, query + 1 + (int)(info.read - info.length));
#else
    const int *at = bounds + (row % info.masks * info.length + query) * 2;
    return make_int2(at[0], at[1]);
#endif
}

// Which rows of a head a block computes: the longest first, where they are not alike.
struct Block {
    int row, head, first;
};
__device__ __forceinline__ Block block_of(const Info &info, long long heads, int rows, bool last_first) {
    long long blocks = gridDim.x / info.tiles, tile = blockIdx.x / blocks, rest = blockIdx.x % blocks;
    if (last_first) tile = info.tiles - 1 - tile;
    return {(int)(rest / heads), (int)(rest % heads), (int)(tile * rows)};
}

template <class U> __device__ __forceinline__ U *head_of(U *all, const Place &place, int row, int head) {
    return all + place.first + row * place.row + head * place.head;
}

// Writes a warp's 16 rows of sums, those before `end`.
__device__ __forceinline__ void write(T *head, long long step, int first, int end, const float (&sums)[PIECES][4], float low, float high) {
    int lane = threadIdx.x % 32, row = first + lane / 4;
    for (int half = 0; half < 2; half++) {
        if (row + 8 * half >= end) continue;
        T *to = head + (row + 8 * half) * step + 2 * (lane % 4);
        float factor = half ? high : low;
#pragma unroll
        for (int j = 0; j < PIECES; j++)
            *reinterpret_cast<u32 *>(to + 8 * j) = rounded(sums[j][2 * half] * factor, sums[j][2 * half + 1] * factor);
    }
}
