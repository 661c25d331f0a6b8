/* The optional compiled core: what numpy needs many calls for. `native.py` chooses between the two.

   Every result equals that of the numpy path bit for bit. The memory is the caller's. All arguments
   are checked before the first byte is written, and what is read from an array is never used as
   an index without a bound, because another array of the caller's may overlap it.
   Limited API of CPython 3.11: one binary serves all later versions. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define INTERFACE 6     /* as in native.py: another number is an older build */
#define SHIFT 4         /* as in priorities.py: */
#define WIDTH 16        /* children of a node, 1 << SHIFT, */
#define LARGEST_TOP 2048 /* nodes of the uppermost level, */
#define MOST_LEVELS 16  /* and more levels than any memory holds */
#define LONG_BYTES (1 << 16) /* from here on, other threads run meanwhile */
#define CACHE_LINE 64
#define PAGE 4096

#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) (void)(address)
#endif

static int count_is(Py_ssize_t found, Py_ssize_t expected, const char *function)
{
    if (found == expected) return 1;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", function, expected, found);
    return 0;
}

/* The contiguous memory of an argument of `count` numbers of 8 bytes, or of any count where that is
   -1. The formats are those of one C type, by size: "d", or "l" and "q". */
static int get(PyObject *from, Py_buffer *view, int flags, const char *formats, Py_ssize_t count,
               const char *name)
{
    if (PyObject_GetBuffer(from, view, flags | PyBUF_FORMAT | PyBUF_ND) < 0) return 0;
    const char *format = view->format ? view->format : "B";
    if (view->itemsize != 8 || strlen(format) != 1 || !strchr(formats, *format) ||
        (uintptr_t)view->buf % 8) {
        PyErr_Format(PyExc_TypeError, "%s: expected aligned numbers \"%s\" of 8 bytes, got \"%s\" of %zd",
                     name, formats, format, view->itemsize);
    } else if (count >= 0 && view->len / 8 != count) {
        PyErr_Format(PyExc_ValueError, "%s: expected %zd numbers, got %zd", name, count,
                     view->len / 8);
    } else {
        return 1;
    }
    PyBuffer_Release(view);
    return 0;
}

/* --- the sum tree: see SumTree in sampling/priorities.py --- */

typedef struct {
    double *leaf, *level[MOST_LEVELS]; /* of the levels, the leaves are the first */
    double *ends;                      /* running sum of the uppermost level, 0 first */
    Py_ssize_t capacity, tops;
    int levels;
} Tree;

/* Lay out a tree over its memory: the levels one after the other, then the ends. */
static int get_tree(PyObject *from, PyObject *capacity, Py_buffer *view, Tree *tree)
{
    Py_ssize_t leaves = PyLong_AsSsize_t(capacity), nodes, begins[MOST_LEVELS], stop = 0;
    if (leaves == -1 && PyErr_Occurred()) return 0;
    if (!get(from, view, PyBUF_WRITABLE, "d", -1, "tree")) return 0;
    tree->capacity = leaves;
    tree->levels = 0;
    if (leaves >= WIDTH && leaves <= view->len && !(leaves & (leaves - 1))) {
        for (nodes = leaves;; nodes /= WIDTH) {
            begins[tree->levels++] = stop;
            stop += nodes;
            if (nodes <= LARGEST_TOP) break;
        }
        if (view->len / 8 == stop + nodes + 1) {
            tree->leaf = view->buf;
            for (int k = 0; k < tree->levels; k++) tree->level[k] = tree->leaf + begins[k];
            tree->ends = tree->leaf + stop;
            tree->tops = nodes;
            return 1;
        }
    }
    PyErr_Format(PyExc_ValueError, "tree: expected the memory of a tree of %zd leaves, got %zd bytes",
                 leaves, view->len);
    PyBuffer_Release(view);
    return 0;
}

/* The sum of 16 children in the order in which numpy adds 16 numbers. */
static double sum_of(const double *c)
{
    return (((c[0] + c[8]) + (c[1] + c[9])) + ((c[2] + c[10]) + (c[3] + c[11]))) +
           (((c[4] + c[12]) + (c[5] + c[13])) + ((c[6] + c[14]) + (c[7] + c[15])));
}

/* A running sum of the uppermost level, from left to right. */
static void sum_up(Tree *tree)
{
    const double *top = tree->level[tree->levels - 1];
    double sum = 0;
    for (Py_ssize_t k = 0; k < tree->tops; k++) tree->ends[k + 1] = sum += top[k];
}

PyDoc_STRVAR(tree_set_doc,
             "tree_set(tree, capacity, low, stop, ids, masses): as SumTree.update\n\n"
             "Returns the number of ids that were ignored.");

static PyObject *tree_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer memory, some, values;
    PyObject *result = NULL;
    Tree tree;
    (void)self;
    if (!count_is(nargs, 6, "tree_set")) return NULL;
    Py_ssize_t low = PyLong_AsSsize_t(args[2]), stop = PyLong_AsSsize_t(args[3]), ignored = 0;
    if (PyErr_Occurred()) return NULL;
    if (!get_tree(args[0], args[1], &memory, &tree)) return NULL;
    if (low < 0 || stop < low || stop - low > tree.capacity) {
        PyErr_Format(PyExc_ValueError, "low, stop: expected a range of up to %zd ids, got %zd to %zd",
                     tree.capacity, low, stop);
        goto no_ids;
    }
    if (!get(args[4], &some, PyBUF_SIMPLE, "lq", -1, "ids")) goto no_ids;
    const int64_t *ids = some.buf, mask = tree.capacity - 1;
    Py_ssize_t count = some.len / 8;
    if (!get(args[5], &values, PyBUF_WRITABLE, "d", count, "masses")) goto no_masses;
    double *masses = values.buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        double *leaf = tree.leaf + (ids[i] & mask);
        if (ids[i] >= low && ids[i] < stop && *leaf > 0) {
            *leaf = masses[i];
        } else {
            masses[i] = 0;
            ignored++;
        }
    }
    for (int level = 1, shift = SHIFT; level < tree.levels; level++, shift += SHIFT) {
        const double *below = tree.level[level - 1];
        for (Py_ssize_t i = 0; i < count; i++) {
            int64_t node = (ids[i] & mask) >> shift;
            tree.level[level][node] = sum_of(below + node * WIDTH);
        }
    }
    sum_up(&tree);
    result = PyLong_FromSsize_t(ignored);
    PyBuffer_Release(&values);
no_masses:
    PyBuffer_Release(&some);
no_ids:
    PyBuffer_Release(&memory);
    return result;
}

/* The nearest leaf before this one that has a mass, or the last such leaf; -1 if none has. */
static Py_ssize_t with_mass(const double *leaf, Py_ssize_t capacity, Py_ssize_t found)
{
    for (Py_ssize_t at = found - 1; at >= 0; at--) {
        if (leaf[at] > 0) return at;
    }
    for (Py_ssize_t at = capacity - 1; at > found; at--) {
        if (leaf[at] > 0) return at;
    }
    return -1;
}

/* The node of the uppermost level that contains a point of the running sum. */
static Py_ssize_t top_of(const Tree *tree, double point)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t half = tree->tops / 2; half > 0; half /= 2) {
        found += tree->ends[found + half] <= point ? half : 0;
    }
    return found;
}

/* The child that contains a point of the running sum; the point becomes one of the child's.
   Nothing is skipped: branches that depend on random points would take twice the time. */
static int child_of(const double *children, double *point)
{
    double before = 0, upto = 0;
    int child = 0;
    for (int k = 0; k < WIDTH - 1; k++) {
        upto += children[k];
        before = upto <= *point ? upto : before;
        child += upto <= *point;
    }
    *point -= before;
    return child;
}

PyDoc_STRVAR(tree_draw_doc,
             "tree_draw(tree, capacity, low, points, ids): as SumTree.draw\n\n"
             "The points are replaced by the shares of the total.");

