/* What the compiled functions share. None of them trusts a number that it is given: a pointer is made after the index or
 * length that it follows was compared with the size of what it points into.
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch((const void *)(address))
#else
#define PREFETCH(address) ((void)(address))
#endif

enum { DONE = 0, OUTSIDE = 1, DAMAGED = 2, NO_MEMORY = 3 };

/* Files of rows of equal size, by number: FileTable owns the arrays, all of the length `count`. */
struct files {
    int64_t count;
    const uint64_t *data;       /* address at which the file begins */
    const int64_t *size;        /* its bytes */
    const int64_t *rows;        /* rows in it; 0: not open */
    const uint64_t *dictionary; /* of compressed rows, address of the digested dictionary; 0: none */
    int64_t row_bytes;          /* not compressed */
};

static inline const uint8_t *file_of(const struct files *files, int64_t number) {
    return (const uint8_t *)(uintptr_t)files->data[number];
}

/* Whether [run, count, row_bytes] fill `room` bytes. */
static inline int fills(int64_t count, int64_t run, int64_t row_bytes, int64_t room) {
    if (count < 0 || run < 0 || row_bytes <= 0 || room < 0) return 0;
    if (!count || !run) return !room;
    const int64_t most = room / row_bytes;
    return count <= most && run <= most / count && count * run * row_bytes == room;
}
