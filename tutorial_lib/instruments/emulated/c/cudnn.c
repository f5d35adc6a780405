/* cuDNN, but for its graphs (graphs.c): descriptors that remember shapes. */
#include "card.h"

#include <cudnn.h>
#include <string.h>

#define OK CUDNN_STATUS_SUCCESS

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return "error of an emulated card"; }
void cudnnGetLastErrorString(char *text, size_t size) { *text = 0; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    return *stream = NULL, OK;
}
cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int *value) {
    int version[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};
    return *value = version[which], OK;
}

/* ---- shapes, which PyTorch reads back ---- */

typedef struct {
    int type, num_dims, dims[CUDNN_DIM_MAX];
} Shape;

static cudnnStatus_t write_shape(void *descriptor, int type, int num_dims, const int *dims) {
    Shape *shape = descriptor;
    *shape = (Shape){type, num_dims};
    memcpy(shape->dims, dims, num_dims * sizeof(int));
    return OK;
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                         int num_dims, const int dims[], const int strides[]) {
    return write_shape(tensor, type, num_dims, dims);
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int wanted,
                                         cudnnDataType_t *type, int *num_dims, int dims[],
                                         int strides[]) {
    const Shape *shape = (const Shape *)tensor;
    *type = shape->type;
    *num_dims = shape->num_dims;
    memcpy(dims, shape->dims, (wanted < *num_dims ? wanted : *num_dims) * sizeof(int));
    return OK;
}

/* The state of a random generator for every thread on the card; 16 bytes each is a guess. */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
    return *bytes = (size_t)16 * card.multiprocessors * card.threads, OK;
}

/* ---- recurrent layers: where a weight lies in the one block that holds them all ---- */

typedef struct {
    int gates, biases, directions, item_bytes, input, hidden, projection, num_layers;
} Recurrent;

cudnnStatus_t cudnnSetRNNDescriptor_v8(
    cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t cell,
    cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode,
    cudnnDataType_t type, cudnnDataType_t precision, cudnnMathType_t math, int32_t input,
    int32_t hidden, int32_t projection, int32_t num_layers, cudnnDropoutDescriptor_t dropout,
    uint32_t flags) {
    *(Recurrent *)descriptor = (Recurrent){
        .gates = cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1,
        .biases = bias == CUDNN_RNN_NO_BIAS ? 0 : bias == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1,
        .directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1,
        .item_bytes = type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2,
        .input = input,
        .hidden = hidden,
        .projection = projection != hidden ? projection : 0,
        .num_layers = num_layers * (direction == CUDNN_BIDIRECTIONAL ? 2 : 1),
    };
    return OK;
}

/* A layer's matrices: one a gate on the input, one a gate on the state, then the projection. */
static int rows(const Recurrent *rnn, int matrix) {
    return matrix < 2 * rnn->gates ? rnn->hidden : rnn->projection;
}
static int columns(const Recurrent *rnn, int layer, int matrix) {
    int state = rnn->projection ? rnn->projection : rnn->hidden;
    if (matrix >= 2 * rnn->gates) return rnn->hidden;
    if (matrix >= rnn->gates) return state;
    return layer < rnn->directions ? rnn->input : rnn->directions * state;
}

/* Items before a layer's matrix; before all biases, when the layer is the one after the last. */
static size_t items_before(const Recurrent *rnn, int layer, int matrix) {
    int matrices = 2 * rnn->gates + (rnn->projection > 0);
    size_t items = 0;
    for (int l = 0; l <= layer; l++)
        for (int m = 0; m < (l < layer ? matrices : matrix); m++)
            items += (size_t)rows(rnn, m) * columns(rnn, l, m);
    return items;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor,
                                         size_t *bytes) {
    const Recurrent *rnn = (const Recurrent *)descriptor;
    size_t biases = (size_t)rnn->num_layers * rnn->gates * rnn->biases * rnn->hidden;
    return *bytes = (items_before(rnn, rnn->num_layers, 0) + biases) * rnn->item_bytes, OK;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor,
                                      int32_t layer, size_t size, const void *weights, int32_t id,
                                      cudnnTensorDescriptor_t matrix, void **matrix_address,
                                      cudnnTensorDescriptor_t bias, void **bias_address) {
    const Recurrent *rnn = (const Recurrent *)descriptor;
    int num_biases = rnn->gates * rnn->biases; /* of one layer */
    int type = rnn->item_bytes == 8 ? CUDNN_DATA_DOUBLE
               : rnn->item_bytes == 4 ? CUDNN_DATA_FLOAT : CUDNN_DATA_HALF;
    if (matrix) { /* PyTorch asks for a matrix or for a bias */
        *matrix_address = (char *)weights + items_before(rnn, layer, id) * rnn->item_bytes;
        write_shape(matrix, type, 3, (int[]){1, rows(rnn, id), columns(rnn, layer, id)});
    }
    if (bias) {
        size_t items = items_before(rnn, rnn->num_layers, 0);
        items += ((size_t)layer * num_biases + id) * rnn->hidden;
        *bias_address = id < num_biases ? (char *)weights + items * rnn->item_bytes : NULL;
        write_shape(bias, type, 3, (int[]){1, rnn->hidden, 1});
    }
    return OK;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int steps, int samples,
                                        int width, const int lengths[], void *fill) {
    return write_shape(data, type, 2, (int[]){steps, samples});
}

/* What training keeps is a guess: gates, cell and output of every step. */
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t data,
                                        size_t *workspace, size_t *reserve) {
    const Recurrent *rnn = (const Recurrent *)descriptor;
    const int *sizes = ((const Shape *)data)->dims; /* steps, samples */
    size_t cells = (size_t)sizes[0] * sizes[1] * rnn->num_layers * rnn->hidden;
    bool training = mode == CUDNN_FWD_MODE_TRAINING;
    if (workspace) *workspace = 0;
    if (reserve) *reserve = training ? cells * (rnn->gates + 2) * rnn->item_bytes : 0;
    return OK;
}