static PyObject *tree_draw(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer memory, values, some;
    PyObject *result = NULL;
    Tree tree;
    (void)self;
    if (!count_is(nargs, 5, "tree_draw")) return NULL;
    Py_ssize_t low = PyLong_AsSsize_t(args[2]);
    if (low == -1 && PyErr_Occurred()) return NULL;
    if (!get_tree(args[0], args[1], &memory, &tree)) return NULL;
    if (low < 0 || low > PY_SSIZE_T_MAX - tree.capacity) {
        PyErr_Format(PyExc_ValueError, "low: expected an id, got %zd", low);
        goto no_points;
    }
    if (!get(args[3], &values, PyBUF_WRITABLE, "d", -1, "points")) goto no_points;
    Py_ssize_t count = values.len / 8;
    if (!get(args[4], &some, PyBUF_WRITABLE, "lq", count, "ids")) goto no_ids;
    double *points = values.buf, total = tree.ends[tree.tops];
    int64_t *ids = some.buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        ids[i] = top_of(&tree, points[i]);
        points[i] -= tree.ends[ids[i] & (tree.tops - 1)];
    }
    Py_ssize_t nodes = tree.tops;
    for (int level = tree.levels - 2; level >= 0; level--, nodes *= WIDTH) {
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t first = (Py_ssize_t)(ids[i] & (nodes - 1)) * WIDTH;
            ids[i] = first + child_of(tree.level[level] + first, points + i);
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t found = (Py_ssize_t)ids[i] & (tree.capacity - 1);
        if (!(tree.leaf[found] > 0)) { /* by rounding */
            found = with_mass(tree.leaf, tree.capacity, found);
            if (found < 0) {
                PyErr_SetString(PyExc_ValueError, "tree: expected a leaf with a mass, got none");
                goto done;
            }
        }
        points[i] = tree.leaf[found] / total;
        ids[i] = low + ((found - low) & (tree.capacity - 1));
    }
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&some);
no_ids:
    PyBuffer_Release(&values);
no_points:
    PyBuffer_Release(&memory);
    return result;
}

/* --- copies: see PlainCopies in sampling/copies.py --- */

typedef struct {
    Py_buffer source;
    Py_ssize_t begin, target, size;
} Run;

static int get_number(PyObject *list, Py_ssize_t place, Py_ssize_t *number)
{
    PyObject *item = PyList_GetItem(list, place);
    if (item == NULL) return 0;
    *number = PyLong_AsSsize_t(item);
    return *number != -1 || !PyErr_Occurred();
}

/* The memory of an output of bytes: of objects, say, no byte may be overwritten. */
static int get_out(PyObject *from, Py_buffer *out)
{
    if (PyObject_GetBuffer(from, out, PyBUF_WRITABLE) < 0) return 0;
    if (out->itemsize == 1) return 1;
    PyErr_Format(PyExc_TypeError, "out: expected bytes, got items of %zd bytes", out->itemsize);
    PyBuffer_Release(out);
    return 0;
}

/* True for a range of bytes that lies within `len` bytes. */
static int lies_in(Py_ssize_t begin, Py_ssize_t size, Py_ssize_t len)
{
    return begin >= 0 && size >= 0 && begin <= len && size <= len - begin;
}

PyDoc_STRVAR(copy_runs_doc,
             "copy_runs(out, sources, begins, targets, sizes): copy ranges of bytes\n\n"
             "The last four are lists: `sizes[k]` bytes of `sources[k]`, from `begins[k]` on, go to\n"
             "`out`, from `targets[k]` on.");

static PyObject *copy_runs(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer out;
    PyObject *result = NULL;
    Py_ssize_t taken = 0, total = 0;
    (void)self;
    if (!count_is(nargs, 5, "copy_runs")) return NULL;
    Py_ssize_t count = PyList_Check(args[1]) ? PyList_Size(args[1]) : -1;
    for (int i = 1; i < 5; i++) {
        if (!PyList_Check(args[i]) || PyList_Size(args[i]) != count) {
            PyErr_SetString(PyExc_ValueError, "copy_runs: expected four lists of the same length");
            return NULL;
        }
    }
    if (!get_out(args[0], &out)) return NULL;
    Run *runs = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Run));
    if (runs == NULL) {
        PyErr_NoMemory();
        goto no_runs;
    }
    for (; taken < count; taken++) {
        Run *run = runs + taken;
        if (!get_number(args[2], taken, &run->begin) || !get_number(args[3], taken, &run->target) ||
            !get_number(args[4], taken, &run->size)) goto done;
        PyObject *source = PyList_GetItem(args[1], taken);
        if (source == NULL) goto done;
        Py_INCREF(source); /* asking it for its memory may run code that changes the list */
        int is_found = PyObject_GetBuffer(source, &run->source, PyBUF_SIMPLE) == 0;
        Py_DECREF(source);
        if (!is_found) goto done;
        if (!lies_in(run->begin, run->size, run->source.len) ||
            !lies_in(run->target, run->size, out.len)) {
            PyErr_Format(PyExc_ValueError,
                         "run %zd: expected %zd bytes from %zd on of %zd, and to %zd on of %zd", taken,
                         run->size, run->begin, run->source.len, run->target, out.len);
            taken++;
            goto done;
        }
        total = total < LONG_BYTES ? total + run->size : total;
    }
    PyThreadState *others = total >= LONG_BYTES ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t k = 0; k < count; k++) {
        /* The processor fetches ahead within a page. What begins a page, or a run, it would wait for:
           this takes a tenth off the time of runs that are far apart. */
        const Run *ahead = runs + (k + 2 < count ? k + 2 : k);
        for (Py_ssize_t at = 0; at < ahead->size; at += PAGE) {
            PREFETCH((char *)ahead->source.buf + ahead->begin + at);
        }
        memmove((char *)out.buf + runs[k].target, (char *)runs[k].source.buf + runs[k].begin,
                (size_t)runs[k].size);
    }
    if (others != NULL) PyEval_RestoreThread(others);
    result = Py_NewRef(Py_None);
done:
    while (taken > 0) PyBuffer_Release(&runs[--taken].source);
    PyMem_Free(runs);
no_runs:
    PyBuffer_Release(&out);
    return result;
}

/* --- rows out of deltas: storage/patches.py documents their bytes --- */

static uint32_t count_at(const uint8_t *counts, Py_ssize_t row)
{
    uint32_t count;
    memcpy(&count, counts + 4 * row, sizeof count);
    return count;
}

/* Restore the rows up to `stop`, those from `start` on in `out`; false if a change lies outside. */
static int restore(const uint8_t *counts, Py_ssize_t rows, Py_ssize_t row_bytes, uint64_t changes,
                   Py_ssize_t start, Py_ssize_t stop, uint8_t *out)
{
    const uint8_t *steps = counts + 4 * (rows - 1), *values = steps + changes;
    memmove(out, values + changes, (size_t)row_bytes);
    for (Py_ssize_t row = 1; row < stop; row++) {
        uint64_t count = count_at(counts, row - 1), place = 0;
        if (count > changes) return 0;
        if (row > start) {
            memcpy(out + row_bytes, out, (size_t)row_bytes);
            out += row_bytes;
        }
        for (uint64_t i = 0; i < count; i++) {
            place += steps[i];
            if (place >= (uint64_t)row_bytes) return 0;
            out[place] = values[i];
        }
        steps += count;
        values += count;
        changes -= count;
    }
    return 1;
}

PyDoc_STRVAR(apply_deltas_doc,
             "apply_deltas(deltas, rows, row_bytes, start, out): as in storage/patches.py");

static PyObject *apply_deltas(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer deltas, out;
    PyObject *result = NULL;
    Py_ssize_t number[3];
    (void)self;
    if (!count_is(nargs, 5, "apply_deltas")) return NULL;
    for (int i = 0; i < 3; i++) {
        number[i] = PyLong_AsSsize_t(args[i + 1]);
        if (number[i] == -1 && PyErr_Occurred()) return NULL;
    }
    if (PyObject_GetBuffer(args[0], &deltas, PyBUF_SIMPLE) < 0) return NULL;
    if (!get_out(args[4], &out)) goto no_out;
    Py_ssize_t rows = number[0], row_bytes = number[1], start = number[2], room = -1, wanted = 0;
    if (rows > 0 && row_bytes > 0 && rows - 1 <= deltas.len / 4) {
        room = deltas.len - 4 * (rows - 1) - row_bytes;
        wanted = out.len / row_bytes;
    }
    int is_right = room >= 0 && room % 2 == 0 && wanted > 0 && out.len % row_bytes == 0 &&
                   start >= 0 && start < rows && wanted <= rows - start;
    uint64_t left = is_right ? (uint64_t)room / 2 : 0;
    for (Py_ssize_t row = 1; is_right && row < rows; row++) {
        uint32_t count = count_at(deltas.buf, row - 1);
        is_right = count <= left;
        left -= count;
    }
    if (is_right && left == 0) {
        PyThreadState *others = out.len >= LONG_BYTES ? PyEval_SaveThread() : NULL;
        is_right = restore(deltas.buf, rows, row_bytes, (uint64_t)room / 2, start, start + wanted,
                           out.buf);
        if (others != NULL) PyEval_RestoreThread(others);
        if (is_right) result = Py_NewRef(Py_None);
    }
    if (result == NULL) {
        PyErr_Format(PyExc_ValueError,
                     "deltas: %zd bytes do not hold %zd rows of %zd bytes, or not %zd rows from %zd on",
                     deltas.len, rows, row_bytes, wanted, start);
    }
    PyBuffer_Release(&out);
no_out:
    PyBuffer_Release(&deltas);
    return result;
}

