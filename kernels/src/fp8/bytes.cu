// Codes of 8 bits of a matrix `[rows, columns]`: as it stands, transposed, or both. A block computes 64 rows of 64 columns.
//
// Before this text come `T`, the type of the numbers, and `IS_F16`; `MANTISSA`, `LARGEST` and `SMALLEST` of the format; `PLAIN` and `TURNED`,
// which say what is written; `INFINITE`, `TOP` and `MOST_SCALE`. `KERNEL` and `PARAMETERS` are replaced.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int TILE = 64;
constexpr int UNITS = 256;
constexpr int EACH = 16; // elements of a unit: 16 bytes of codes

struct Info {
    u64 rows, columns;
    u64 length; // of a transposed row: the rows, and zeros up to a multiple of 16
    u64 parts;
    u64 across; // blocks beside each other
};

__device__ __forceinline__ float wide(T x) {
#if IS_F16
    return __half2float(x);
#else
    return __bfloat162float(x);
#endif
}

struct alignas(16) Piece { T at[8]; };
struct alignas(16) Codes { unsigned char at[EACH]; };

// See `Rounding` of the host, which multiplies by the step where this one writes the code.
__device__ __forceinline__ unsigned char code(float x, u32 least) {
    u32 bits = __float_as_uint(x) & 0x7fffffff;
    u32 exponent = max(bits >> 23, least);
    float steps = __fmul_rn(__uint_as_float(bits), __uint_as_float((254 - (exponent - MANTISSA)) << 23));
    u32 whole = (u32)rintf(fminf(steps, 64.0f));
    // A normal number has its leading one in the steps: it is the exponent's last bit, and a carry is one more.
    u32 found = ((exponent - least) << MANTISSA) + whole;
    return (unsigned char)(found | (__float_as_uint(x) >> 24 & 0x80));
}

extern "C" __global__ void __launch_bounds__(UNITS) KERNEL(PARAMETERS, __grid_constant__ const Info info) {
    __shared__ u32 of_warp[UNITS / 32];
    u32 most = 0;
    for (u64 part = threadIdx.x; part < info.parts; part += UNITS) most = max(most, parts[part]);
    for (int lanes = 16; lanes; lanes /= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < UNITS / 32; warp++) most = max(most, of_warp[warp]);
    u32 exponent = (min(most, (u32)INFINITE - 1) >> 23) + ((most & 0x7fffff) > TOP);
    exponent = max(exponent, (u32)(LARGEST + 127 - MOST_SCALE));
    u32 least = exponent - LARGEST - SMALLEST;
    // What a code is multiplied by: 2^(exponent - 127 - LARGEST).
    if (blockIdx.x == 0 && threadIdx.x == 0) scale[0] = __uint_as_float(most < INFINITE ? (exponent - LARGEST) << 23 : 0x7fc00000);

    u64 first = blockIdx.x / info.across * TILE, left = blockIdx.x % info.across * TILE;
    int unit = threadIdx.x;
    u64 row = first + unit / (TILE / EACH), column = left + unit % (TILE / EACH) * EACH;
    Codes codes;
    if (row < info.rows && column < info.columns) {
        const T *from = x + row * info.columns + column;
        Piece found[2];
        if ((u64)x % 16 == 0) {
            found[0] = reinterpret_cast<const Piece *>(from)[0];
            found[1] = reinterpret_cast<const Piece *>(from)[1];
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++) found[i / 8].at[i % 8] = from[i];
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) codes.at[i] = code(wide(found[i / 8].at[i % 8]), least);
#if PLAIN
        *reinterpret_cast<Codes *>(plain + row * info.columns + column) = codes;
#endif
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) codes.at[i] = 0;
    }
#if TURNED
    // A row of the tile is 16 bytes longer than it need be, so that rows begin in other banks.
    __shared__ __align__(16) unsigned char tile[TILE][TILE + EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) tile[unit % (TILE / EACH) * EACH + i][unit / (TILE / EACH)] = codes.at[i];
    __syncthreads();
    u64 of_turned = left + unit / (TILE / EACH), at = first + unit % (TILE / EACH) * EACH;
    if (of_turned < info.columns && at < info.length)
        *reinterpret_cast<Codes *>(turned + of_turned * info.length + at) =
            *reinterpret_cast<const Codes *>(&tile[unit / (TILE / EACH)][unit % (TILE / EACH) * EACH]);
#endif
}
