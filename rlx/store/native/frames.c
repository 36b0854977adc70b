/* Compressed rows decoded into an array, and rows encoded, by one call: rlx/store/native/kernel.py calls it.
 *
 * Decoding: of a dataset, it does what FieldFiles does in Python: look up where each row is, check that this is inside
 * the file, and decode it to its place. A row that is asked for twice is decoded once. Plain C99 without Python or
 * libzstd: ctypes loads it, so that no interpreter lock is held, and the caller passes libzstd's functions. All numbers
 * are 64 bits wide.
 */

#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { INDEX_ENTRY_BYTES = 16, CRC_BYTES = 4, AHEAD = 4, LINE_BYTES = 64, MOST_LINES = 8 };

/* ZSTD_decompress_usingDDict; the dictionary may be NULL. */
typedef size_t (*decompress_function)(void *context, void *out, size_t room, const void *frame, size_t bytes,
                                      const void *dictionary);

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
int64_t rlx_version(void) { return 7; }

static uint64_t little_endian(const uint8_t *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

/* The entry of a row in the index at the end of its file; NULL if it is outside. */
static const uint8_t *index_entry(const struct files *files, int64_t file, int64_t row) {
    if (file < 0 || file >= files->count) return NULL;
    const int64_t rows = files->rows[file], room = files->size[file] - CRC_BYTES;
    if (row < 0 || row >= rows || rows > room / INDEX_ENTRY_BYTES) return NULL;
    return file_of(files, file) + room - (rows - row) * INDEX_ENTRY_BYTES;
}

/* Position of a frame; 0 if any byte of it is outside its file. */
static int locate(const struct files *files, int64_t file, uint64_t start, uint64_t bytes, struct entry *found) {
    if (file < 0 || file >= files->count || files->size[file] < 0) return 0;
    const uint64_t size = (uint64_t)files->size[file];
    if (bytes > size || start > size - bytes) return 0;
    found->frame = file_of(files, file) + start;
    found->bytes = bytes;
    found->dictionary = (const void *)(uintptr_t)files->dictionary[file];
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

static int64_t locate_each(const struct files *files, int64_t count, int64_t run, const int64_t *file,
                           const int64_t *row, struct entry *entries) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t ahead = i + 2 * AHEAD;
        if (ahead < count) PREFETCH(index_entry(files, file[ahead], row[ahead]));
        for (int64_t j = 0; j < run; j++) {
            const uint8_t *at = index_entry(files, file[i], row[i] + j);
            if (!at || !locate(files, file[i], little_endian(at), little_endian(at + 8), entries + i * run + j))
                return OUTSIDE;
        }
    }
    return DONE;
}

/* Write runs of consecutive rows of a field to `out`: neighbours are decoded after each other, as they share the cache.
 *
 * file, row: [count] the file of each run, and the first of its rows.
 * out: [run, count, row_bytes], of `room` bytes.
 * failed: on DAMAGED, what libzstd returned.
 */
int64_t rlx_read_frames(const struct decoder *decoder, const struct files *files, int64_t count, int64_t run,
                        const int64_t *file, const int64_t *row, uint8_t *out, int64_t room, int64_t *failed) {
    if (!fills(count, run, files->row_bytes, room)) return OUTSIDE;
    const int64_t rows = count * run;
    struct entry *entries = malloc((size_t)rows * sizeof *entries + 1);
    int64_t status = entries ? locate_each(files, count, run, file, row, entries) : NO_MEMORY;
    if (status == DONE && rows) status = decode(decoder, rows, run, entries, files->row_bytes, out, failed);
    free(entries);
    return status;
}

/* The same of frames whose places are known.
 *
 * file, start, bytes: [count] where each is.
 */
int64_t rlx_decode_frames(const struct decoder *decoder, const struct files *files, int64_t count, const int64_t *file,
                          const int64_t *start, const int64_t *bytes, uint8_t *out, int64_t room, int64_t *failed) {
    if (!fills(count, 1, files->row_bytes, room)) return OUTSIDE;
    struct entry *entries = malloc((size_t)count * sizeof *entries + 1);
    int64_t status = entries ? DONE : NO_MEMORY;
    for (int64_t i = 0; status == DONE && i < count; i++)
        if (!locate(files, file[i], (uint64_t)start[i], (uint64_t)bytes[i], entries + i)) status = OUTSIDE;
    if (status == DONE && count) status = decode(decoder, count, 1, entries, files->row_bytes, out, failed);
    free(entries);
    return status;
}