/* --- rows out of patches: storage/patches.py documents their bytes --- */

#define ANCHOR_EVERY 16   /* as in patches.py: rows between those whose patch is against the first, */
#define PATCHED_ROWS 4096 /* rows of a block, at most, */
#define MOST_FETCHED 1024 /* words that are fetched ahead, */
#define PATCHED_WORDS 65536 /* and words of a row, at most */

static uint64_t word_at(const uint8_t *from, Py_ssize_t size)
{
    uint64_t word = 0;
    memcpy(&word, from, (size_t)size);
    return word;
}

/* Append the numbers of the words in which two rows differ; returns how many there are. */
static Py_ssize_t differing_words(const uint8_t *row, const uint8_t *other, Py_ssize_t row_bytes,
                                  uint16_t *found)
{
    Py_ssize_t count = 0, whole = row_bytes / 8, word = 0;
    for (; word + 8 <= whole; word += 8) { /* most lines of the cache are equal */
        uint64_t some = 0;
        for (Py_ssize_t k = 0; k < 8; k++) {
            some |= word_at(row + 8 * (word + k), 8) ^ word_at(other + 8 * (word + k), 8);
        }
        if (!some) continue;
        for (Py_ssize_t k = word; k < word + 8; k++) {
            found[count] = (uint16_t)k;
            count += word_at(row + 8 * k, 8) != word_at(other + 8 * k, 8);
        }
    }
    for (; word < whole; word++) {
        found[count] = (uint16_t)word;
        count += word_at(row + 8 * word, 8) != word_at(other + 8 * word, 8);
    }
    if (row_bytes % 8 && memcmp(row + 8 * whole, other + 8 * whole, (size_t)(row_bytes % 8))) {
        found[count++] = (uint16_t)whole;
    }
    return count;
}

PyDoc_STRVAR(find_patches_doc,
             "find_patches(rows, row_bytes, out): the length of their patches, which are in `out`\n\n"
             "0 if they are longer than `out`.");

static PyObject *find_patches(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer rows, out;
    PyObject *result = NULL;
    (void)self;
    if (!count_is(nargs, 3, "find_patches")) return NULL;
    Py_ssize_t row_bytes = PyLong_AsSsize_t(args[1]);
    if (row_bytes == -1 && PyErr_Occurred()) return NULL;
    if (PyObject_GetBuffer(args[0], &rows, PyBUF_SIMPLE) < 0) return NULL;
    if (!get_out(args[2], &out)) goto no_out;
    Py_ssize_t count = row_bytes > 0 ? rows.len / row_bytes : 0, words = (row_bytes + 7) / 8;
    if (count < 1 || count > PATCHED_ROWS || count * row_bytes != rows.len || words > PATCHED_WORDS) {
        PyErr_Format(PyExc_ValueError, "patches: %zd bytes are not up to %d rows of %zd bytes", rows.len,
                     PATCHED_ROWS, row_bytes);
        goto no_places;
    }
    Py_ssize_t least = 4 * (count - 1) + row_bytes, total = 0;
    /* What fits into `out`, and those of one row more. */
    Py_ssize_t most = out.len < least ? 0 : (out.len - least) / 10;
    if (most > (count - 1) * words) most = (count - 1) * words;
    uint16_t *places = PyMem_Malloc((size_t)(most + words + 1) * sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        goto no_places;
    }
    int fits = out.len >= least;
    uint8_t *ends = out.buf;
    PyThreadState *others = rows.len >= LONG_BYTES ? PyEval_SaveThread() : NULL;
    for (Py_ssize_t row = 1; fits && row < count; row++) {
        const uint8_t *now = (const uint8_t *)rows.buf + row * row_bytes;
        const uint8_t *other = row % ANCHOR_EVERY ? now - row_bytes : rows.buf;
        total += differing_words(now, other, row_bytes, places + total);
        uint32_t end = (uint32_t)total;
        fits = total <= most;
        memcpy(ends + 4 * (row - 1), &end, sizeof end);
    }
    if (fits) {
        uint8_t *steps = ends + 4 * (count - 1), *values = steps + 2 * total;
        Py_ssize_t k = 0, whole = row_bytes / 8;
        for (Py_ssize_t row = 1; row < count; row++) {
            const uint8_t *now = (const uint8_t *)rows.buf + row * row_bytes;
            uint16_t before = 0;
            for (Py_ssize_t end = (Py_ssize_t)count_at(ends, row - 1); k < end; k++) {
                uint16_t place = places[k], step = (uint16_t)(place - before);
                uint64_t word = word_at(now + 8 * place, place < whole ? 8 : row_bytes % 8);
                memcpy(steps + 2 * k, &step, sizeof step);
                memcpy(values + 8 * k, &word, sizeof word);
                before = place;
            }
        }
        memcpy(values + 8 * total, rows.buf, (size_t)row_bytes);
    }
    if (others != NULL) PyEval_RestoreThread(others);
    result = PyLong_FromSsize_t(fits ? least + 10 * total : 0);
    PyMem_Free(places);
no_places:
    PyBuffer_Release(&out);
no_out:
    PyBuffer_Release(&rows);
    return result;
}

typedef struct {
    const uint8_t *ends, *steps, *values, *first;
    uint64_t total; /* words of all patches */
    Py_ssize_t rows, row_bytes;
} Patches;

/* Lay out the patches of a block; false if its length cannot be right. */
static int get_patches(Patches *of, const uint8_t *block, uint64_t size, Py_ssize_t rows,
                       Py_ssize_t row_bytes)
{
    uint64_t least = 4 * ((uint64_t)rows - 1) + (uint64_t)row_bytes;
    if (size < least || (size - least) % 10) return 0;
    of->total = (size - least) / 10;
    of->ends = block;
    of->steps = block + 4 * (rows - 1);
    of->values = of->steps + 2 * of->total;
    of->first = of->values + 8 * of->total;
    of->rows = rows;
    of->row_bytes = row_bytes;
    return (rows > 1 ? count_at(of->ends, rows - 2) : 0) == of->total;
}

/* Patch a row in place; false if a word lies outside of it. Any thread may write into the block. */
static int apply_patch(const Patches *of, Py_ssize_t row, uint8_t *out)
{
    uint64_t k = row > 1 ? count_at(of->ends, row - 2) : 0, end = count_at(of->ends, row - 1);
    uint64_t place = 0, whole = (uint64_t)of->row_bytes / 8, rest = (uint64_t)of->row_bytes % 8;
    if (end > of->total || end < k) return 0;
    for (; k < end; k++) {
        uint16_t step;
        memcpy(&step, of->steps + 2 * k, sizeof step);
        place += step;
        if (place < whole) {
            memcpy(out + 8 * place, of->values + 8 * k, 8);
        } else if (place == whole && rest) {
            memmove(out + 8 * place, of->values + 8 * k, (size_t)rest);
        } else {
            return 0;
        }
    }
    return 1;
}

/* A batch that is larger than this is not in the cache when it is filled, nor as a whole when it is
   read. Its rows are made beside it, in the cache, and written past that: memory is then written
   without being read before, which takes two thirds of the time. */
#define STREAMED_BYTES (6 << 20)
#define STREAMED_ROW (1 << 16) /* rows that fit into the cache */

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define CAN_STREAM 1

static void end_streams(void) { _mm_sfence(); }

static int has_avx2;

/* Copy a row that is in the cache. The C library's copies are for any size and overlap: rows of
   sequences take a tenth longer with those. */
__attribute__((target("avx2"))) static void copy_by_lines(uint8_t *to, const uint8_t *from, size_t size)
{
    size_t at = 0;
    for (; at + 128 <= size; at += 128) {
        const __m256i *source = (const __m256i *)(from + at);
        __m256i *target = (__m256i *)(to + at);
        __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
        _mm256_storeu_si256(target, a);
        _mm256_storeu_si256(target + 1, b);
        _mm256_storeu_si256(target + 2, c);
        _mm256_storeu_si256(target + 3, d);
    }
    memmove(to + at, from + at, size - at); /* a caller's arrays may overlap */
}

static void copy_row(uint8_t *to, const uint8_t *from, size_t size)
{
    if (has_avx2) {
        copy_by_lines(to, from, size);
    } else {
        memmove(to, from, size);
    }
}

