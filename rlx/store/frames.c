/* Compressed rows decoded into an array by one call: rlx/store/kernel.py calls it.
 *
 * Of a dataset, it does what FieldFiles does in Python: look up where each row is, check that this is inside the file, and decode it
 * to its place. A row that is asked for twice is decoded once. Plain C99 without Python or libzstd: ctypes loads it, so
 * that no interpreter lock is held, and the caller passes libzstd's function. All numbers are 64 bits wide.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch((const void *)(address))
#else
#define PREFETCH(address) ((void)(address))
#endif

enum { INDEX_ENTRY_BYTES = 16, CRC_BYTES = 4, AHEAD = 4, LINE_BYTES = 64, MOST_LINES = 8 };
enum { DONE = 0, OUTSIDE = 1, DAMAGED = 2, NO_MEMORY = 3 };

/* ZSTD_decompress_usingDDict; the dictionary may be NULL. */
typedef size_t (*decompress_function)(void *context, void *out, size_t room, const void *frame, size_t bytes,
                                      const void *dictionary);

/* The open files of a field, by shard: FieldFiles owns the arrays. */
struct files {
    int64_t origin;               /* address that `data` counts from */
    const int64_t *data;          /* where the file begins */
    const int64_t *size;          /* its bytes */
    const int64_t *rows;          /* rows in it; 0: not open */
    const int64_t *codec;         /* which of the dictionaries */
    const uint64_t *dictionaries; /* address of each, digested; 0: none */
    int64_t row_bytes;
};

struct entry {
    const uint8_t *frame;
    uint64_t bytes;
    const void *dictionary;
};

/* What decodes: a function and its context, of one thread. */
struct decoder {
    decompress_function decompress;
    void *context;
};

/* Of all functions of the library, those of other files included. */
int64_t rlx_version(void) { return 4; }

static uint64_t little_endian(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static const uint8_t *file_of(const struct files *files, int64_t shard) {
    return (const uint8_t *)(uintptr_t)(files->origin + files->data[shard]);
}

/* The entry of a row in the index at the end of its file; 0 if it is outside. */
static const uint8_t *index_entry(const struct files *files, int64_t shard, int64_t row) {
    const int64_t rows = files->rows[shard];
    if (row < 0 || row >= rows || rows > (files->size[shard] - CRC_BYTES) / INDEX_ENTRY_BYTES) return NULL;
    const int64_t index = files->size[shard] - CRC_BYTES - rows * INDEX_ENTRY_BYTES;
    return file_of(files, shard) + index + row * INDEX_ENTRY_BYTES;
}

/* Position of the frame of a row; 0 if any byte of it is outside its file. The index is not trusted. */
static int locate(const struct files *files, int64_t shard, const uint8_t *at, struct entry *found) {
    const uint64_t size = (uint64_t)files->size[shard], start = little_endian(at), bytes = little_endian(at + 8);
    if (bytes > size || start > size - bytes) return 0;
    found->frame = file_of(files, shard) + start;
    found->bytes = bytes;
    found->dictionary = (const void *)(uintptr_t)files->dictionaries[files->codec[shard]];
    return 1;
}

/* The first row that has the same entry; this row itself if no other has. `slots` holds rows + 1 by hash. */
static int64_t first_like(int64_t *slots, uint64_t mask, const struct entry *entries, int64_t row) {
    const struct entry *mine = entries + row;
    uint64_t slot = (uint64_t)(uintptr_t)mine->frame * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    for (;; slot++) {
        const int64_t other = slots[slot & mask] - 1;
        if (other < 0) {
            slots[slot & mask] = row + 1;
            return row;
        }
        if (entries[other].frame == mine->frame && entries[other].bytes == mine->bytes) return other;
    }
}

static void prefetch(const struct entry *entry) {
    for (uint64_t line = 0; line < MOST_LINES && line * LINE_BYTES < entry->bytes; line++)
        PREFETCH(entry->frame + line * LINE_BYTES);
}

/* Where the i-th entry is decoded to: [run, count / run, room] is laid out by the place in a run. */
static uint8_t *target(uint8_t *out, int64_t i, int64_t count, int64_t run, size_t room) {
    return out + (size_t)(i % run * (count / run) + i / run) * room;
}

static int64_t decode_each(const struct decoder *decoder, int64_t count, int64_t run, const struct entry *entries,
                           int64_t *slots, uint64_t mask, size_t room, uint8_t *out, int64_t *failed) {
    for (int64_t i = 0; i < AHEAD && i < count; i++) prefetch(entries + i);
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) prefetch(entries + i + AHEAD);
        const struct entry *entry = entries + i;
        uint8_t *row = target(out, i, count, run, room);
        const int64_t first = first_like(slots, mask, entries, i);
        if (first != i) {
            memcpy(row, target(out, first, count, run, room), room);
            continue;
        }
        const size_t found =
            decoder->decompress(decoder->context, row, room, entry->frame, (size_t)entry->bytes, entry->dictionary);
        if (found != room) {
            *failed = (int64_t)found;
            return DAMAGED;
        }
    }
    return DONE;
}

