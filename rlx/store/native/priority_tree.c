/* Trees of priorities, drawn from and updated by one call each: rlx/store/native/tree.py calls it.
 *
 * It does what PriorityTree does with numpy, in the same order of additions, so that both give the same bits. Plain C99
 * without Python. Priorities are floats above 0 whose bits are compared as integers, which have the same order; 0 is an
 * empty row.
 */

#include <string.h>

#include "native.h"

enum { SHIFT = 5, WIDTH = 1 << SHIFT, HALF = WIDTH / 2, GROUP = 8, GROUPS = WIDTH / GROUP, AHEAD = 16, LINE = 16, MOST_LEVELS = 8 };

/* Node i of a level has the children 32 i to 32 i + 31 of the level below; the last level has the root alone. */
struct tree {
    int64_t capacity;
    int64_t levels;              /* of nodes, above the rows */
    uint32_t *priority;          /* of each row, as bits */
    float *weight;               /* of each row; 0: never drawn */
    double *sum[MOST_LEVELS];    /* of the weights below each node */
    uint32_t *least[MOST_LEVELS];
    uint32_t *most[MOST_LEVELS]; /* NULL: not kept */
};

struct written {
    int64_t known;  /* rows that hold a priority now and did not before, less those the other way */
    uint32_t most;  /* largest priority that was set, as bits */
};

static int64_t nodes_of(const struct tree *tree, int64_t level) {
    int64_t nodes = tree->capacity;
    for (int64_t i = 0; i <= level; i++) nodes = (nodes + WIDTH - 1) >> SHIFT;
    return nodes;
}

/* Halves are added until one number is left. */
static inline double total(const double *numbers, int count) {
    double part[HALF];
    for (int i = 0; i < count / 2; i++) part[i] = numbers[i] + numbers[i + count / 2];
    for (int width = count / 4; width; width /= 2)
        for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
}

static void widen(const float *weights, double *children) {
    for (int i = 0; i < WIDTH; i++) children[i] = weights[i];
}

/* The least of those that are not 0, which becomes the largest number when 1 is taken from it; 0 of none. */
static uint32_t least(const uint32_t *children) {
    int32_t found = INT32_MAX;
    for (int i = 0; i < WIDTH; i++) {
        const int32_t less = (int32_t)((children[i] - 1) & INT32_MAX);
        found = less < found ? less : found;
    }
    return ((uint32_t)found + 1) & INT32_MAX;
}

static uint32_t most(const uint32_t *children) {
    int32_t found = 0;
    for (int i = 0; i < WIDTH; i++) found = (int32_t)children[i] > found ? (int32_t)children[i] : found;
    return (uint32_t)found;
}

static void refresh(const struct tree *tree, int64_t level, int64_t node) {
    const int64_t first = node << SHIFT;
    if (level) {
        tree->sum[level][node] = total(tree->sum[level - 1] + first, WIDTH);
        tree->least[level][node] = least(tree->least[level - 1] + first);
        if (tree->most[level]) tree->most[level][node] = most(tree->most[level - 1] + first);
        return;
    }
    double children[WIDTH];
    widen(tree->weight + first, children);
    tree->sum[0][node] = total(children, WIDTH);
    tree->least[0][node] = least(tree->priority + first);
    if (tree->most[0]) tree->most[0][node] = most(tree->priority + first);
}

/* The children of a node, for those who read them next. */
static void prefetch_sums(const double *sums, int64_t node) {
    for (int64_t line = 0; line < WIDTH; line += LINE / 2) PREFETCH(sums + (node << SHIFT) + line);
}

static void prefetch_floats(const void *floats, int64_t node) {
    for (int64_t line = 0; line < WIDTH; line += LINE) PREFETCH((const float *)floats + (node << SHIFT) + line);
}

/* Every node is computed from its children, never changed by a difference: no error grows. */
static void refresh_above(const struct tree *tree, int64_t count, const int64_t *rows) {
    for (int64_t level = 0; level < tree->levels; level++) {
        const int64_t nodes = nodes_of(tree, level), shift = SHIFT * (level + 1);
        if (nodes <= count) {
            for (int64_t node = 0; node < nodes; node++) refresh(tree, level, node);
            continue;
        }
        for (int64_t i = 0, last = -1; i < count; i++) {
            if (i + AHEAD < count && rows[i + AHEAD] >= 0) { /* its siblings, which its parent is computed from */
                prefetch_sums(tree->sum[level], rows[i + AHEAD] >> (shift + SHIFT));
                prefetch_floats(tree->least[level], rows[i + AHEAD] >> (shift + SHIFT));
            }
            const int64_t node = rows[i] < 0 ? last : rows[i] >> shift;
            if (node != last) refresh(tree, level, node);
            last = node;
        }
    }
}

