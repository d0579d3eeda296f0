// One pass over a list of tensors. Each has some buffers, all with as many elements. A block computes a part of one tensor:
// with 16 bytes per access if its buffers begin where that is possible, or else with one element.
//
// Before this text come `COUNT`, the tensors; `CONSTANTS`, the numbers of a set; `SETS`, 1 for all tensors alike, or `COUNT`;
// `PART`, the elements of a block; `HAS_BF16` and `HAS_F16`. The other words in capitals are replaced.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int UNITS = 256;
constexpr int TOGETHER = 8; // elements

struct Info {
    u32 end[COUNT];  // the block after the last one of each tensor
    u32 last[COUNT]; // the elements of the last one
    float constant[SETS][CONSTANTS];
    u32 done; // blocks of launches before this one
};

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ void narrow(float &to, float x) { to = x; }
#if HAS_BF16
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(__nv_bfloat16 &to, float x) { to = __float2bfloat16(x); }
#endif
#if HAS_F16
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ void narrow(__half &to, float x) { to = __float2half(x); }
#endif

template <typename F> struct alignas(16) Piece {
    static constexpr int SIZE = 16 / sizeof(F);
    F at[SIZE];
};
template <typename F> __device__ __forceinline__ void read(float (&to)[TOGETHER], const F *from) {
    typedef Piece<F> P;
#pragma unroll
    for (int piece = 0; piece < TOGETHER / P::SIZE; piece++) {
        P found = reinterpret_cast<const P *>(from)[piece];
#pragma unroll
        for (int i = 0; i < P::SIZE; i++) to[piece * P::SIZE + i] = wide(found.at[i]);
    }
}
template <typename F> __device__ __forceinline__ void write(F *to, const float (&from)[TOGETHER]) {
    typedef Piece<F> P;
#pragma unroll
    for (int piece = 0; piece < TOGETHER / P::SIZE; piece++) {
        P found;
#pragma unroll
        for (int i = 0; i < P::SIZE; i++) narrow(found.at[i], from[piece * P::SIZE + i]);
        reinterpret_cast<P *>(to)[piece] = found;
    }
}

// The sum over the units of a block, to its first unit.
__device__ __forceinline__ float sum_of_block(float x) {
    __shared__ float warps[UNITS / 32];
    for (int other = 16; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    if (threadIdx.x == 0)
        for (int warp = 0; warp < UNITS / 32; warp++) sum += warps[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) KERNEL(PARAMETERS, Info info) {
    int tensor = 0;
    for (int next = COUNT; tensor < next;) {
        int middle = (tensor + next) / 2;
        if (blockIdx.x < info.end[middle]) next = middle;
        else tensor = middle + 1;
    }
    BUFFERS
    switch (tensor) {
        PLACES
    }
    u32 before = tensor ? info.end[tensor - 1] : 0;
    int length = blockIdx.x + 1 == info.end[tensor] ? info.last[tensor] : PART;
    u64 begin = (u64)(blockIdx.x - before) * PART;
    BEGINS
    float constant[CONSTANTS];
#pragma unroll
    for (int i = 0; i < CONSTANTS; i++) constant[i] = info.constant[SETS > 1 ? tensor : 0][i];
    float sum = 0;
    BEFORE
    auto one = [&](NUMBERS) { BODY };

    int whole = (ADDRESSES) % 16 ? 0 : length / TOGETHER * TOGETHER;
    for (int at = threadIdx.x * TOGETHER; at < whole; at += UNITS * TOGETHER) {
        READS
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) one(EACH);
        WRITES
    }
    for (int at = whole + threadIdx.x; at < length; at += UNITS) {
        READS_ONE
        one(ONE);
        WRITES_ONE
    }
    AFTER
}
