// A CUDA runtime without a GPU, loaded in place of libcudart.so: torch's own host code for CUDA runs on it.
//
// Kernels are counted and do not run. Device memory is reserved and never touched; every value read from a device is
// zero, so that counts do not depend on values. With GHOST_VALUES=1, copies copy and memset writes: a caller that
// computes in this memory, which the CPU can read, sees values. Streams run everything at once.
//
// A capture of a CUDA graph counts its kernels and copies on the device. A wait, a copy between host and device, a
// launch on another stream, or an allocation by the capturing thread that is not said to be safe ends it with an error,
// as CUDA does.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace {

// Bytes of a device: GHOST_MEMORY, by default 40 GiB.
size_t memory() {
  const char* bytes = getenv("GHOST_MEMORY");
  return bytes ? strtoull(bytes, nullptr, 10) : size_t{40} << 30;
}

bool has_values() {
  static const char* const given = getenv("GHOST_VALUES");
  static const bool values = given && *given == '1';
  return values;
}

struct Block {
  size_t size;
  int device;
  bool host;
};

struct Graph {
  long nodes = 0;
};

struct Capture {
  Graph* graph;
  cudaStream_t stream;
  unsigned long long number;
  bool valid;
};

thread_local int current_device = 0;
thread_local bool captures = false;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} launch_configuration;

std::mutex mutex;
std::map<uintptr_t, Block>& blocks = *new std::map<uintptr_t, Block>;
std::unordered_map<const void*, std::string>& kernel_names = *new std::unordered_map<const void*, std::string>;
std::map<std::string, long>& counts = *new std::map<std::string, long>;
std::map<int, Capture>& captured = *new std::map<int, Capture>;  // by device

int device_count() {
  const char* number = getenv("GHOST_GPUS");
  return number ? atoi(number) : 1;
}

void count(const std::string& what, long amount = 1) {
  std::lock_guard<std::mutex> guard(mutex);
  counts[what] += amount;
}

// Ends the capture on the current device, if there is one.
cudaError_t refuse_in_capture() {
  std::lock_guard<std::mutex> guard(mutex);
  const auto found = captured.find(current_device);
  if (found == captured.end()) return cudaSuccess;
  found->second.valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_unsafe_call() {
  return captures && capture_mode != cudaStreamCaptureModeRelaxed ? refuse_in_capture() : cudaSuccess;
}

cudaError_t synchronize() {
  count("synchronisations");
  return refuse_in_capture();
}

// Adds a node to the graph that is captured on the current device; returns false if there is none.
bool add_node(cudaStream_t stream, bool any_stream) {
  const auto found = captured.find(current_device);
  if (found == captured.end()) return false;
  Capture& capture = found->second;
  ++capture.graph->nodes;
  if (!any_stream && stream != capture.stream) capture.valid = false;
  return true;
}

cudaError_t launch(const void* kernel, cudaStream_t stream, bool any_stream = false) {
  std::lock_guard<std::mutex> guard(mutex);
  if (add_node(stream, any_stream)) return cudaSuccess;
  const auto found = kernel_names.find(kernel);
  ++counts["launch " + (found == kernel_names.end() ? "?" : found->second)];
  return cudaSuccess;
}

// Device of an address, -1 for the host.
int device_of(const void* address) {
  std::lock_guard<std::mutex> guard(mutex);
  auto block = blocks.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (block == blocks.begin()) return -1;
  --block;
  const bool inside = reinterpret_cast<uintptr_t>(address) < block->first + block->second.size;
  return inside && !block->second.host ? block->second.device : -1;
}

cudaError_t copy(void* to, const void* from, size_t size) {
  const int target = device_of(to), source = device_of(from);
  const long bytes = static_cast<long>(size);
  if (has_values() || (target < 0 && source < 0)) memmove(to, from, size);
  if (target >= 0 && source >= 0) {
    {
      std::lock_guard<std::mutex> guard(mutex);
      if (add_node(nullptr, true)) return cudaSuccess;
    }
    count("copies on device");
    count(target == source ? "bytes on device" : "bytes between devices", bytes);
  } else if (target >= 0) {
    count("copies to device");
    count("bytes to device", bytes);
    return refuse_in_capture();
  } else if (source >= 0) {
    count("copies to host");
    count("bytes to host", bytes);
    if (!has_values()) memset(to, 0, size);
    return refuse_in_capture();
  }
  return cudaSuccess;
}

cudaError_t fill(void* memory, int byte, size_t size) {
  if (has_values()) memset(memory, byte, size);
  return launch(nullptr, nullptr, true);
}

size_t used_memory() {
  std::lock_guard<std::mutex> guard(mutex);
  size_t used = 0;
  for (const auto& [address, block] : blocks)
    if (!block.host && block.device == current_device) used += block.size;
  return used;
}

cudaError_t allocate(void** address, size_t size, bool host) {
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  if (refuse_unsafe_call()) return cudaErrorStreamCaptureUnsupported;
  if (!host && used_memory() + size > memory()) return cudaErrorMemoryAllocation;
  *address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*address == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::lock_guard<std::mutex> guard(mutex);
  blocks[reinterpret_cast<uintptr_t>(*address)] = {size, current_device, host};
  return cudaSuccess;
}

cudaError_t release(void* address) {
  if (refuse_unsafe_call()) return cudaErrorStreamCaptureUnsupported;
  std::lock_guard<std::mutex> guard(mutex);
  const auto block = blocks.find(reinterpret_cast<uintptr_t>(address));
  if (block != blocks.end()) {
    munmap(address, block->second.size);
    blocks.erase(block);
  }
  return cudaSuccess;
}

template <class Handle>
cudaError_t new_handle(Handle* handle) {
  *handle = static_cast<Handle>(malloc(16));
  return cudaSuccess;
}

int context_is_active(int, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = 1;
  return 0;
}

int not_supported() {
  return cudaErrorNotSupported;
}

}  // namespace

