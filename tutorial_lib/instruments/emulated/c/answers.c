/* Short answers of the CUDA runtime, driver, NVML, NCCL, cuBLAS and cuFFT.
 *
 * 0 means success in all of these libraries. Functions that need to say no more than that (kernels,
 * matrix products, waiting) are generated stubs. No CUDA header is included here, and only the
 * arguments that are used are declared: callers pass more of them, which is harmless under the
 * calling conventions of Linux. */
#define _GNU_SOURCE
#include "card.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };

void *new_handle(void) { return calloc(1, 4096); }

/* ---- what is not emulated says so, and the script ends with an error of PyTorch ---- */

static int refuse(const char *what) {
    fprintf(stderr, "emulated card: %s cannot be emulated.\n", what);
    const char *folder = getenv("TUTORIAL_EMULATED_OUT");
    char path[4096];
    snprintf(path, sizeof path, "%s/refused", folder ? folder : "");
    FILE *note = folder ? fopen(path, "w") : NULL;
    if (note) fputs(what, note), fclose(note);
    return NOT_SUPPORTED;
}
int cudaStreamBeginCapture(void) { return refuse("a CUDA graph"); }
int cudaStreamBeginCaptureToGraph(void) { return refuse("a CUDA graph"); }
int cudaIpcGetMemHandle(void) { return refuse("memory that several processes share"); }
int ncclGetUniqueId(void) { return refuse("NCCL"), 5; }
int ncclCommInitRankConfig(void) { return refuse("NCCL"), 5; }
int ncclCommInitAll(void) { return refuse("NCCL"), 5; }

/* ---- devices ---- */

int cudaGetDevice(int *device) { return *device = 0; }
int cudaSetDevice(int device) { return device == 0 ? 0 : INVALID_DEVICE; }
int cudaDeviceCanAccessPeer(int *can) { return *can = 0; }
int cudaDeviceGetPCIBusId(char *id, int size) { return snprintf(id, size, "0000:00:00.0"), 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, 0;
}

/* ---- streams and events: everything is done the moment it is asked for ---- */

int cudaStreamCreate(void **stream) { return *stream = new_handle(), 0; }
int cudaStreamCreateWithFlags(void **stream) { return *stream = new_handle(), 0; }
int cudaStreamCreateWithPriority(void **stream) { return *stream = new_handle(), 0; }
int cudaStreamDestroy(void *stream) { return free(stream), 0; }
int cudaStreamGetPriority(void *stream, int *priority) { return *priority = 0; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0; }
int cudaStreamGetCaptureInfo(void *stream, int *status) { return *status = 0; }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    return function(data), 0;
}
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data) {
    return function(stream, 0, data), 0;
}

/* An event keeps the host's clock, so that a script may divide by a time. */
int cudaEventCreate(double **event) { return *event = calloc(1, sizeof(double)), 0; }
int cudaEventCreateWithFlags(double **event) { return cudaEventCreate(event); }
int cudaEventDestroy(double *event) { return free(event), 0; }
int cudaEventRecord(double *event) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return *event = now.tv_sec * 1e3 + now.tv_nsec * 1e-6, 0;
}
int cudaEventRecordWithFlags(double *event) { return cudaEventRecord(event); }
int cudaEventElapsedTime(float *milliseconds, double *start, double *end) {
    return *milliseconds = *end - *start, 0;
}

/* ---- kernels: names and addresses, nothing to run ---- */

int __cudaGetKernel(void **kernel, void *function) { return *kernel = function, 0; }
int cudaGetSymbolAddress(void **address, void *symbol) { return *address = symbol, 0; }
int cudaLibraryLoadData(void **library) { return *library = new_handle(), 0; }
int cudaLibraryGetKernel(void **kernel) { return *kernel = new_handle(), 0; }
int cuModuleLoadData(void **module) { return *module = new_handle(), 0; }
int cuModuleLoadDataEx(void **module) { return *module = new_handle(), 0; }
int cuModuleGetFunction(void **function) { return *function = new_handle(), 0; }
int cuFuncGetAttribute(int *value, int attribute) { return *value = attribute ? 0 : 1024, 0; }

/* ---- errors ---- */

const char *cudaGetErrorString(int error) {
    switch (error) {
    case 0: return "no error";
    case OUT_OF_MEMORY: return "out of memory";
    case INVALID_DEVICE: return "invalid device ordinal: there is one emulated card, number 0";
    case NOT_SUPPORTED: return "operation not supported by an emulated card";
    default: return "error of an emulated card";
    }
}
const char *cudaGetErrorName(int error) { return cudaGetErrorString(error); }
int cuGetErrorString(int error, const char **text) { return *text = cudaGetErrorString(error), 0; }

/* ---- the driver; PyTorch asks for its functions by name ---- */

int cuDeviceGet(int *device) { return *device = 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuCtxGetCurrent(void **context) { return *context = &card, 0; }
int cuDevicePrimaryCtxRetain(void **context) { return *context = &card, 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return *flags = 0, *active = 1, 0;
}

static int succeed(void) { return 0; }
int cuGetProcAddress(const char *name, void **function) {
    char second[128];
    snprintf(second, sizeof second, "%s_v2", name); /* some functions carry a version */
    if (!(*function = dlsym(RTLD_DEFAULT, name)) && !(*function = dlsym(RTLD_DEFAULT, second)))
        *function = (void *)succeed;
    return 0;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                     unsigned long long flags, int *status) {
    if (status) *status = 0;
    return cuGetProcAddress(name, function);
}

/* ---- NVML: expandable segments ask it; a device that stays NULL ends their questions ---- */

int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(int *count) { return *count = card.bytes > 0, 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return *device = NULL, 0; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count) { return *count = 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 0; }

/* ---- cuBLAS and cuFFT: no workspace, since only they know what they would ask for ---- */

typedef struct { /* cublasLtMatmulHeuristicResult_t, whose header needs NVIDIA's compiler */
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} MatmulChoice;

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                   void *d, void *preference, int wanted, MatmulChoice *choices,
                                   int *found) {
    choices[0] = (MatmulChoice){.workspace = 0};
    return *found = 1, 0;
}
int cufftCreate(int *plan) { return *plan = 1, 0; }
int cufftXtMakePlanMany(long plan, long rank, void *n, void *in, long long in_stride,
                        long long in_distance, long in_type, void *out, long long out_stride,
                        long long out_distance, long out_type, long long batch,
                        size_t *workspace) {
    return *workspace = 0;
}