/* Encoding: images of one run resemble each other place by place. So a row is first looked up in the references, whole
 * rows at the end of its dictionary, at the same place only: words of 8 bytes, each with the set of references that have
 * it there. Intersecting these sets along the row gives the longest match in all references at once, in a fraction of
 * the time of zstd's search, and mostly a smaller frame. Where it is not smaller, zstd searches.
 */

enum { WORD = 8, GROUP = 8, GROUP_BYTES = WORD * GROUP, MOST_REFERENCES = 64, LEAST_MATCH = 6 };
/* zstd's search is tried too for the first rows, and then for one in so many; it is used where it saves one byte in 32. */
enum { FIRST_TRIED = 32, TRIED_EVERY = 64, REMEMBERED = 32 };

/* ZSTD_compress2 and ZSTD_compressSequences, and the ZSTD_Sequence that this takes. */
typedef size_t (*compress_function)(void *context, void *out, size_t room, const void *row, size_t bytes);
struct sequence {
    uint32_t offset, literals, length, unused;
};
typedef size_t (*sequences_function)(void *context, void *out, size_t room, const struct sequence *sequences,
                                     size_t count, const void *row, size_t bytes);

/* Bytes that some references (bits of a set) have at a place. */
struct word {
    uint64_t bytes, references;
};

struct encoder {
    compress_function compress;
    sequences_function compress_sequences;
    void *context;
    size_t row_bytes, words, references, bound;
    const uint8_t *reference;   /* [references, row_bytes] */
    size_t *first;              /* [words + 1] where the list of a place begins, the most frequent first */
    struct word *word;          /* all lists */
    uint8_t *common;            /* [words] the most frequent of each place */
    uint64_t *in_common;        /* [words / GROUP] the references that have all of a group of these */
    uint8_t *frame[2];          /* [bound] bytes */
    struct sequence *sequences; /* [row_bytes / LEAST_MATCH + 1] */
    size_t worth;               /* a search is, where it saves more than one byte in so many */
    uint64_t rows;              /* seen */
    size_t matched, searched;   /* bytes of rows for which both were tried, the latest count most */
};

