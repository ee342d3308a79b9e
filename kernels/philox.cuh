// Random numbers as a function of a counter and a key: what dropout in attention.cuh and elementwise.cu draws by, so
// that backward draws again what forward drew. It comes before both.

// Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and table 2. Four
// numbers take the counter's place.
static __device__ __forceinline__ void philox(unsigned (&counter)[4], unsigned key0, unsigned key1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long x = 0xD2511F53ull * counter[0], y = 0xCD9E8D57ull * counter[2];
        counter[0] = (unsigned)(y >> 32) ^ counter[1] ^ key0;
        counter[2] = (unsigned)(x >> 32) ^ counter[3] ^ key1;
        counter[1] = (unsigned)y;
        counter[3] = (unsigned)x;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}
