/* cuDNN's graphs: convolutions, and attention on Hopper.
 *
 * Since 9.8 cuDNN plans for a card that is not there, by properties that it is told
 * (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). So it is asked about convolutions: a second copy of
 * the library, which sees neither this one nor any card, gives the engines that its heuristics
 * choose, and their workspaces. Other graphs get one engine that takes everything, workspace 0. */
#define _GNU_SOURCE
#include "card.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDNN_VERSION < 90800 /* it plans for no card but one that is there */
#define CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR -1
#define CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION -1
#define CUDNN_ATTR_ENGINEHEUR_DEVICEPROP -1
#define CUDNN_ATTR_ENGINE_DEVICEPROP -1
#define CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP -1
#endif

#define OK CUDNN_STATUS_SUCCESS
#define MOST 64 /* descriptors in one attribute */

typedef cudnnBackendAttributeName_t Name;
typedef cudnnBackendAttributeType_t Type;
typedef struct {
    cudnnBackendDescriptorType_t type;
    void *asked; /* the descriptor of the copy; NULL where it is not asked */
} Graph;

static struct {
    cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, void **);
    cudnnStatus_t (*destroy)(void *);
    cudnnStatus_t (*finalize)(void *);
    cudnnStatus_t (*set)(void *, Name, Type, int64_t, const void *);
    cudnnStatus_t (*get)(void *, Name, Type, int64_t, int64_t *, void *);
} copy;
static void *properties; /* the card's, as the copy knows it; NULL when there is no copy */

static void *describe_card(void) {
    char text[2048];
    int size = snprintf(
        text, sizeof text,
        "{\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":%d,"
        "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"smClockRateKHz\":1500000,"
        "\"memClockRateKHz\":5000000,\"l2CacheSize\":%zu,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%zu,"
        "\"reservedSharedMemoryPerBlock\":%d,\"maxRegistersPerSM\":65536,"
        "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,"
        "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
        "\"totalGlobalMem\":%zu,\"cudaDeviceId\":0}",
        card.name, 100 * card.major + 10 * card.minor, CUDART_VERSION, card.multiprocessors,
        card.l2_cache, card.shared_opt_in, card.major >= 8 ? 1024 : 0, card.blocks, card.threads,
        card.bytes);
    void *made = NULL;
    if (copy.create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made) ||
        copy.set(made, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, size + 1, text) ||
        copy.finalize(made))
        return NULL;
    return made;
}

/* Load the copy from where PyTorch's own cuDNN lies. */
static void load_copy(void) {
    struct link_map *library;
    const char *wish = getenv("TUTORIAL_EMULATED_CUDNN");
    if (!wish || !*wish) return;
    void *known = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    if (!known || dlinfo(known, RTLD_DI_LINKMAP, &library)) return;
    void *apart = dlmopen(LM_ID_NEWLM, library->l_name, RTLD_LAZY);
    if (!apart) return;
    copy.create = dlsym(apart, "cudnnBackendCreateDescriptor");
    copy.destroy = dlsym(apart, "cudnnBackendDestroyDescriptor");
    copy.finalize = dlsym(apart, "cudnnBackendFinalize");
    copy.set = dlsym(apart, "cudnnBackendSetAttribute");
    copy.get = dlsym(apart, "cudnnBackendGetAttribute");
    properties = describe_card();
    if (!properties) fputs("emulated card: cuDNN was not asked for its workspaces.\n", stderr);
}

static bool is_asked(cudnnBackendDescriptorType_t type) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_copy);
    if (!properties) return false;
    switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    case CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR:
    case CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR: return true;
    default: return false;
    }
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
    Graph *graph = new_handle();
    graph->type = type;
    *descriptor = graph;
    return is_asked(type) ? copy.create(type, &graph->asked) : OK;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    Graph *graph = descriptor;
    if (graph && graph->asked) copy.destroy(graph->asked);
    free(graph);
    return OK;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, Name name, Type type,
                                       int64_t count, const void *values) {
    Graph *graph = descriptor;
    if (!graph->asked || type == CUDNN_TYPE_HANDLE) return OK; /* a handle speaks for a card */
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return copy.set(graph->asked, name, type, count, values);
    void *asked[MOST];
    for (int64_t i = 0; i < count; i++) {
        Graph *part = ((Graph *const *)values)[i];
        if (i == MOST || !part->asked) { /* a part is no convolution's, so neither is the whole */
            copy.destroy(graph->asked);
            graph->asked = NULL;
            return OK;
        }
        asked[i] = part->asked;
    }
    return copy.set(graph->asked, name, type, count, asked);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    Graph *graph = descriptor;
    if (!graph->asked) return OK;
    Name name = graph->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR   ? CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
                : graph->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR     ? CUDNN_ATTR_ENGINE_DEVICEPROP
                : graph->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
                    ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                    : -1;
    if (name != -1) copy.set(graph->asked, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
    return copy.finalize(graph->asked);
}

static cudnnStatus_t answer(Name name, Type type, int64_t wanted, int64_t *found, void *values) {
    bool none = type == CUDNN_TYPE_NUMERICAL_NOTE || type == CUDNN_TYPE_BEHAVIOR_NOTE ||
                name == CUDNN_ATTR_ENGINE_KNOB_INFO;
    if (found) *found = none ? 0 : 1;
    if (none || wanted < 1 || !values) return OK;
    if (type == CUDNN_TYPE_INT64) *(int64_t *)values = 0; /* a plan's workspace among them */
    if (type == CUDNN_TYPE_INT32) *(int32_t *)values = 0;
    if (type == CUDNN_TYPE_BOOLEAN || type == CUDNN_TYPE_CHAR) *(char *)values = 0;
    return OK; /* a descriptor that was asked for is the caller's own, and stays as it is */
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, Name name, Type type,
                                       int64_t wanted, int64_t *found, void *values) {
    Graph *graph = descriptor;
    if (!graph->asked) {
        if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && wanted > 0 && values) {
            Graph *part = *(Graph **)values; /* of a graph that is not asked about */
            if (part && part->asked) copy.destroy(part->asked), part->asked = NULL;
        }
        return answer(name, type, wanted, found, values);
    }
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR || !values)
        return copy.get(graph->asked, name, type, wanted, found, values);
    void *asked[MOST];
    for (int64_t i = 0; i < wanted && i < MOST; i++) asked[i] = (*((Graph **)values + i))->asked;
    return copy.get(graph->asked, name, type, wanted < MOST ? wanted : MOST, found, asked);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    return OK;
}