static uint64_t load(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static size_t members(uint64_t set) {
    size_t count = 0;
    for (; set; set &= set - 1) count++;
    return count;
}

/* Add a word of a reference to the list of a place, which ends at `end`; return its new end. */
static size_t list_word(struct word *word, size_t first, size_t end, uint64_t bytes, uint64_t reference) {
    size_t i = first;
    while (i < end && word[i].bytes != bytes) i++;
    if (i == end) word[end++] = (struct word){bytes, 0};
    word[i].references |= reference;
    const struct word found = word[i];
    for (; i > first && members(word[i - 1].references) < members(found.references); i--) word[i] = word[i - 1];
    word[i] = found;
    return end;
}

static void list_words(struct encoder *encoder) {
    size_t end = 0;
    for (size_t place = 0; place < encoder->words; place++) {
        encoder->first[place] = end;
        for (size_t i = 0; i < encoder->references; i++)
            end = list_word(encoder->word, encoder->first[place], end,
                            load(encoder->reference + i * encoder->row_bytes + place * WORD), UINT64_C(1) << i);
        const struct word *most = encoder->word + encoder->first[place];
        memcpy(encoder->common + place * WORD, &most->bytes, WORD);
        if (place % GROUP == 0) encoder->in_common[place / GROUP] = ~UINT64_C(0);
        encoder->in_common[place / GROUP] &= most->references;
    }
    encoder->first[encoder->words] = end;
}

void rlx_free_encoder(struct encoder *encoder) {
    if (!encoder) return;
    free(encoder->first);
    free(encoder->word);
    free(encoder->common);
    free(encoder->in_common);
    free(encoder->frame[0]);
    free(encoder->sequences);
    free(encoder);
}

/* An encoder of rows; NULL without memory, or if the sizes cannot be.
 *
 * context: of libzstd, with its level and dictionary set; it and the dictionary must live as long.
 * references: how many of the rows at the end of the dictionary are looked up; 0: zstd always searches.
 * bound: most bytes of a frame.
 * worth: a search, which takes longer, is worth its time where it saves more than one byte in so many.
 */
struct encoder *rlx_new_encoder(compress_function compress, sequences_function compress_sequences, void *context,
                                int64_t row_bytes, int64_t references, const uint8_t *dictionary,
                                int64_t dictionary_bytes, int64_t bound, int64_t worth) {
    if (worth < 1 || row_bytes <= 0 || bound < 0 || bound > INT32_MAX || references < 0) return NULL;
    if (dictionary_bytes < 0 || references > dictionary_bytes / row_bytes) return NULL;
    struct encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return NULL;
    encoder->compress = compress;
    encoder->compress_sequences = compress_sequences;
    encoder->context = context;
    encoder->row_bytes = (size_t)row_bytes;
    encoder->references = (size_t)(references < MOST_REFERENCES ? references : MOST_REFERENCES);
    encoder->words = encoder->references ? encoder->row_bytes / WORD : 0;
    encoder->reference = encoder->references ? dictionary + dictionary_bytes - encoder->references * encoder->row_bytes : NULL;
    encoder->bound = (size_t)bound;
    encoder->worth = (size_t)worth;
    encoder->first = malloc((encoder->words + 1) * sizeof *encoder->first);
    encoder->word = malloc((encoder->words * encoder->references + 1) * sizeof *encoder->word);
    encoder->common = malloc(encoder->words * WORD + 1);
    encoder->in_common = malloc((encoder->words / GROUP + 1) * sizeof *encoder->in_common);
    encoder->frame[0] = malloc(2 * encoder->bound);
    encoder->sequences = malloc((encoder->row_bytes / LEAST_MATCH + 1) * sizeof *encoder->sequences);
    if (!encoder->first || !encoder->word || !encoder->common || !encoder->in_common || !encoder->frame[0] ||
        !encoder->sequences) {
        rlx_free_encoder(encoder);
        return NULL;
    }
    encoder->frame[1] = encoder->frame[0] + encoder->bound;
    list_words(encoder);
    struct word *used = realloc(encoder->word, (encoder->first[encoder->words] + 1) * sizeof *used);
    if (used) encoder->word = used;
    return encoder;
}

/* The references that have what a row has at a place. */
static uint64_t having(const struct encoder *encoder, const uint8_t *row, size_t place) {
    const uint64_t bytes = load(row + place * WORD);
    for (size_t i = encoder->first[place]; i < encoder->first[place + 1]; i++)
        if (encoder->word[i].bytes == bytes) return encoder->word[i].references;
    return 0;
}

/* Whether a row has what is most frequent in a group of places. */
static int is_common(const struct encoder *encoder, const uint8_t *row, size_t place) {
    const uint8_t *mine = row + place * WORD, *common = encoder->common + place * WORD;
    uint64_t differ = 0;
    for (size_t i = 0; i < GROUP_BYTES; i += WORD) differ |= load(mine + i) ^ load(common + i);
    return !differ;
}

/* The first place from `place` on at which none of a set of references has what the row has; the set shrinks. */
static size_t match(const struct encoder *encoder, const uint8_t *row, size_t place, uint64_t *set) {
    for (;;) {
        uint64_t still = 0;
        if (place % GROUP == 0 && place + GROUP <= encoder->words && is_common(encoder, row, place) &&
            (still = *set & encoder->in_common[place / GROUP])) {
            place += GROUP;
        } else {
            if (place == encoder->words || !(still = *set & having(encoder, row, place))) return place;
            place++;
        }
        *set = still;
    }
}

static size_t alike(const uint8_t *one, const uint8_t *other, size_t most) {
    size_t count = 0;
    while (count < most && one[count] == other[count]) count++;
    return count;
}

/* Those of a set of references that go on matching longest in the place where all of them cease to. */
static uint64_t longest(const struct encoder *encoder, const uint8_t *row, size_t place, uint64_t set) {
    if (place == encoder->words) return set;
    uint64_t best = set;
    size_t most = 0;
    for (size_t i = encoder->first[place]; i < encoder->first[place + 1]; i++) {
        const struct word *word = encoder->word + i;
        if (!(word->references & set)) continue;
        const size_t count = alike((const uint8_t *)&word->bytes, row + place * WORD, WORD);
        if (count < most || !count) continue;
        best = count > most ? word->references & set : best | (word->references & set);
        most = count;
    }
    return best;
}

/* One of a set of references: one of the last three, whose offset takes no bytes; otherwise the nearest. */
static size_t chosen(uint64_t set, size_t last[3]) {
    size_t i = 0, reference = MOST_REFERENCES - 1;
    while (i < 3 && !(set >> last[i] & 1)) i++;
    if (i < 3) {
        reference = last[i];
    } else {
        while (!(set >> reference & 1)) reference--;
        i = 2;
    }
    for (; i > 0; i--) last[i] = last[i - 1];
    last[0] = reference;
    return reference;
}

/* Write the matches of a row in the references to `sequences`; return how many. The rest of the row are literals. */
static size_t match_row(const struct encoder *encoder, const uint8_t *row) {
    size_t count = 0, done = 0, place = 0, last[3] = {0, 0, 0};
    while (place < encoder->words) {
        uint64_t set = ~UINT64_C(0);
        size_t start = place * WORD;
        place = match(encoder, row, place, &set);
        if (place * WORD == start) {
            place++;
            continue;
        }
        if (start < done) start = done;
        size_t end = place * WORD;
        if (end < start + LEAST_MATCH) continue;
        const size_t reference = chosen(longest(encoder, row, place, set), last);
        const uint8_t *other = encoder->reference + reference * encoder->row_bytes;
        const size_t left = encoder->row_bytes - end;
        end += alike(row + end, other + end, left < WORD ? left : WORD);
        while (start > done && row[start - 1] == other[start - 1]) start--;
        encoder->sequences[count++] =
            (struct sequence){(uint32_t)((encoder->references - reference) * encoder->row_bytes),
                              (uint32_t)(start - done), (uint32_t)(end - start), 0};
        done = end;
    }
    return count;
}

static size_t encode_matched(struct encoder *encoder, const uint8_t *row, uint8_t *frame) {
    const size_t count = match_row(encoder, row);
    return encoder->compress_sequences(encoder->context, frame, encoder->bound, encoder->sequences, count, row,
                                       encoder->row_bytes);
}

static size_t encode_searched(struct encoder *encoder, const uint8_t *row, uint8_t *frame) {
    return encoder->compress(encoder->context, frame, encoder->bound, row, encoder->row_bytes);
}

/* Bytes of the frame of a row, which is then in `*frame`; more than `bound` is an error of libzstd. */
static size_t encode(struct encoder *encoder, const uint8_t *row, const uint8_t **frame) {
    *frame = encoder->frame[0];
    if (!encoder->words) return encode_searched(encoder, row, encoder->frame[0]);
    const int try_both = encoder->rows < FIRST_TRIED || encoder->rows % TRIED_EVERY == 0;
    encoder->rows++;
    if (!try_both) {
        const int is_worth = encoder->searched + encoder->searched / encoder->worth < encoder->matched;
        return (is_worth ? encode_searched : encode_matched)(encoder, row, encoder->frame[0]);
    }
    const size_t matched = encode_matched(encoder, row, encoder->frame[0]);
    const size_t searched = encode_searched(encoder, row, encoder->frame[1]);
    if (matched > encoder->bound || searched > encoder->bound) return matched > searched ? matched : searched;
    encoder->matched += matched - encoder->matched / REMEMBERED;
    encoder->searched += searched - encoder->searched / REMEMBERED;
    if (matched <= searched) return matched;
    *frame = encoder->frame[1];
    return searched;
}

/* Arrays of rows [count, row_bytes], which are numbered one array after the other. */
struct rows {
    const uint8_t *first;
    int64_t count;
};

/* Where a row is; NULL if no array has it. */
static const uint8_t *row_of(const struct rows *arrays, int64_t count, int64_t number, size_t row_bytes) {
    for (int64_t i = 0; number >= 0 && i < count; number -= arrays[i++].count)
        if (number < arrays[i].count) return arrays[i].first + (size_t)number * row_bytes;
    return NULL;
}

/* Write frames of rows after each other to `out`, until one does not fit.
 *
 * row, like: [count] number of each row, and of one that it may repeat or -1.
 * out: of `room` bytes.
 * sizes: [count] bytes of each frame; 0 of a row that repeats the other and has none. That of the first that did not
 *     fit is set too.
 * done: how many rows are done; on DAMAGED, what libzstd returned.
 */
int64_t rlx_encode_frames(struct encoder *encoder, int64_t arrays_count, const struct rows *arrays, int64_t count,
                          const int64_t *row, const int64_t *like, uint8_t *out, int64_t room, int32_t *sizes,
                          int64_t *done) {
    for (*done = 0; *done < count; ++*done) {
        const uint8_t *mine = row_of(arrays, arrays_count, row[*done], encoder->row_bytes);
        const uint8_t *other = row_of(arrays, arrays_count, like[*done], encoder->row_bytes);
        if (!mine || (!other && like[*done] != -1)) return OUTSIDE;
        sizes[*done] = 0;
        if (other && !memcmp(mine, other, encoder->row_bytes)) continue;
        const uint8_t *frame;
        const size_t bytes = encode(encoder, mine, &frame);
        if (bytes > encoder->bound) {
            *done = (int64_t)bytes;
            return DAMAGED;
        }
        sizes[*done] = (int32_t)bytes;
        if ((int64_t)bytes > room) return DONE;
        memcpy(out, frame, bytes);
        out += bytes;
        room -= (int64_t)bytes;
    }
    return DONE;
}