static int64_t decode(const struct decoder *decoder, int64_t count, int64_t run, const struct entry *entries,
                      int64_t row_bytes, uint8_t *out, int64_t *failed) {
    uint64_t slots_count = 2;
    while (slots_count < 2 * (uint64_t)count) slots_count *= 2;
    int64_t *slots = calloc(slots_count, sizeof *slots);
    if (!slots) return NO_MEMORY;
    const int64_t status =
        decode_each(decoder, count, run, entries, slots, slots_count - 1, (size_t)row_bytes, out, failed);
    free(slots);
    return status;
}

static int64_t locate_each(const struct files *files, int64_t count, int64_t run, const int64_t *shard,
                           const int64_t *row, struct entry *entries) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t ahead = i + 2 * AHEAD;
        if (ahead < count) PREFETCH(index_entry(files, shard[ahead], row[ahead]));
        for (int64_t j = 0; j < run; j++) {
            const uint8_t *at = index_entry(files, shard[i], row[i] + j);
            if (!at || !locate(files, shard[i], at, entries + i * run + j)) return OUTSIDE;
        }
    }
    return DONE;
}

/* Write runs of consecutive rows of a field to `out`: neighbours are decoded after each other, as they share the cache.
 *
 * shard, row: [count] the shard of each run, and the first of its rows.
 * out: [run, count, row_bytes].
 * failed: on DAMAGED, what libzstd returned.
 */
int64_t rlx_read_frames(const struct decoder *decoder, const struct files *files, int64_t count, int64_t run,
                        const int64_t *shard, const int64_t *row, uint8_t *out, int64_t *failed) {
    const int64_t rows = count * run;
    struct entry *entries = malloc((size_t)rows * sizeof *entries + 1);
    int64_t status = entries ? locate_each(files, count, run, shard, row, entries) : NO_MEMORY;
    if (status == DONE) status = decode(decoder, rows, run, entries, files->row_bytes, out, failed);
    free(entries);
    return status;
}

/* The same of frames in this process's own memory, which are trusted.
 *
 * frame, bytes, dictionary: [count] address and size of each, and address of its digested dictionary or 0.
 */
int64_t rlx_decode_frames(const struct decoder *decoder, int64_t count, const int64_t *frame, const int64_t *bytes,
                          const int64_t *dictionary, int64_t row_bytes, uint8_t *out, int64_t *failed) {
    struct entry *entries = malloc((size_t)count * sizeof *entries + 1);
    if (!entries) return NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        entries[i].frame = (const uint8_t *)(uintptr_t)frame[i];
        entries[i].bytes = (uint64_t)bytes[i];
        entries[i].dictionary = (const void *)(uintptr_t)dictionary[i];
    }
    const int64_t status = decode(decoder, count, 1, entries, row_bytes, out, failed);
    free(entries);
    return status;
}
