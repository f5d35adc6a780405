/* Memory of the card: addresses with nothing behind them.
 *
 * An allocation is a mapping that nobody may touch (PROT_NONE). It costs no RAM, it counts against
 * the card's size, and a program that reads it from the host crashes, as with a real card. */
#define _GNU_SOURCE
#include "card.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)2 << 20) /* the driver maps memory in pages of 2 MiB */

typedef enum { ALLOCATED, RESERVED, PINNED } Kind;
typedef struct {
    char *start;
    size_t bytes;
    Kind kind;
} Range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held around all that follows */
static Range *ranges;
static size_t num_ranges, capacity, used_bytes;

static size_t round_up(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static char *map_addresses(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *start = mmap(NULL, bytes + PAGE, PROT_NONE, flags, -1, 0);
    if (start == MAP_FAILED) return NULL;
    char *aligned = (char *)round_up((size_t)start); /* pages of the host are smaller */
    if (aligned > start) munmap(start, aligned - start);
    munmap(aligned + bytes, start + PAGE - aligned);
    return aligned;
}

static void add_range(void *start, size_t bytes, Kind kind) {
    if (num_ranges == capacity) {
        capacity = capacity ? 2 * capacity : 256;
        ranges = realloc(ranges, capacity * sizeof *ranges);
        if (!ranges) abort();
    }
    ranges[num_ranges++] = (Range){start, bytes, kind};
}

static Range *find_range(const char *address) {
    for (size_t i = num_ranges; i-- > 0;) /* the newest are asked for most */
        if (address >= ranges[i].start && address < ranges[i].start + ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

/* Forget a range, and unmap it unless the host owns it. */
static cudaError_t drop_range(const void *start) {
    pthread_mutex_lock(&lock);
    Range *range = find_range(start);
    bool found = range && range->start == start;
    if (found) {
        if (range->kind == ALLOCATED) used_bytes -= range->bytes;
        if (range->kind != PINNED) munmap(range->start, range->bytes);
        *range = ranges[--num_ranges];
    }
    pthread_mutex_unlock(&lock);
    return found ? cudaSuccess : cudaErrorInvalidValue;
}

bool find_on_card(const void *address, void **start, size_t *bytes) {
    pthread_mutex_lock(&lock);
    Range *range = find_range(address);
    bool found = range && range->kind != PINNED;
    if (found && start) *start = range->start;
    if (found && bytes) *bytes = range->bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

static size_t left(void) { return card.bytes - card.context - used_bytes; }

/* Take bytes out of what the card has left. */
static bool take(size_t bytes) {
    bool fits = bytes <= left();
    if (fits) used_bytes += bytes;
    return fits;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
    size_t rounded = round_up(bytes);
    *address = NULL;
    pthread_mutex_lock(&lock);
    if (rounded >= bytes && take(rounded)) {
        if ((*address = map_addresses(rounded))) add_range(*address, rounded, ALLOCATED);
        else used_bytes -= rounded;
    }
    pthread_mutex_unlock(&lock);
    return *address ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
    return cudaMalloc(address, bytes);
}

cudaError_t cudaFree(void *address) { return address ? drop_range(address) : cudaSuccess; }
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = left();
    *total_bytes = card.bytes;
    return cudaSuccess;
}

/* ---- pinned memory: the host's own, real, and nothing on the card ---- */

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned int flags) {
    pthread_mutex_lock(&lock);
    add_range(address, bytes, PINNED);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *address) { return drop_range(address); }

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned int flags) {
    if (posix_memalign(address, 4096, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    return cudaHostRegister(*address, bytes, flags);
}
cudaError_t cudaFreeHost(void *address) {
    drop_range(address);
    free(address);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    pthread_mutex_lock(&lock);
    Range *range = find_range(address);
    *found = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
    if (range) {
        found->type = range->kind == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        found->device = 0;
        *(range->kind == PINNED ? &found->hostPointer : &found->devicePointer) = (void *)address;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* ---- copies: what leaves the card is zeros, what goes there is dropped ---- */

void (*on_read)(void); /* what known_values.py does at each copy to the host */

static void read_zeros(void *to, size_t bytes) {
    memset(to, 0, bytes);
    if (on_read) on_read();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    bool to_card = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (to_card || find_on_card(to, NULL, NULL)) return cudaSuccess;
    if (find_on_card(from, NULL, NULL)) read_zeros(to, bytes);
    else memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, kind);
}

/* ---- the driver's virtual memory, for expandable segments ----
 * Addresses are reserved first, and count for nothing. Pages are created later, and count. */

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *where,
                                       CUmemAllocationGranularity_flags flags) {
    *bytes = PAGE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wish, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    char *start = map_addresses(round_up(bytes));
    if (start) add_range(start, round_up(bytes), RESERVED);
    pthread_mutex_unlock(&lock);
    *address = (CUdeviceptr)start;
    return start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return (CUresult)drop_range((void *)address);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *where, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    bool fits = take(bytes);
    pthread_mutex_unlock(&lock);
    *handle = bytes; /* all that is needed to release the page, which PyTorch does once */
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    used_bytes -= handle;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
    bool found = find_on_card((void *)address, (void **)start, bytes);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