/* Whole lines: the processor writes a part of one at the price of all of it. */
__attribute__((target("avx2"))) static void stream_halves(uint8_t *to, const uint8_t *from, size_t size)
{
    for (size_t at = 0; at < size; at += CACHE_LINE) {
        const __m256i *source = (const __m256i *)(from + at);
        __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        _mm256_stream_si256((__m256i *)(to + at), a);
        _mm256_stream_si256((__m256i *)(to + at + 32), b);
    }
}

static void stream_lines(uint8_t *to, const uint8_t *from, size_t size)
{
    if (has_avx2) {
        stream_halves(to, from, size);
        return;
    }
    for (size_t at = 0; at < size; at += 16) {
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
    }
}

static void find_avx2(void)
{
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2") != 0;
}
#else
#define CAN_STREAM 0
#define stream_lines memcpy
#define copy_row memmove
static void end_streams(void) {}
static void find_avx2(void) {}
#endif

/* Write a row past the cache; `kept` bytes that belong before it lie before `from`. Returns how many
   of its last bytes, which begin a line, are kept for the row that follows, if one does. */
static size_t stream_row(uint8_t *to, uint8_t *from, size_t size, size_t kept, int is_followed)
{
    uint8_t *row = from;
    to -= kept;
    from -= kept;
    size += kept;
    size_t head = (size_t)(-(uintptr_t)to % CACHE_LINE);
    if (head > size) head = size;
    size_t rest = (size - head) % CACHE_LINE, lines = size - head - rest;
    memcpy(to, from, head);
    stream_lines(to + head, from + head, lines);
    if (is_followed) {
        memmove(row - rest, from + head + lines, rest);
        return rest;
    }
    memcpy(to + head + lines, from + head + lines, rest);
    return 0;
}

/* Restore rows `start .. start + count`, the first one at `out`, the others `stride` bytes apart.
   `made` is room for a row with a line before it, or NULL where each is made in its place out of the
   one before. */
static int restore_patched(const Patches *of, Py_ssize_t start, Py_ssize_t count, uint8_t *out,
                           Py_ssize_t stride, uint8_t *made)
{
    Py_ssize_t row = start / ANCHOR_EVERY * ANCHOR_EVERY;
    size_t size = (size_t)of->row_bytes;
    uint8_t *now = made != NULL ? made : out;
    copy_row(now, of->first, size);
    if (row && !apply_patch(of, row, now)) return 0;
    while (row < start) {
        if (!apply_patch(of, ++row, now)) return 0;
    }
    int touch = stride == of->row_bytes;
    size_t kept = 0;
    if (made != NULL) kept = stream_row(out, made, size, 0, touch && count > 1);
    while (++row < start + count) {
        out += stride;
        if (made == NULL) {
            copy_row(out, row % ANCHOR_EVERY ? now : of->first, size);
            now = out;
        } else if (row % ANCHOR_EVERY == 0) {
            copy_row(made, of->first, size);
        }
        if (!apply_patch(of, row, now)) return 0;
        if (made != NULL) kept = stream_row(out, made, size, kept, touch && row + 1 < start + count);
    }
    return 1;
}

typedef struct {
    Py_buffer source;
    Py_ssize_t place[5]; /* offset of the field, rows of the chunk, first row, rows, row of the output */
} Item;

/* One block of an item: where it lies in the field, and which of its rows are wanted. */
typedef struct {
    const uint8_t *data;
    uint64_t size;
    Py_ssize_t rows, low, count, next;
} Block;

static int get_block(Block *block, const Item *item, Py_ssize_t row, Py_ssize_t block_rows)
{
    Py_ssize_t offset = item->place[0], stored = item->place[1], stop = item->place[2] + item->place[3];
    Py_ssize_t blocks = (stored - 1) / block_rows + 1, number = row / block_rows;
    const uint8_t *ends = (const uint8_t *)item->source.buf + offset;
    uint64_t room = (uint64_t)(item->source.len - offset), begin = 0, end, head = 4 * (uint64_t)blocks;
    Py_ssize_t first = number * block_rows, last = first + block_rows;
    if ((uint64_t)blocks > room / 4) return 0;
    if (number) begin = count_at(ends, number - 1);
    end = count_at(ends, number);
    if (begin > end || end > room - head) return 0;
    if (last > stored) last = stored;
    block->data = ends + head + begin;
    block->size = end - begin;
    block->rows = last - first;
    block->low = row - first;
    block->next = last < stop ? last : stop;
    block->count = block->next - row;
    return 1;
}

static const uint8_t ZSTD_MAGIC[4] = {0x28, 0xB5, 0x2F, 0xFD}; /* more than any number of words */

/* Restore an item; 1 if it is done, 0 if some block is a zstd frame, -1 if it is damaged. */
static int restore_item(const Item *item, Py_ssize_t block_rows, Py_ssize_t row_bytes, uint8_t *out,
                        Py_ssize_t stride, uint8_t *made)
{
    Py_ssize_t row = item->place[2], stop = row + item->place[3];
    while (row < stop) {
        Block block;
        Patches patches;
        if (!get_block(&block, item, row, block_rows)) return -1;
        if (block.size == (uint64_t)block.rows * (uint64_t)row_bytes) { /* the rows themselves */
            for (Py_ssize_t k = 0; k < block.count; k++) {
                memmove(out + k * stride, block.data + (block.low + k) * row_bytes, (size_t)row_bytes);
            }
        } else if (block.size >= 4 && !memcmp(block.data, ZSTD_MAGIC, 4)) {
            return 0;
        } else if (!get_patches(&patches, block.data, block.size, block.rows, row_bytes) ||
                   !restore_patched(&patches, block.low, block.count, out, stride, made)) {
            return -1;
        }
        out += block.count * stride;
        row = block.next;
    }
    return 1;
}

/* What an item needs first; the processor would wait for each of these. */
static void prefetch_item(const Item *item, Py_ssize_t block_rows, Py_ssize_t row_bytes)
{
    Block block;
    Patches of;
    if (!get_block(&block, item, item->place[2], block_rows)) return;
    if (!get_patches(&of, block.data, block.size, block.rows, row_bytes)) return;
    Py_ssize_t anchor = block.low / ANCHOR_EVERY * ANCHOR_EVERY;
    Py_ssize_t last = block.low + block.count - 1;
    uint64_t begin = anchor > 1 ? count_at(of.ends, anchor - 2) : 0;
    uint64_t end = last > 0 ? count_at(of.ends, last - 1) : 0;
    if (end > begin + MOST_FETCHED) end = begin + MOST_FETCHED;
    if (end > of.total) return;
    for (uint64_t k = begin; k < end; k += 32) PREFETCH(of.steps + 2 * k);
    for (uint64_t k = begin; k < end; k += 8) PREFETCH(of.values + 8 * k);
    for (Py_ssize_t at = 0; at < row_bytes; at += 128) PREFETCH(of.first + at);
}