extern "C" {

// For tests: "what<tab>count" lines, and a reset.
const char* ghost_counts() {
  static std::string text;
  std::lock_guard<std::mutex> guard(mutex);
  text.clear();
  for (const auto& [what, number] : counts) text += what + "\t" + std::to_string(number) + "\n";
  return text.c_str();
}
void ghost_reset() {
  std::lock_guard<std::mutex> guard(mutex);
  counts.clear();
}
int ghost_launch(const char* name) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!add_node(nullptr, true)) ++counts[std::string("launch ") + name];
  return 0;
}

// Devices.
cudaError_t cudaGetDeviceCount(int* number) {
  *number = device_count();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  if (device != current_device) count("changes of the device");
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  cudaDeviceProp& p = *properties;
  memset(&p, 0, sizeof p);
  strcpy(p.name, "Ghost of an A100");
  p.totalGlobalMem = memory();
  p.major = 8;
  p.warpSize = 32;
  p.multiProcessorCount = 108;
  p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.maxThreadsPerMultiProcessor = 2048;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 166912;
  p.sharedMemPerMultiprocessor = 167936;
  p.l2CacheSize = 40 << 20;
  p.unifiedAddressing = p.concurrentKernels = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  static const std::map<int, int> values = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMultiProcessorCount, 108},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrComputeCapabilityMajor, 8},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 167936},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 166912},
  };
  const auto found = values.find(attribute);
  *value = found == values.end() ? 0 : found->second;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "ghost error";
}
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorStreamCaptureUnsupported) return "operation not permitted when stream is capturing";
  if (error == cudaErrorStreamCaptureInvalidated) return "operation failed due to a previous error during capture";
  return "error of the ghost GPU";
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool state = strcmp(name, "cuDevicePrimaryCtxGetState") == 0;
  *function = state ? reinterpret_cast<void*>(&context_is_active) : reinterpret_cast<void*>(&not_supported);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// Memory.
cudaError_t cudaMalloc(void** address, size_t size) {
  return allocate(address, size, false);
}
cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  return allocate(address, size, true);
}
cudaError_t cudaFree(void* address) {
  return release(address);
}
cudaError_t cudaFreeHost(void* address) {
  return release(address);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = memory();
  *free = *total - used_memory();
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  synchronize();
  return copy(to, from, size);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  return copy(to, from, size);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
  return copy(to, from, size);
}
cudaError_t cudaMemset(void* memory, int byte, size_t size) {
  return fill(memory, byte, size);
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t size, cudaStream_t) {
  return fill(memory, byte, size);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  memset(attributes, 0, sizeof *attributes);
  const int device = device_of(address);
  if (device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = const_cast<void*>(address);
  }
  return cudaSuccess;
}

// Streams and events.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return new_handle(stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return synchronize();
}
cudaError_t cudaDeviceSynchronize() {
  return synchronize();
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return synchronize();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return new_handle(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}

// Graphs.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  static unsigned long long number = 0;
  std::lock_guard<std::mutex> guard(mutex);
  if (!stream || captured.count(current_device)) return cudaErrorStreamCaptureUnsupported;
  captured[current_device] = {new Graph, stream, ++number, true};
  captures = true;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* number,
                                     cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  std::lock_guard<std::mutex> guard(mutex);
  *status = cudaStreamCaptureStatusNone;
  for (const auto& [device, capture] : captured) {
    if (capture.stream != stream) continue;
    *status = capture.valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    if (number) *number = capture.number;
    if (graph) *graph = reinterpret_cast<cudaGraph_t>(capture.graph);
  }
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  std::lock_guard<std::mutex> guard(mutex);
  *graph = nullptr;
  const auto found = captured.find(current_device);
  if (found == captured.end() || found->second.stream != stream) return cudaErrorIllegalState;
  const Capture capture = found->second;
  captured.erase(found);
  captures = false;
  if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(capture.graph);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* number) {
  *number = static_cast<size_t>(reinterpret_cast<Graph*>(graph)->nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* program, cudaGraph_t graph, unsigned long long) {
  *program = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* program, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(program, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t program, cudaStream_t) {
  count("launch graph");
  count("nodes of graphs", reinterpret_cast<Graph*>(program)->nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t program) {
  delete reinterpret_cast<Graph*>(program);
  return cudaSuccess;
}

// Kernels.
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {
}
void __cudaUnregisterFatBinary(void**) {
}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  std::lock_guard<std::mutex> guard(mutex);
  kernel_names[kernel] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {
}
char __cudaInitModule(void**) {
  return 1;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  launch_configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = launch_configuration.grid;
  *block = launch_configuration.block;
  *shared = launch_configuration.shared;
  *static_cast<cudaStream_t*>(stream) = launch_configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* kernel) {
  *handle = static_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* kernel, void**) {
  return launch(kernel, configuration->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 80;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char memory[4096];
  *address = memory;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* number, const void*, int, size_t) {
  *number = 4;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* number, const void*, int, size_t, unsigned) {
  *number = 4;
  return cudaSuccess;
}
}
