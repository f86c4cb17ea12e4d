#include "tensor.h"

#include "numbers.h"

namespace {

constexpr uint16_t kHiddenHalf = 0xF0E2;  // -10000 as a float16
constexpr float kHidden = -10000;

float as_float(uint16_t half) { return streamfuse::from_half(half); }
float as_float(float value) { return value; }

template <typename Number>
void read(const Number* line, int64_t count, int64_t step, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = as_float(line[i * step]);
}

template <typename Number>
int64_t argmax(const Number* line, int64_t count, int64_t step, float* greatest) {
  int64_t best = 0;
  *greatest = as_float(line[0]);
  for (int64_t i = 1; i < count; ++i) {
    const float value = as_float(line[i * step]);
    if (value > *greatest) {
      *greatest = value;
      best = i;
    }
  }
  return best;
}

template <typename Number>
void copy(const Number* from, int64_t from_step, Number* to, int64_t to_step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
}

template <typename Number>
void write_mask(Number* mask, Number hidden, int64_t rows, int64_t row_step, int64_t columns, int64_t column_step,
                int64_t capacity, int64_t length, const uint8_t* sees, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t other = column - capacity;
      const bool seen = row < n && (other < 0 ? column < length : other < n && sees[row * n + other] != 0);
      mask[row * row_step + column * column_step] = seen ? Number{0} : hidden;
    }
  }
}

}  // namespace

void tensor_read(const void* line, tensor_float type, int64_t count, int64_t step, float* out) {
  if (type == TENSOR_FLOAT16)
    read(static_cast<const uint16_t*>(line), count, step, out);
  else
    read(static_cast<const float*>(line), count, step, out);
}

int64_t tensor_argmax(const void* line, tensor_float type, int64_t count, int64_t step, float* greatest) {
  if (type == TENSOR_FLOAT16) return argmax(static_cast<const uint16_t*>(line), count, step, greatest);
  return argmax(static_cast<const float*>(line), count, step, greatest);
}

void tensor_copy(const void* from, int64_t from_step, void* to, int64_t to_step, int64_t count, int bytes) {
  if (bytes == 2)
    copy(static_cast<const uint16_t*>(from), from_step, static_cast<uint16_t*>(to), to_step, count);
  else
    copy(static_cast<const uint32_t*>(from), from_step, static_cast<uint32_t*>(to), to_step, count);
}

void tensor_write_mask(void* mask, tensor_float type, int64_t rows, int64_t row_step, int64_t columns,
                       int64_t column_step, int64_t capacity, int64_t length, const uint8_t* sees, int64_t n) {
  if (type == TENSOR_FLOAT16)
    write_mask(static_cast<uint16_t*>(mask), kHiddenHalf, rows, row_step, columns, column_step, capacity, length, sees,
               n);
  else
    write_mask(static_cast<float*>(mask), kHidden, rows, row_step, columns, column_step, capacity, length, sees, n);
}