/* The memory of an item, in which its five numbers must lie, and in the output. */
static int get_item(Item *item, PyObject *source, Py_ssize_t row_bytes, Py_ssize_t out_rows,
                    Py_ssize_t columns)
{
    Py_INCREF(source); /* asking it for its memory may run code that changes the list */
    int is_found = PyObject_GetBuffer(source, &item->source, PyBUF_SIMPLE) == 0;
    Py_DECREF(source);
    if (!is_found) return 0;
    Py_ssize_t offset = item->place[0], stored = item->place[1], start = item->place[2];
    Py_ssize_t rows = item->place[3], target = item->place[4];
    int is_right = offset >= 0 && offset <= item->source.len && stored >= 1 && start >= 0 &&
                   lies_in(start, rows, stored) && lies_in(target, rows, out_rows) && row_bytes > 0;
    if (is_right && columns) is_right = rows <= columns - target % columns;
    if (!is_right) {
        PyErr_Format(PyExc_ValueError, "place: expected rows of a chunk and of %zd rows, got %zd from %zd "
                     "on of %zd at %zd, to row %zd", out_rows, rows, start, stored, offset, target);
        PyBuffer_Release(&item->source);
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(apply_patches_doc,
             "apply_patches(out, sources, places, block_rows, row_bytes, columns): rows out of patches\n\n"
             "The places are five int64 for each source, as in CodedCopies. Returns the numbers of those\n"
             "that hold zstd frames, which are left out; `ValueError` with the number of one that is damaged.");

static PyObject *apply_patches(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer out, places;
    PyObject *result = NULL;
    Py_ssize_t taken = 0, number[3], total = 0, damaged = -1;
    (void)self;
    if (!count_is(nargs, 6, "apply_patches")) return NULL;
    for (int i = 0; i < 3; i++) {
        number[i] = PyLong_AsSsize_t(args[i + 3]);
        if (number[i] == -1 && PyErr_Occurred()) return NULL;
    }
    Py_ssize_t block_rows = number[0], row_bytes = number[1], columns = number[2];
    Py_ssize_t count = PyList_Check(args[1]) ? PyList_Size(args[1]) : -1;
    if (count < 0) {
        PyErr_SetString(PyExc_ValueError, "apply_patches: expected a list of sources");
        return NULL;
    }
    if (!get(args[2], &places, PyBUF_SIMPLE, "lq", 5 * count, "places")) return NULL;
    if (!get_out(args[0], &out)) goto no_out;
    Py_ssize_t out_rows = row_bytes > 0 ? out.len / row_bytes : 0;
    if (block_rows < 1 || row_bytes < 1 || columns < 0 || out_rows * row_bytes != out.len ||
        (columns && out_rows % columns) || (row_bytes + 7) / 8 > PATCHED_WORDS) {
        PyErr_Format(PyExc_ValueError, "apply_patches: %zd bytes, blocks of %zd rows of %zd, %zd columns",
                     out.len, block_rows, row_bytes, columns);
        goto no_items;
    }
    Item *items = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Item));
    char *is_left = PyMem_Calloc(count ? (size_t)count : 1, 1);
    int streams = CAN_STREAM && out.len >= STREAMED_BYTES && row_bytes <= STREAMED_ROW;
    uint8_t *room = streams ? PyMem_Malloc(CACHE_LINE + (size_t)row_bytes) : NULL;
    uint8_t *made = room != NULL ? room + CACHE_LINE : NULL;
    if (items == NULL || is_left == NULL || (streams && room == NULL)) {
        PyErr_NoMemory();
        goto done;
    }
    for (; taken < count; taken++) {
        PyObject *source = PyList_GetItem(args[1], taken);
        for (int i = 0; i < 5; i++) items[taken].place[i] = ((int64_t *)places.buf)[i * count + taken];
        if (source == NULL || !get_item(items + taken, source, row_bytes, out_rows, columns)) goto done;
        total += items[taken].place[3];
    }
    PyThreadState *others = total >= LONG_BYTES / row_bytes ? PyEval_SaveThread() : NULL;
    Py_ssize_t stride = columns ? out_rows / columns * row_bytes : row_bytes;
    for (Py_ssize_t k = 0; k < count && damaged < 0; k++) {
        Py_ssize_t target = items[k].place[4];
        if (columns) target = target % columns * (out_rows / columns) + target / columns;
        if (k + 1 < count) prefetch_item(items + k + 1, block_rows, row_bytes);
        int found = restore_item(items + k, block_rows, row_bytes,
                                 (uint8_t *)out.buf + target * row_bytes, stride, made);
        is_left[k] = !found;
        if (found < 0) damaged = k;
    }
    end_streams();
    if (others != NULL) PyEval_RestoreThread(others);
    if (damaged >= 0) {
        PyErr_Format(PyExc_ValueError, "%zd", damaged);
        goto done;
    }
    result = PyList_New(0);
    for (Py_ssize_t k = 0; result != NULL && k < count; k++) {
        if (!is_left[k]) continue;
        PyObject *item = PyLong_FromSsize_t(k);
        if (item == NULL || PyList_Append(result, item) < 0) Py_CLEAR(result);
        Py_XDECREF(item);
    }
done:
    while (taken > 0) PyBuffer_Release(&items[--taken].source);
    PyMem_Free(items);
    PyMem_Free(is_left);
    PyMem_Free(room);
no_items:
    PyBuffer_Release(&out);
no_out:
    PyBuffer_Release(&places);
    return result;
}

/* --- draws: see ItemCounts.drawn in storage/item_counts.py, and RowReader.steps in row_reader.py --- */

#define LINE 8           /* numbers of a line of the reader's table, of which: */
enum { FIRST_ROW, ROWS, LAST, ROW_ID, SEGMENT, PREVIOUS, SLOT, IS_KNOWN };
#define RECORD 18        /* numbers of a ChunkInfo, of which: */
enum { RECORD_END = 4, STORED_ROWS = 9, STREAM_NEXT = 14 };
#define TERMINATED 1     /* as in End */
#define TRUNCATED 2
#define RUN_NUMBERS 13   /* of a segment: five of CodedCopies, and its line */

/* Sums of what may be any numbers, without an overflow. */
static int64_t plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t less(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

PyDoc_STRVAR(draw_items_doc, "draw_items(running, shift, known, shares, found): as ItemCounts.drawn");

static PyObject *draw_items(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer running, shift, shares, found;
    PyObject *result = NULL;
    (void)self;
    if (!count_is(nargs, 5, "draw_items")) return NULL;
    Py_ssize_t known = PyLong_AsSsize_t(args[2]);
    if (known == -1 && PyErr_Occurred()) return NULL;
    if (!get(args[0], &running, PyBUF_SIMPLE, "lq", -1, "running")) return NULL;
    if (!get(args[1], &shift, PyBUF_SIMPLE, "lq", running.len / 8, "shift")) goto no_shift;
    if (!get(args[3], &shares, PyBUF_SIMPLE, "d", -1, "shares")) goto no_shares;
    Py_ssize_t count = shares.len / 8;
    if (!get(args[4], &found, PyBUF_WRITABLE, "lq", 2 * count, "found")) goto no_found;
    if (known < 1 || known > running.len / 8) {
        PyErr_Format(PyExc_ValueError, "known: expected 1 to %zd records, got %zd", running.len / 8, known);
        goto done;
    }
    const int64_t *stops = running.buf, *shifts = shift.buf, total = stops[known - 1];
    const double *share = shares.buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (share[i] >= 0 && share[i] < 1 && total > 0) continue;
        PyErr_SetString(PyExc_ValueError, "shares: expected numbers from 0 to below 1, and items");
        goto done;
    }
    int64_t *index = found.buf, *first = index + count;
    for (Py_ssize_t i = 0; i < count; i++) {
        double exact = share[i] * (double)total;
        int64_t number = exact >= 0 && exact < 9e18 ? (int64_t)exact : 0, low = 0;
        for (int64_t size = known; size > 1;) { /* without branches that depend on random numbers */
            int64_t half = size / 2;
            low += stops[low + half - 1] <= number ? half : 0;
            size -= half;
        }
        index[i] = low;
        first[i] = plus(number, shifts[low]);
    }
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&found);
no_found:
    PyBuffer_Release(&shares);
no_shares:
    PyBuffer_Release(&shift);
no_shift:
    PyBuffer_Release(&running);
    return result;
}

typedef struct {
    const int64_t *table, *records;
    int64_t count, base;
} Chunks;

/* The line of a chunk, if there is such a chunk. */
static const int64_t *line_of(const Chunks *of, int64_t chunk)
{
    return chunk >= 0 && chunk < of->count ? of->table + chunk * LINE : NULL;
}

/* Walk to the chunk that holds a row of an episode; for a missing row, to the last one before it. */
static const int64_t *walk_to(const Chunks *of, int64_t *chunk, int64_t row, int64_t *place)
{
    for (int64_t left = of->count + 2; left > 0; left--) {
        const int64_t *line = line_of(of, *chunk);
        if (line == NULL) return NULL;
        *place = less(row, line[FIRST_ROW]);
        if (*place < 0) {
            *chunk = line[PREVIOUS];
        } else if (*place < line[ROWS]) {
            return line[IS_KNOWN] ? line : NULL;
        } else if (line[LAST] >= 0) {
            row = less(plus(line[FIRST_ROW], line[ROWS]), 1);
        } else {
            *chunk = less(of->records[*chunk * RECORD + STREAM_NEXT], of->base);
        }
    }
    return NULL;
}

typedef struct {
    int64_t *places, *lines; /* as RowReader.steps has them; NULL to count the segments */
    int64_t size, left;      /* segments of all runs, and those that are left: the last ones come first */
} Segments;

