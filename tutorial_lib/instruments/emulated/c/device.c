/* What the card says of itself. PyTorch chooses kernels, and sizes buffers, by these answers. */
#include "card.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

Card card;

/* Python names the card in one variable, as `cards.Card.as_text` writes it. */
__attribute__((constructor)) static void read_card(void) {
    const char *text = getenv("TUTORIAL_EMULATED_CARD");
    int found = sscanf(text ? text : "", "%d.%d %d %d %d %zu %zu %zu %zu %zu %63[^\n]", &card.major,
                       &card.minor, &card.multiprocessors, &card.threads, &card.blocks,
                       &card.shared_multiprocessor, &card.shared_opt_in, &card.l2_cache,
                       &card.bytes, &card.context, card.name);
    if (found != 11) card.bytes = 0;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = card.bytes > 0;
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, 0; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_VERSION, 0; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    *properties = (struct cudaDeviceProp){
        .totalGlobalMem = card.bytes,
        .major = card.major,
        .minor = card.minor,
        .multiProcessorCount = card.multiprocessors,
        .maxThreadsPerMultiProcessor = card.threads,
        .maxBlocksPerMultiProcessor = card.blocks,
        .sharedMemPerMultiprocessor = card.shared_multiprocessor,
        .sharedMemPerBlockOptin = card.shared_opt_in,
        .l2CacheSize = card.l2_cache,
        .clusterLaunch = card.major >= 9,
        /* the same on every card since compute capability 7.5 */
        .sharedMemPerBlock = 49152,
        .reservedSharedMemPerBlock = 1024,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536,
        .warpSize = 32,
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .totalConstMem = 65536,
        .textureAlignment = 512,
        .concurrentKernels = 1,
        .cooperativeLaunch = 1,
        .unifiedAddressing = 1,
        .streamPrioritiesSupported = 1,
        .canMapHostMemory = 1,
    };
    snprintf(properties->name, sizeof properties->name, "%s", card.name);
    return device == 0 && card.bytes ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = card.multiprocessors; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.threads; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = card.blocks; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = card.shared_multiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card.shared_opt_in; break;
    case cudaDevAttrL2CacheSize: *value = card.l2_cache; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
    case cudaDevAttrTotalConstantMemory: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrClockRate: *value = 1000000; break; /* kHz; only times depend on it */
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    default: *value = 0; /* multicast, memory pools, peers: not there */
    }
    return cudaSuccess;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    /* the driver and the runtime number the attributes alike */
    return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

/* A kernel's registers and shared memory are not looked at, its threads are. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared) {
    int fitting = card.threads / (threads > 0 ? threads : 1);
    *blocks = fitting < 1 ? 1 : fitting > card.blocks ? card.blocks : fitting;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *kernel, int threads, size_t shared, unsigned int flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction kernel, int threads,
                                                     size_t shared) {
    return (CUresult)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    /* PyTorch's wheels hold no kernels for 8.9 (torch.cuda.get_arch_list): it runs those of 8.6 */
    int built_for = 10 * card.major + (card.minor == 9 ? 6 : card.minor);
    *attributes = (struct cudaFuncAttributes){
        .maxThreadsPerBlock = 1024,
        .numRegs = 32,
        .ptxVersion = built_for,
        .binaryVersion = built_for,
        .maxDynamicSharedSizeBytes = 49152,
    };
    return cudaSuccess;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (!find_on_card((void *)address, NULL, NULL)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) *(void **)value = &card;
    else *(int *)value = attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    return CUDA_SUCCESS;
}