/* Set rows, of which the last of equal ones counts; -1 is passed over.
 *
 * priority, weight: [count], or one of each where step is 0.
 * only_known: pass over empty rows, and leave rows that are never drawn so.
 */
int64_t rlx_tree_write(const struct tree *tree, int64_t count, const int64_t *rows, const uint32_t *priority,
                       const float *weight, int64_t step, int64_t only_known, struct written *written) {
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < -1 || rows[i] >= tree->capacity) return OUTSIDE;
    written->known = 0;
    written->most = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count && rows[i + AHEAD] >= 0) {
            prefetch_floats(tree->priority, rows[i + AHEAD] >> SHIFT);
            prefetch_floats(tree->weight, rows[i + AHEAD] >> SHIFT);
        }
        const int64_t row = rows[i], at = i * step;
        if (row < 0) continue;
        const uint32_t before = tree->priority[row];
        if (only_known && !before) continue;
        written->known += (priority[at] != 0) - (before != 0);
        if (priority[at] > written->most) written->most = priority[at];
        tree->priority[row] = priority[at];
        if (!only_known || tree->weight[row] > 0) tree->weight[row] = weight[at];
    }
    refresh_above(tree, count, rows);
    return DONE;
}

/* What rounding carries past the end of some numbers is taken for the last of them that is not 0. */
static int64_t pick_last(const double *numbers, int count, double *left) {
    double before[GROUP + 1] = {0};
    for (int i = 0; i < count; i++) before[i + 1] = before[i] + numbers[i];
    uint64_t bits;
    memcpy(&bits, before + count, sizeof bits);
    bits -= before[count] > 0;
    memcpy(left, &bits, sizeof bits);
    int64_t found = 0;
    while (found < count - 1 && before[found + 1] <= *left) found++;
    *left -= before[found];
    return found;
}

/* The first of some numbers at which their sum exceeds `left`, from which the sum of those before it is taken. A loop
 * that stops there would be slower: no processor predicts where. */
static inline int64_t pick(const double *numbers, int count, double *left) {
    double sum = 0, before = 0;
    int64_t found = 0;
    for (int i = 0; i < count; i++) {
        sum += numbers[i];
        const int is_before = sum <= *left;
        found += is_before;
        before = is_before ? sum : before;
    }
    if (found == count) return pick_last(numbers, count, left);
    *left -= before;
    return found;
}

/* The same of 32 children, by groups. */
static inline int64_t child_of(const double *children, double *left) {
    double group[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        const double *n = children + i * GROUP; /* as `total` adds them */
        group[i] = ((n[0] + n[4]) + (n[2] + n[6])) + ((n[1] + n[5]) + (n[3] + n[7]));
    }
    const int64_t first = pick(group, GROUPS, left) * GROUP;
    return first + pick(children + first, GROUP, left);
}

/* Draw rows in proportion to their weights, which are returned with them; the root must be above 0.
 *
 * uniform: [count] of [0, 1); overwritten.
 */
void rlx_tree_draw(const struct tree *tree, int64_t count, double *uniform, int64_t *rows, float *weight) {
    const double root = tree->sum[tree->levels - 1][0];
    for (int64_t i = 0; i < count; i++) {
        uniform[i] *= root;
        rows[i] = 0;
    }
    for (int64_t level = tree->levels - 2; level >= 0; level--)
        for (int64_t i = 0; i < count; i++) {
            rows[i] = (rows[i] << SHIFT) + child_of(tree->sum[level] + (rows[i] << SHIFT), uniform + i);
            if (level)
                prefetch_sums(tree->sum[level - 1], rows[i]);
            else
                prefetch_floats(tree->weight, rows[i]);
        }
    for (int64_t i = 0; i < count; i++) {
        double children[WIDTH];
        widen(tree->weight + (rows[i] << SHIFT), children);
        rows[i] = (rows[i] << SHIFT) + child_of(children, uniform + i);
        weight[i] = tree->weight[rows[i]];
    }
}