/* The segments of a run that ends at a place of a chunk. */
static int split_run(const Chunks *of, int64_t chunk, int64_t place, int64_t rows, int64_t target,
                     Segments *to)
{
    for (int64_t left = of->count; rows > 0; left--) {
        const int64_t *line = line_of(of, chunk);
        if (line == NULL || left <= 0) return 0;
        int64_t here = place < rows ? place + 1 : rows, begin = less(place, here - 1);
        if (here > 0) { /* it is 0 in a chunk whose only row was superseded */
            if (!line[IS_KNOWN] || (to->places != NULL && to->left <= 0)) return 0;
            to->left--;
            rows -= here;
            if (to->places != NULL) {
                int64_t *at = to->places + to->left;
                int64_t numbers[] = {chunk, of->records[chunk * RECORD + STORED_ROWS], begin, here,
                                     plus(target, rows)};
                memmove(to->lines + to->left * LINE, line, LINE * sizeof *line);
                for (int k = 0; k < 5; k++) at[k * to->size] = numbers[k];
            }
        }
        chunk = line[PREVIOUS];
        line = line_of(of, chunk);
        place = line == NULL || line[ROWS] < 1 ? -1 : line[ROWS] - 1;
    }
    return 1;
}

/* One transition: eight numbers, `count` apart; false if numpy must look for it itself. */
static int find_step(const Chunks *of, int64_t chunk, int64_t start, int64_t n, int64_t *to,
                     uint8_t *flags, Py_ssize_t count, int *ended)
{
    int64_t place, steps = 1, before;
    const int64_t *line = walk_to(of, &chunk, plus(start, n), &place);
    if (line == NULL) return 0;
    if (n > 1) steps = less(plus(line[FIRST_ROW], place), start);
    if (steps < 0 || steps > n) return 0;
    to[0] = chunk, to[count] = place, to[2 * count] = plus(line[SLOT], place);
    if (place == line[LAST]) {
        int64_t end = of->records[chunk * RECORD + RECORD_END];
        flags[0] = (end & TERMINATED) != 0;
        flags[count] = (end & TRUNCATED) != 0;
        flags[2 * count] = !(end & (TERMINATED | TRUNCATED));
        *ended = 1;
    } else {
        flags[0] = flags[count] = flags[2 * count] = 0;
    }
    before = place - steps;
    if (before < 0) {
        chunk = line[PREVIOUS];
        line = walk_to(of, &chunk, start, &before);
        if (line == NULL) return 0;
    }
    to[3 * count] = chunk, to[4 * count] = before, to[5 * count] = plus(line[SLOT], before);
    to[6 * count] = steps, to[7 * count] = plus(line[ROW_ID], before);
    return 1;
}

/* The runs of the frames of all transitions, the last ones first, as `_frames` in transitions.py. */
static int split_runs(const Chunks *of, const int64_t *found, const int64_t *starts, int64_t count,
                      int64_t frames, int is_joined, int64_t *missing, Segments *to)
{
    int64_t width = frames + is_joined;
    for (int64_t run = (2 - is_joined) * count - 1; run >= 0; run--) {
        int64_t i = run % count, is_last = is_joined || run >= count;
        const int64_t *rows_of = found + (is_last ? 0 : 3 * count) + i;
        int64_t place = rows_of[count], last = is_last ? found[6 * count + i] : 0;
        int64_t rows = plus(starts[i], last + 1);
        if (rows < 1 || place < 0) return 0;
        if (rows > width) rows = width;
        if (missing != NULL) missing[run] = width - rows;
        if (!split_run(of, rows_of[0], place, rows, run * width + width - rows, to)) return 0;
    }
    return 1;
}

PyDoc_STRVAR(find_steps_doc,
             "find_steps(table, records, base, chunk, start, n, frames, is_joined, found, flags, room)\n\n"
             "As RowReader.steps. Returns the number of segments of the frames, and whether a transition\n"
             "reaches the last row of its episode; None where numpy must look itself.");

static PyObject *find_steps(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    static const char *const names[] = {"table", "records", "chunk", "start", "found", "room"};
    static const int places[] = {0, 1, 3, 4, 8, 10}, numbers[] = {2, 5, 6, 7};
    Py_buffer view[6], flags;
    PyObject *result = NULL;
    Py_ssize_t number[4], taken = 0, count = -1;
    int ended = 0;
    (void)self;
    if (!count_is(nargs, 11, "find_steps")) return NULL;
    for (int i = 0; i < 4; i++) {
        number[i] = PyLong_AsSsize_t(args[numbers[i]]);
        if (number[i] == -1 && PyErr_Occurred()) return NULL;
    }
    Py_ssize_t n = number[1], frames = number[2], is_joined = number[3];
    if (n < 1 || frames < 0 || frames > INT32_MAX || (is_joined != 0 && is_joined != 1)) {
        PyErr_Format(PyExc_ValueError, "find_steps: %zd steps, %zd frames, %zd", n, frames, is_joined);
        return NULL;
    }
    for (; taken < 6; taken++) {
        Py_ssize_t size = taken == 3 ? count : taken == 4 ? 8 * count : -1;
        if (!get(args[places[taken]], view + taken, taken > 3 ? PyBUF_WRITABLE : PyBUF_SIMPLE, "lq", size,
                 names[taken])) goto done;
        if (taken == 2) count = view[2].len / 8;
    }
    if (!get_out(args[9], &flags)) goto done;
    Py_ssize_t runs = frames ? (2 - is_joined) * count : 0, room = view[5].len / 8 - runs;
    if (flags.len != 3 * count || view[0].len % (8 * LINE) || view[1].len % (8 * RECORD) || room < 0) {
        PyErr_Format(PyExc_ValueError, "find_steps: %zd flags, %zd and %zd bytes of chunks, room for %zd",
                     flags.len, view[0].len, view[1].len, room);
        goto no_result;
    }
    Chunks of = {view[0].buf, view[1].buf, view[0].len / (8 * LINE), number[0]};
    if (of.count > view[1].len / (8 * RECORD)) of.count = view[1].len / (8 * RECORD);
    int64_t *found = view[4].buf, *missing = view[5].buf;
    const int64_t *chunk = view[2].buf, *start = view[3].buf;
    int is_found = 1;
    for (Py_ssize_t i = 0; i < count && is_found; i++) {
        is_found = find_step(&of, chunk[i], start[i], n, found + i, (uint8_t *)flags.buf + i, count, &ended);
    }
    Segments segments = {NULL, NULL, 0, 0};
    if (is_found && runs) {
        is_found = split_runs(&of, found, start, count, frames, (int)is_joined, missing, &segments);
        segments.size = segments.left = -segments.left;
        segments.places = missing + runs;
        segments.lines = segments.places + 5 * segments.size;
        is_found = is_found && segments.size <= room / RUN_NUMBERS &&
                   split_runs(&of, found, start, count, frames, (int)is_joined, NULL, &segments);
    }
    result = is_found ? Py_BuildValue("nO", (Py_ssize_t)segments.size, ended ? Py_True : Py_False)
                      : Py_NewRef(Py_None);
no_result:
    PyBuffer_Release(&flags);
done:
    while (taken > 0) PyBuffer_Release(&view[--taken]);
    return result;
}

PyDoc_STRVAR(find_runs_doc,
             "find_runs(table, records, chunk, place, rows, target, room): as RowReader.segments\n\n"
             "Returns the number of segments; None where numpy must look itself.");

static PyObject *find_runs(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    static const char *const names[] = {"table", "records", "chunk", "place", "rows", "target", "room"};
    Py_buffer view[7];
    PyObject *result = NULL;
    Py_ssize_t taken = 0, count = -1;
    (void)self;
    if (!count_is(nargs, 7, "find_runs")) return NULL;
    for (; taken < 7; taken++) {
        Py_ssize_t size = taken > 2 && taken < 6 ? count : -1;
        if (!get(args[taken], view + taken, taken == 6 ? PyBUF_WRITABLE : PyBUF_SIMPLE, "lq", size,
                 names[taken])) goto done;
        if (taken == 2) count = view[2].len / 8;
    }
    if (view[0].len % (8 * LINE) || view[1].len % (8 * RECORD)) {
        PyErr_Format(PyExc_ValueError, "find_runs: %zd and %zd bytes of chunks", view[0].len, view[1].len);
        goto done;
    }
    Chunks of = {view[0].buf, view[1].buf, view[0].len / (8 * LINE), 0};
    if (of.count > view[1].len / (8 * RECORD)) of.count = view[1].len / (8 * RECORD);
    const int64_t *chunk = view[2].buf, *place = view[3].buf, *rows = view[4].buf, *target = view[5].buf;
    Segments segments = {NULL, NULL, 0, 0};
    int is_found = 1;
    for (int pass = 0; pass < 2 && is_found; pass++) { /* count them, then write them */
        for (Py_ssize_t run = count - 1; run >= 0 && is_found; run--) {
            is_found = rows[run] > 0 && place[run] >= 0 &&
                       split_run(&of, chunk[run], place[run], rows[run], target[run], &segments);
        }
        if (pass) break;
        segments.size = segments.left = -segments.left;
        is_found = is_found && segments.size <= view[6].len / 8 / RUN_NUMBERS;
        segments.places = view[6].buf;
        segments.lines = is_found ? segments.places + 5 * segments.size : NULL;
    }
    result = is_found ? PyLong_FromSsize_t((Py_ssize_t)segments.size) : Py_NewRef(Py_None);
done:
    while (taken > 0) PyBuffer_Release(&view[--taken]);
    return result;
}

