/* Loops over the memory of a package's tensors: numbers of one line, `step` elements apart. In C, because Swift without
 * optimization, or with one closure call per number, would take longer than the pass itself; and because Swift has no
 * half floats on Intel Macs. */
#ifndef STREAMFUSE_TENSOR_H
#define STREAMFUSE_TENSOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tensor_float { TENSOR_FLOAT16, TENSOR_FLOAT32 } tensor_float;

/* The numbers without gaps. */
void tensor_read(const void* line, tensor_float type, int64_t count, int64_t step, float* out);

/* The first of the greatest; its value in `greatest`. `count` is 1 or more. */
int64_t tensor_argmax(const void* line, tensor_float type, int64_t count, int64_t step, float* greatest);

/* Copies numbers of `bytes` (2 or 4) from one line to another. */
void tensor_copy(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t count, int bytes);

/* Writes the additive mask of rows x columns: 0 where a row looks, else -10000. The first `n` rows see the first
 * `length` of `capacity` cached columns, and of the columns behind those what `sees`, n x n, says. The other rows see
 * nothing. */
void tensor_write_mask(void* mask, tensor_float type, int64_t rows, int64_t row_step, int64_t columns,
                       int64_t column_step, int64_t capacity, int64_t length, const uint8_t* sees, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
