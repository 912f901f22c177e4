// Measures shapes of the kernel that adds N arrays of float32 into N others: threads of a block, blocks of each
// multiprocessor, how it reads and writes, packs of each thread. What csrc/cuda/ does was chosen by the first
// version of this, which had other names for the shapes (docs/gpu.md).
//
//   nvcc -O3 -std=c++20 -arch=native -fmad=false -o gpu_shapes bench/gpu_shapes.cu
//   ./gpu_shapes > shapes.csv
//
// Each line: N, bytes of an array, microseconds of a copy of as many bytes, the shape, microseconds of a sum. Batches
// over many sets of arrays, so that none is left in a cache, are recorded into a CUDA graph; the median of five is
// printed.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
  }
}

enum class Read { kPlain, kPastFirst, kOnce, kNotInFirst };  // plain, .cg, .cs, .L1::no_allocate
enum class Write { kLoop, kUnrolled, kOnce };                // to all destinations; kOnce: unrolled, .cs

template <int N>
struct Arrays {
  const float4* in[N];
  float4* out[N];
  long long packs;
};

template <Read kRead>
__device__ float4 load(const float4* from) {
  if constexpr (kRead == Read::kPastFirst) return __ldcg(from);
  if constexpr (kRead == Read::kOnce) return __ldcs(from);
  if constexpr (kRead == Read::kNotInFirst) {
    float4 v;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
    return v;
  }
  return *from;
}

__device__ float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

template <int N, Read kRead, int kLow = 0, int kHigh = N>
__device__ float4 sum(const Arrays<N>& arrays, long long i) {
  if constexpr (kHigh - kLow == 1) {
    return load<kRead>(arrays.in[kLow] + i);
  } else {
    constexpr int kMiddle = (kLow + kHigh) / 2;
    return add(sum<N, kRead, kLow, kMiddle>(arrays, i), sum<N, kRead, kMiddle, kHigh>(arrays, i));
  }
}

template <int N, Write kWrite>
__device__ void store(const Arrays<N>& arrays, long long i, float4 v) {
  if constexpr (kWrite == Write::kLoop) {
#pragma unroll 1
    for (int d = 0; d < N; ++d) arrays.out[d][i] = v;
  } else {
#pragma unroll
    for (int d = 0; d < N; ++d) {
      if constexpr (kWrite == Write::kOnce) {
        __stcs(arrays.out[d] + i, v);
      } else {
        arrays.out[d][i] = v;
      }
    }
  }
}

template <int N, Read kRead, Write kWrite, int kPacks>
__global__ void __launch_bounds__(512) kernel(const __grid_constant__ Arrays<N> arrays) {
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (kPacks - 1) * threads < arrays.packs; i += kPacks * threads) {
    float4 v[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) v[p] = sum<N, kRead>(arrays, i + p * threads);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) store<N, kWrite>(arrays, i + p * threads, v[p]);
  }
  for (; i < arrays.packs; i += threads) store<N, kWrite>(arrays, i, sum<N, kRead>(arrays, i));
}

struct Machine {
  int multiprocessors = 0;
  char* memory = nullptr;
  double bytes_per_us = 0;
};
constexpr size_t kMemory = size_t{24} << 30;

// Microseconds of what `put` puts into the stream: the median of five.
template <class Put>
double timed(cudaStream_t stream, const Put& put) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  put();
  std::vector<float> times(5);
  for (float& time : times) {
    check(cudaEventRecord(begin, stream));
    put();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&time, begin, end));
  }
  std::sort(times.begin(), times.end());
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return times[2] * 1e3;
}

template <int N, Read kRead, Write kWrite, int kPacks>
void measure(const Machine& machine, const char* shape, size_t bytes, int threads, int per_multiprocessor) {
  const size_t sets = std::clamp<size_t>((size_t{512} << 20) / (2 * N * bytes), 1, 256);
  const long long packs = static_cast<long long>(bytes / sizeof(float4));
  long long blocks = (packs + threads * kPacks - 1) / (threads * kPacks);
  if (per_multiprocessor > 0) {
    blocks = std::min<long long>(blocks, static_cast<long long>(per_multiprocessor) * machine.multiprocessors);
  }
  std::vector<Arrays<N>> arrays(sets);
  char* place = machine.memory;
  for (Arrays<N>& set : arrays) {
    set.packs = packs;
    for (int n = 0; n < N; ++n, place += 2 * bytes) {
      set.in[n] = reinterpret_cast<const float4*>(place);
      set.out[n] = reinterpret_cast<float4*>(place + bytes);
    }
  }
  const size_t batch = std::max<size_t>(sets, 8);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (size_t b = 0; b < batch; ++b) {
    kernel<N, kRead, kWrite, kPacks><<<static_cast<unsigned>(blocks), threads, 0, stream>>>(arrays[b % sets]);
  }
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&ready, graph, 0));
  const double us = timed(stream, [&] { check(cudaGraphLaunch(ready, stream)); }) / static_cast<double>(batch);
  std::printf("%d,%zu,%.3f,%s blocks of %d%s,%.3f\n", N, bytes,
              2.0 * N * static_cast<double>(bytes) / machine.bytes_per_us, shape, threads,
              per_multiprocessor > 0 ? " 4 of each multiprocessor" : "", us);
  check(cudaGraphExecDestroy(ready));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
}

template <int N>
void measure_all(const Machine& machine, size_t bytes) {
  for (const int per : {0, 4}) {
    for (const int threads : {64, 128, 256, 512}) {
      measure<N, Read::kPlain, Write::kLoop, 1>(machine, "plain loop", bytes, threads, per);
      measure<N, Read::kPastFirst, Write::kLoop, 1>(machine, "cg loop", bytes, threads, per);
      measure<N, Read::kPlain, Write::kUnrolled, 1>(machine, "plain", bytes, threads, per);
      measure<N, Read::kPastFirst, Write::kUnrolled, 1>(machine, "cg", bytes, threads, per);
      measure<N, Read::kNotInFirst, Write::kUnrolled, 1>(machine, "no_allocate", bytes, threads, per);
      measure<N, Read::kOnce, Write::kOnce, 1>(machine, "cs", bytes, threads, per);
      measure<N, Read::kPlain, Write::kUnrolled, 2>(machine, "plain two packs", bytes, threads, per);
    }
  }
}

}  // namespace

int main() {
  Machine machine;
  check(cudaDeviceGetAttribute(&machine.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  check(cudaMalloc(&machine.memory, kMemory));
  check(cudaMemset(machine.memory, 0x3f, kMemory));
  constexpr size_t kCopied = size_t{2} << 30;
  machine.bytes_per_us =
      2.0 * kCopied / timed(nullptr, [&] {
        check(cudaMemcpyAsync(machine.memory, machine.memory + kCopied, kCopied, cudaMemcpyDeviceToDevice));
      });
  for (size_t bytes = 4 << 10; bytes <= size_t{256} << 20; bytes *= 4) {
    measure_all<2>(machine, bytes);
    measure_all<4>(machine, bytes);
    measure_all<8>(machine, bytes);
  }
  return 0;
}