/* --- the checksum of every chunk: CRC-32 as zlib computes it, several times as fast --- */

static uint32_t crc_table[256];
static int has_fast_crc;

#if defined(__GNUC__) && defined(__x86_64__)
/* Fold 16 bytes or more, of a length that is a multiple of 16, as in "Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). The constants are powers of x modulo the
   polynomial, with their bits reversed: x^(4*128+32), x^(4*128-32); x^(128+32), x^(128-32); x^64. */
__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i sum, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_of_blocks(uint32_t crc, const uint8_t *data,
                                                                        size_t size)
{
    const __m128i by_four = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_half = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i *block = (const __m128i *)data, *stop = (const __m128i *)(data + size);
    __m128i sum = _mm_xor_si128(_mm_loadu_si128(block++), _mm_cvtsi32_si128((int)crc)), rest;
    if (stop - block >= 3) {
        __m128i b = _mm_loadu_si128(block), c = _mm_loadu_si128(block + 1),
                d = _mm_loadu_si128(block + 2);
        for (block += 3; stop - block >= 4; block += 4) {
            sum = fold(sum, by_four, _mm_loadu_si128(block));
            b = fold(b, by_four, _mm_loadu_si128(block + 1));
            c = fold(c, by_four, _mm_loadu_si128(block + 2));
            d = fold(d, by_four, _mm_loadu_si128(block + 3));
        }
        sum = fold(fold(fold(sum, by_one, b), by_one, c), by_one, d);
    }
    while (block < stop) sum = fold(sum, by_one, _mm_loadu_si128(block++));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_one, 0x10));
    rest = _mm_srli_si128(sum, 4);
    sum = _mm_xor_si128(rest, _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), by_half, 0x00));
    rest = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), polynomial, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), polynomial, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, rest), 1);
}

static int find_fast_crc(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
static uint32_t crc_of_blocks(uint32_t crc, const uint8_t *data, size_t size)
{
    (void)data, (void)size;
    return crc;
}

static int find_fast_crc(void) { return 0; }
#endif

static void begin_crc(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[byte] = crc;
    }
    has_fast_crc = find_fast_crc();
}

PyDoc_STRVAR(crc32_doc, "crc32(data, value): as zlib.crc32; quick where HAS_FAST_CRC is 1");

static PyObject *crc32(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer data;
    (void)self;
    if (!count_is(nargs, 2, "crc32")) return NULL;
    unsigned long value = PyLong_AsUnsignedLong(args[1]);
    if (value == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    if (value > 0xFFFFFFFFul) {
        PyErr_Format(PyExc_OverflowError, "value: expected 32 bits, got %lu", value);
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    PyThreadState *others = data.len >= LONG_BYTES ? PyEval_SaveThread() : NULL;
    uint32_t crc = ~(uint32_t)value;
    const uint8_t *at = data.buf, *stop = at + data.len;
    if (has_fast_crc && data.len >= 16) {
        size_t size = (size_t)data.len / 16 * 16;
        crc = crc_of_blocks(crc, at, size);
        at += size;
    }
    while (at < stop) crc = crc_table[(crc ^ *at++) & 255] ^ crc >> 8;
    if (others != NULL) PyEval_RestoreThread(others);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong((uint32_t)~crc);
}

/* --- the fields of a chunk: ChunkDecoder.check in storage/chunk_codec.py --- */

#define HEAD 8          /* as in chunk_codec.py: bytes before the entries, */
#define ENTRY 32        /* of an entry, */
#define FRAME_BYTES 6   /* and the least bytes of a frame */
#define PART_BYTES 4
#define PART_HOLDS (1 << 17)
#define LARGEST_ROW ((uint64_t)1 << 40)

typedef struct {
    uint32_t tag;
    char name[4];
    uint32_t block_rows, has_deltas;
    uint64_t row_bytes;
} Form; /* as rows of a field may be stored */

static uint64_t least_of(uint64_t some, uint64_t other) { return some < other ? some : other; }

/* Least number of bytes of a compressed block of so many bytes of rows. */
static uint64_t least_block(const Form *form, uint64_t nbytes)
{
    uint64_t content = nbytes;
    if (form->has_deltas) {
        content = least_of(nbytes, 4 * (nbytes / form->row_bytes - 1) + form->row_bytes);
    }
    return least_of(nbytes, FRAME_BYTES + PART_BYTES * ((content + PART_HOLDS - 1) / PART_HOLDS));
}

/* True if the ends of the blocks and the blocks take as many bytes as they can. */
static int blocks_fit(const Form *form, const uint8_t *ends, uint64_t size, uint64_t rows)
{
    if (form->block_rows > 1 << 20 || form->row_bytes < 1 || form->row_bytes > LARGEST_ROW) return 0;
    uint64_t blocks = rows / form->block_rows + (rows % form->block_rows != 0);
    if (blocks > size / 4) return 0;
    uint64_t room = size - 4 * blocks, full = form->block_rows * form->row_bytes;
    uint64_t last = (rows - (blocks - 1) * form->block_rows) * form->row_bytes;
    uint64_t least = least_block(form, full), before = 0;
    uint32_t end;
    for (uint64_t k = 0; k + 1 < blocks; k++) {
        memcpy(&end, ends + 4 * k, sizeof end);
        if (end < before || end - before < least || end - before > full) return 0;
        before = end;
    }
    memcpy(&end, ends + 4 * (blocks - 1), sizeof end);
    return end == room && room >= before && room - before >= least_block(form, last) &&
           room - before <= last;
}

/* True if the chunk is right; `forms` are, for each field, a u64 number of Forms, and the Forms. */
static int chunk_fits(const uint8_t *chunk, uint64_t nbytes, uint64_t rows, const uint8_t *forms,
                      uint64_t forms_bytes)
{
    uint32_t fields, metadata;
    uint64_t at = 0, least;
    if (nbytes % 8 || nbytes < HEAD) return 0;
    memcpy(&fields, chunk, sizeof fields);
    memcpy(&metadata, chunk + 4, sizeof metadata);
    if (fields > (nbytes - HEAD) / ENTRY) return 0;
    least = HEAD + (uint64_t)fields * ENTRY + metadata;
    for (uint32_t k = 0; k < fields; k++) {
        const uint8_t *entry = chunk + HEAD + (uint64_t)k * ENTRY;
        uint64_t count, offset, size, last;
        uint32_t block_rows;
        Form form;
        int is_found = 0;
        if (forms_bytes - at < sizeof count) return 0;
        memcpy(&count, forms + at, sizeof count);
        at += sizeof count;
        if (count > (forms_bytes - at) / sizeof form) return 0;
        memcpy(&block_rows, entry + 8, sizeof block_rows);
        memcpy(&offset, entry + 16, sizeof offset);
        memcpy(&size, entry + 24, sizeof size);
        last = at + count * sizeof form;
        for (; at < last && !is_found; at += sizeof form) {
            memcpy(&form, forms + at, sizeof form);
            is_found = form.tag == entry[0] && !memcmp(form.name, entry + 1, sizeof form.name) &&
                       form.block_rows == block_rows;
        }
        at = last;
        if (!is_found || offset < least || offset > nbytes || size > nbytes - offset) return 0;
        if (block_rows) {
            if (!blocks_fit(&form, chunk + offset, size, rows)) return 0;
        } else if (form.row_bytes ? size % form.row_bytes || size / form.row_bytes != rows : size) {
            return 0;
        }
        least = offset + size;
    }
    return at == forms_bytes;
}

PyDoc_STRVAR(is_chunk_doc,
             "is_chunk(buffer, origin, nbytes, rows, forms): False where ChunkDecoder.check must look\n\n"
             "True if that accepts the chunk; forms are as ChunkDecoder makes them.");

static PyObject *is_chunk(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer buffer, forms;
    Py_ssize_t number[3];
    (void)self;
    if (!count_is(nargs, 5, "is_chunk")) return NULL;
    for (int i = 0; i < 3; i++) {
        number[i] = PyLong_AsSsize_t(args[i + 1]);
        if (number[i] == -1 && PyErr_Occurred()) return NULL;
    }
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[4], &forms, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    Py_ssize_t origin = number[0], nbytes = number[1], rows = number[2];
    int is_right = origin >= 0 && nbytes >= 0 && rows >= 1 && origin <= buffer.len &&
                   nbytes <= buffer.len - origin &&
                   chunk_fits((const uint8_t *)buffer.buf + origin, (uint64_t)nbytes, (uint64_t)rows,
                              forms.buf, (uint64_t)forms.len);
    PyBuffer_Release(&forms);
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(is_right);
}

/* --- usual arguments: EnvResults in wrappers/env_results.py, SB3's add in dropin/sb3/replay.py --- */

/* Some envs take a microsecond a step, of which checking the results must not take half. So nearly
   all pass here, and the others are looked at by Python, where the rules are. `forms` is a tuple:
   numpy.ndarray, the descriptors of its dtype and its shape, then a dtype and a shape for each
   array. A descriptor is called without a search for it by its name. */
enum { ARRAY, GET_DTYPE, GET_SHAPE, FORMS };

static descrgetfunc getter_of(PyObject *descriptor)
{
    return (descrgetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get);
}

static int are_forms(PyObject *forms, Py_ssize_t count)
{
    if (PyTuple_CheckExact(forms) && PyTuple_Size(forms) == FORMS + 2 * count &&
        getter_of(PyTuple_GetItem(forms, GET_DTYPE)) && getter_of(PyTuple_GetItem(forms, GET_SHAPE))) {
        return 1;
    }
    PyErr_Format(PyExc_TypeError, "forms: expected a tuple for %zd arrays, got %R", count, forms);
    return 0;
}

static PyObject *attribute(PyObject *forms, int which, PyObject *array)
{
    PyObject *descriptor = PyTuple_GetItem(forms, which);
    return getter_of(descriptor)(descriptor, array, (PyObject *)Py_TYPE(array));
}

/* 1: an array of this very dtype, as most are (== is asked of the others), and shape; -1: an error. */
static int has_form(PyObject *forms, Py_ssize_t number, PyObject *array)
{
    if (Py_TYPE(array) != (PyTypeObject *)PyTuple_GetItem(forms, ARRAY)) return 0;
    PyObject *dtype = attribute(forms, GET_DTYPE, array);
    if (dtype == NULL) return -1;
    int is_same = dtype == PyTuple_GetItem(forms, FORMS + 2 * number);
    Py_DECREF(dtype);
    if (!is_same) return 0;
    PyObject *shape = attribute(forms, GET_SHAPE, array);
    if (shape == NULL) return -1;
    is_same = PyObject_RichCompareBool(shape, PyTuple_GetItem(forms, FORMS + 2 * number + 1), Py_EQ);
    Py_DECREF(shape);
    return is_same;
}

/* What a step function needs is the tuple that it is bound to. */
enum { ENVS, PLACE, OBSERVATION, OTHERS, STEP };

static int is_usual_step(PyObject *forms, PyObject *result)
{
    if (!PyTuple_CheckExact(result) || PyTuple_Size(result) != 5 ||
        !PyFloat_CheckExact(PyTuple_GetItem(result, 1)) || !PyBool_Check(PyTuple_GetItem(result, 2)) ||
        !PyBool_Check(PyTuple_GetItem(result, 3)) || !PyDict_CheckExact(PyTuple_GetItem(result, 4))) {
        return 0;
    }
    return has_form(forms, 0, PyTuple_GetItem(result, 0));
}

static PyObject *step(PyObject *self, PyObject *action)
{
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GetItem(self, PLACE));
    if (place == -1 && PyErr_Occurred()) return NULL;
    PyObject *env = PySequence_GetItem(PyTuple_GetItem(self, ENVS), place);
    if (env == NULL) return NULL;
    PyObject *result = PyObject_CallMethodObjArgs(env, PyTuple_GetItem(self, STEP), action, NULL);
    Py_DECREF(env);
    if (result == NULL) return NULL;
    int is_usual = is_usual_step(PyTuple_GetItem(self, OBSERVATION), result);
    if (is_usual > 0) return result;
    PyObject *checked = NULL;
    if (is_usual == 0) {
        checked = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, OTHERS), result, NULL);
    }
    Py_DECREF(result);
    return checked;
}

