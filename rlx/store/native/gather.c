/* Rows of many files copied into an array by one call: rlx/store/native/gather.py calls it. */

#include <string.h>

#include "native.h"

/* With a constant size, `memcpy` is one instruction. */
#define COPY_EACH(bytes)                                                                                               \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        const uint8_t *from = file_of(files, file[i]) + row[i] * (int64_t)(bytes);                                     \
        for (int64_t j = 0; j < run; j++) memcpy(out + (j * count + i) * (int64_t)(bytes), from + j * (int64_t)(bytes), (size_t)(bytes)); \
    }

/* Write runs of consecutive rows to `out`.
 *
 * file, row: [count] the file of each run, and the first of its rows.
 * out: [run, count, row_bytes], of `room` bytes.
 */
int64_t rlx_gather(const struct files *files, int64_t count, int64_t run, const int64_t *file, const int64_t *row,
                   uint8_t *out, int64_t room) {
    const int64_t row_bytes = files->row_bytes;
    if (!fills(count, run, row_bytes, room)) return OUTSIDE;
    for (int64_t i = 0; i < count; i++)
        if (file[i] < 0 || file[i] >= files->count || row[i] < 0 || row[i] > files->rows[file[i]] - run) return OUTSIDE;
    switch (row_bytes) {
    case 1: COPY_EACH(1) break;
    case 4: COPY_EACH(4) break;
    case 8: COPY_EACH(8) break;
    default: COPY_EACH(row_bytes)
    }
    return DONE;
}