static PyMethodDef step_method = {"step", step, METH_O, "step(action): the result of a step, checked"};

PyDoc_STRVAR(stepping_doc,
             "stepping(envs, place, forms, others): as EnvResults.stepping\n\n"
             "Results that are not a tuple of an array of this form, a float, two bools and a dict\n"
             "are those of others(result).");

static PyObject *stepping(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (!count_is(nargs, STEP, "stepping") || !are_forms(args[OBSERVATION], 1)) return NULL;
    /* The name is interned: so it is found in the caches of types. */
    PyObject *parts = Py_BuildValue("(OOOON)", args[ENVS], args[PLACE], args[OBSERVATION],
                                    args[OTHERS], PyUnicode_InternFromString("step"));
    if (parts == NULL) return NULL;
    PyObject *function = PyCFunction_NewEx(&step_method, parts, NULL);
    Py_DECREF(parts);
    return function;
}

PyDoc_STRVAR(are_usual_doc,
             "are_usual(arrays, forms, infos, count, key): False where Python must look\n\n"
             "True if the arrays have these forms, and infos is a list of so many dicts in which the\n"
             "key is absent or False.");

static PyObject *are_usual(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (!count_is(nargs, 5, "are_usual")) return NULL;
    PyObject *arrays = args[0], *forms = args[1], *infos = args[2];
    Py_ssize_t envs = PyLong_AsSsize_t(args[3]);
    if (envs == -1 && PyErr_Occurred()) return NULL;
    if (!PyTuple_CheckExact(arrays)) {
        PyErr_Format(PyExc_TypeError, "arrays: expected a tuple, got %R", arrays);
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(arrays);
    if (!are_forms(forms, count)) return NULL;
    for (Py_ssize_t k = 0; k < count; k++) {
        int is_usual = has_form(forms, k, PyTuple_GetItem(arrays, k));
        if (is_usual < 0) return NULL;
        if (!is_usual) Py_RETURN_FALSE;
    }
    if (!PyList_CheckExact(infos) || PyList_Size(infos) != envs) Py_RETURN_FALSE;
    for (Py_ssize_t k = 0; k < envs; k++) {
        PyObject *info = PyList_GetItem(infos, k);
        if (info == NULL) return NULL;
        if (!PyDict_CheckExact(info)) Py_RETURN_FALSE;
        Py_INCREF(info); /* comparing keys may run any code */
        PyObject *value = PyDict_GetItemWithError(info, args[4]);
        int is_told = value != NULL && value != Py_False;
        Py_DECREF(info);
        if (PyErr_Occurred()) return NULL;
        if (is_told) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"tree_set", (PyCFunction)(void (*)(void))tree_set, METH_FASTCALL, tree_set_doc},
    {"tree_draw", (PyCFunction)(void (*)(void))tree_draw, METH_FASTCALL, tree_draw_doc},
    {"copy_runs", (PyCFunction)(void (*)(void))copy_runs, METH_FASTCALL, copy_runs_doc},
    {"apply_deltas", (PyCFunction)(void (*)(void))apply_deltas, METH_FASTCALL, apply_deltas_doc},
    {"find_patches", (PyCFunction)(void (*)(void))find_patches, METH_FASTCALL, find_patches_doc},
    {"apply_patches", (PyCFunction)(void (*)(void))apply_patches, METH_FASTCALL, apply_patches_doc},
    {"draw_items", (PyCFunction)(void (*)(void))draw_items, METH_FASTCALL, draw_items_doc},
    {"find_steps", (PyCFunction)(void (*)(void))find_steps, METH_FASTCALL, find_steps_doc},
    {"find_runs", (PyCFunction)(void (*)(void))find_runs, METH_FASTCALL, find_runs_doc},
    {"crc32", (PyCFunction)(void (*)(void))crc32, METH_FASTCALL, crc32_doc},
    {"is_chunk", (PyCFunction)(void (*)(void))is_chunk, METH_FASTCALL, is_chunk_doc},
    {"stepping", (PyCFunction)(void (*)(void))stepping, METH_FASTCALL, stepping_doc},
    {"are_usual", (PyCFunction)(void (*)(void))are_usual, METH_FASTCALL, are_usual_doc},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    begin_crc();
    find_avx2();
    if (PyModule_AddIntConstant(module, "HAS_FAST_CRC", has_fast_crc) < 0) return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "stepwell.buffers.base._native",
    .m_doc = "The optional compiled core; see stepwell.buffers.base.native.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
