/* NumPy for a handful of numbers: an ndarray whose small operations cost tens of ns, not hundreds.

   A batch has a handful of rows, and on a handful of numbers NumPy spends its time on finding out
   what to do: on dtypes, broadcasting, iterators and error states. `FastArray` is an ndarray like
   any other, with the same memory and the same methods. It looks first whether an operation is one
   of those that the kernel lives on: int64 in native byte order, aligned, up to two dimensions, or
   a mask beside it. Those it does by itself; everything else goes to ndarray's own slot or method,
   wherever the answer, or the error, is NumPy's.

   Rules that hold in this file:
   - A fast path knows everything before it writes anything: indices are checked, and memory that is
     read and written at once is left to NumPy, so no call is half done when it falls back.
   - It raises for want of memory only. What NumPy would refuse, NumPy refuses.
   - It runs nobody's code before it is done, so nothing changes under its hands.
   - Results are FastArrays again, so that what comes of them is fast as well.
   - Overflow wraps around, as it does in NumPy; it is computed without a sign.

   What can be told from an ndarray that NumPy has made: the class; that a small result, whose
   numbers are inside its own object, has no `flags.owndata` and cannot be resized in place; and that
   a longer one takes its memory as NumPy does by default, whatever else NumPy was told to do.

   The oracle is NumPy: tests/test_fast.py. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <Python.h>

#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <string.h>

#if NPY_SIZEOF_INTP != 8 || defined(Py_GIL_DISABLED)
#error "this needs 64 bits and the interpreter's lock; without it the kernel runs on plain NumPy"
#endif

#define INSIDE 256          /* bytes of numbers that fit into the object of an array */
#define OWN_MAX 65536       /* bytes of numbers that a row has for its own; NumPy makes longer ones */
#define KEPT_MAX 256        /* dead arrays that are kept for the next results */
#define LISTED_MAX 32       /* numbers of a Python list that are taken up at once */
#define FEW 8               /* numbers in a row that are done with one by one */
#define BLOCK 64            /* numbers of which the best is looked for at once */
#define TRACE_DOMAIN 389047 /* np.lib.tracemalloc_domain */

/* Loops that several numbers at once are good for come twice where the compiler can do that: for
   any processor, and for one that takes four. Which are run is settled when the module is loaded. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#ifdef __GNUC__
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define UNROLLED
#endif

#define SOLID (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)
#define FIELDS(array) ((PyArrayObject_fields *)(array))
#define AS_INTS(array) ((npy_int64 *)FIELDS(array)->data)
#define AS_MASK(array) ((npy_bool *)FIELDS(array)->data)
#define UNSIGNED(number) ((npy_uint64)(number))

static PyTypeObject FastArray;
static PyArray_Descr *int64, *boolean; /* those that there is one of; a copy of them is slow */
static Py_ssize_t inside_at;           /* where in its object a small array has its numbers */
static PyDataMemAllocator *allocator;  /* NumPy's default */

/* -- arrays ------------------------------------------------------------------------------------ */

static inline int
is_array(PyObject *object)
{
    return Py_IS_TYPE(object, &FastArray) || PyArray_CheckExact(object);
}

/* Whether an array has elements of this type, one beside the other. */
static inline int
is_solid(PyObject *array, PyArray_Descr *descr)
{
    return FIELDS(array)->descr == descr && (FIELDS(array)->flags & SOLID) == SOLID;
}

/* The same of a single axis. */
static inline int
is_row(PyObject *array, PyArray_Descr *descr)
{
    return FIELDS(array)->nd == 1 && is_solid(array, descr);
}

static inline npy_intp
size_of(PyArray_Descr *descr)
{
    return descr == int64 ? sizeof(npy_int64) : sizeof(npy_bool);
}

static inline npy_intp
count_of(PyObject *array)
{
    return PyArray_SIZE((PyArrayObject *)array);
}

/* Where the first and the last element of an array in memory are; 0 and 0 where it has none. */
typedef struct {
    npy_uintp low, high;
} Extent;

static inline Extent
extent_of(PyObject *object)
{
    PyArrayObject_fields *array = FIELDS(object);
    Extent extent = {(npy_uintp)array->data, (npy_uintp)array->data};
    for (int axis = 0; axis < array->nd; axis++) {
        npy_intp span = array->strides[axis] * (array->dimensions[axis] - 1);
        if (array->dimensions[axis] == 0) {
            return (Extent){0, 0};
        }
        if (span < 0) {
            extent.low += span;
        }
        else {
            extent.high += span;
        }
    }
    return extent;
}

/* Whether something may lie in the memory of both. */
static inline int
may_overlap(PyObject *object, PyObject *other)
{
    Extent one = extent_of(object), two = extent_of(other);
    return one.low < two.high + sizeof(npy_int64) && two.low < one.high + sizeof(npy_int64);
}

/* Dead arrays of one axis, complete but for the reference count. They spare a result four
   allocations. The interpreter's lock guards them. */
static PyObject *kept[KEPT_MAX];
static int kept_count = 0;

/* Give a row memory of its own, as NumPy does. */
static inline int
allocate(PyArrayObject_fields *row, npy_intp size)
{
    char *data = allocator->malloc(allocator->ctx, size);
    if (data == NULL || PyTraceMalloc_Track(TRACE_DOMAIN, (uintptr_t)data, size) == -1) {
        if (data != NULL) {
            allocator->free(allocator->ctx, data, size);
        }
        PyErr_NoMemory();
        return 0;
    }
    row->data = data;
    row->flags |= NPY_ARRAY_OWNDATA;
    Py_XSETREF(row->mem_handler, Py_NewRef(PyDataMem_DefaultHandler));
    return 1;
}

/* Take it away again. */
static inline void
deallocate(PyArrayObject_fields *row)
{
    npy_intp size = PyArray_NBYTES((PyArrayObject *)row);
    PyTraceMalloc_Untrack(TRACE_DOMAIN, (uintptr_t)row->data);
    allocator->free(allocator->ctx, row->data, size ? size : 1);
    Py_CLEAR(row->mem_handler);
}

/* Return a writable row whose elements begin at `data`; if that is NULL, inside its own object or,
   where they are too many, in memory of its own. Its strides and flags are those of elements that
   lie side by side. */
static PyObject *
make_row(PyArray_Descr *descr, npy_intp count, char *data)
{
    PyObject *row;
    Py_INCREF(descr);
    if (kept_count) {
        row = kept[--kept_count];
        _Py_NewReference(row);
        Py_SETREF(FIELDS(row)->descr, descr);
    }
    else {
        /* Memory that NumPy believes in until it gets its own. */
        static npy_int64 nowhere;
        npy_intp none = 0;
        row = PyArray_NewFromDescr(&FastArray, descr, 1, &none, NULL, &nowhere,
                                   NPY_ARRAY_CARRAY, NULL);
        if (row == NULL) {
            return NULL;
        }
    }
    FIELDS(row)->data = data == NULL ? (char *)row + inside_at : data;
    FIELDS(row)->dimensions[0] = count;
    FIELDS(row)->strides[0] = size_of(descr);
    FIELDS(row)->flags = NPY_ARRAY_CARRAY | NPY_ARRAY_F_CONTIGUOUS;
    if (data == NULL && count * size_of(descr) > INSIDE &&
        !allocate(FIELDS(row), count * size_of(descr))) {
        Py_CLEAR(row);
    }
    return row;
}

static PyObject *
new_array(PyArray_Descr *descr, int nd, npy_intp const *shape)
{
    if (nd == 1 && shape[0] >= 0 && shape[0] <= OWN_MAX / size_of(descr)) {
        return make_row(descr, shape[0], NULL);
    }
    Py_INCREF(descr);
    return PyArray_NewFromDescr(&FastArray, descr, nd, shape, NULL, NULL, 0, NULL);
}

static inline PyObject *
new_row(PyArray_Descr *descr, npy_intp count)
{
    return new_array(descr, 1, &count);
}

/* Return a row of elements of `array`, from its element number `start` in memory on. */
static PyObject *
view_of(PyObject *array, npy_intp start, npy_intp count, npy_intp step)
{
    PyArray_Descr *descr = FIELDS(array)->descr;
    npy_intp size = size_of(descr);
    PyObject *view = make_row(descr, count, FIELDS(array)->data + start * size);
    if (view == NULL) {
        return NULL;
    }
    FIELDS(view)->strides[0] = step * size;
    if (step != 1 && count > 1) {
        FIELDS(view)->flags &= ~(NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS);
    }
    if (!(FIELDS(array)->flags & NPY_ARRAY_WRITEABLE)) {
        FIELDS(view)->flags &= ~NPY_ARRAY_WRITEABLE;
    }
    Py_INCREF(array);
    if (PyArray_SetBaseObject((PyArrayObject *)view, array) < 0) {
        Py_DECREF(view);
        return NULL;
    }
    return view;
}

static void
array_dealloc(PyObject *self)
{
    PyArrayObject_fields *fields = FIELDS(self);
    int is_owner = fields->flags & NPY_ARRAY_OWNDATA;
    if (kept_count < KEPT_MAX && fields->nd == 1 && fields->weakreflist == NULL &&
        fields->_buffer_info == NULL && (fields->descr == int64 || fields->descr == boolean) &&
        !(fields->flags & NPY_ARRAY_WRITEBACKIFCOPY) &&
        (!is_owner || fields->mem_handler == PyDataMem_DefaultHandler)) {
        if (is_owner) {
            deallocate(fields);
            fields->flags &= ~NPY_ARRAY_OWNDATA;
        }
        Py_CLEAR(fields->base);
        if (kept_count < KEPT_MAX) { /* what has just died may have taken the place */
            kept[kept_count++] = self;
            return;
        }
    }
    PyArray_Type.tp_dealloc(self);
}

static PyObject *
int64_scalar(npy_int64 number)
{
    PyObject *scalar = PyArrayScalar_New(Int64);
    if (scalar != NULL) {
        PyArrayScalar_ASSIGN(scalar, Int64, number);
    }
    return scalar;
}

static PyObject *
bool_scalar(int truth)
{
    return Py_NewRef(truth ? PyArrayScalar_True : PyArrayScalar_False);
}

/* -- operands ---------------------------------------------------------------------------------- */

/* Numbers to read: an array of up to two axes, a number beside any of them, or a list of numbers.
   Of an axis that is not there the length is 1; where the length is 1 the step is 0, so that such
   an axis goes along with a longer one. Steps count numbers. */
typedef struct {
    npy_int64 const *data;
    int nd;
    npy_intp shape[2];
    npy_intp step[2];
    npy_int64 own[LISTED_MAX];
} Operand;

static inline int
read_number(PyObject *object, npy_int64 *number)
{
    if (PyLong_CheckExact(object)) {
        int overflow;
        *number = PyLong_AsLongLongAndOverflow(object, &overflow);
        return !overflow;
    }
    if (Py_IS_TYPE(object, &PyInt64ArrType_Type)) {
        *number = PyArrayScalar_VAL(object, Int64);
        return 1;
    }
    return 0;
}

static inline void
give_shape(Operand *operand, int nd, npy_intp rows, npy_intp columns)
{
    operand->nd = nd;
    operand->shape[0] = rows;
    operand->shape[1] = columns;
    operand->step[0] = rows == 1 ? 0 : columns;
    operand->step[1] = columns == 1 ? 0 : 1;
}

static inline npy_intp
distance(npy_intp step)
{
    return step < 0 ? -step : step;
}

/* Return 1 and the operand; or 0 where NumPy has to see what the object is. */
static inline int
read_operand(PyObject *object, Operand *operand)
{
    if (!is_array(object)) {
        operand->data = operand->own;
        give_shape(operand, 0, 1, 1);
        return read_number(object, operand->own);
    }
    PyArrayObject_fields *array = FIELDS(object);
    if (array->descr != int64 || array->nd > 2 || !(array->flags & NPY_ARRAY_ALIGNED)) {
        return 0;
    }
    operand->data = AS_INTS(object);
    operand->nd = array->nd;
    operand->shape[0] = operand->shape[1] = 1;
    operand->step[0] = operand->step[1] = 0;
    for (int axis = 0, at = 2 - array->nd; axis < array->nd; axis++, at++) {
        operand->shape[at] = array->dimensions[axis];
        if (operand->shape[at] != 1) {
            /* Aligned, so a whole number of elements. */
            operand->step[at] = array->strides[axis] / (npy_intp)sizeof(npy_int64);
        }
    }
    /* NumPy lays a result out as its operands are; here it lies row by row. */
    return operand->step[1] == 0 || operand->step[0] == 0 ||
           distance(operand->step[0]) >= distance(operand->step[1]);
}

/* The same of a value to be written, which may be a list or a tuple of numbers. */
static inline int
read_value(PyObject *object, Operand *operand)
{
    if (!PyList_CheckExact(object) && !PyTuple_CheckExact(object)) {
        return read_operand(object, operand);
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    if (count > LISTED_MAX) {
        return 0;
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *item = PySequence_Fast_GET_ITEM(object, place);
        if (!PyLong_CheckExact(item) || !read_number(item, &operand->own[place])) {
            return 0;
        }
    }
    operand->data = operand->own;
    give_shape(operand, 1, 1, count);
    return 1;
}

/* Return 1 and the common shape; or 0 where there is none, or no axis. */
static inline int
broadcast(Operand const *one, Operand const *two, int *nd, npy_intp shape[2])
{
    for (int axis = 0; axis < 2; axis++) {
        shape[axis] = one->shape[axis] == 1 ? two->shape[axis] : one->shape[axis];
        if (two->shape[axis] != shape[axis] && two->shape[axis] != 1) {
            return 0;
        }
    }
    *nd = one->nd > two->nd ? one->nd : two->nd;
    return *nd > 0;
}

static inline PyObject *
new_of_shape(PyArray_Descr *descr, int nd, npy_intp const shape[2])
{
    return new_array(descr, nd, shape + 2 - nd);
}

/* -- reading and writing by index -------------------------------------------------------------- */

/* Part of an array that is a row: its first element, counted in memory, their number and step. */
typedef struct {
    npy_intp start, count, step;
} Region;

/* Read a bound of a slice, which is `other` where it is None. */
static inline int
read_bound(PyObject *object, npy_int64 other, npy_int64 *bound)
{
    *bound = other;
    return object == Py_None || read_number(object, bound);
}

/* Cut a slice out of a region. */
static inline int
cut(PyObject *object, Region *region)
{
    PySliceObject *slice = (PySliceObject *)object;
    npy_int64 start, stop, step;
    if (slice == NULL || !PySlice_Check(object) || !read_bound(slice->step, 1, &step) ||
        step == 0 || step < -PY_SSIZE_T_MAX ||
        !read_bound(slice->start, step < 0 ? PY_SSIZE_T_MAX : 0, &start) ||
        !read_bound(slice->stop, step < 0 ? PY_SSIZE_T_MIN : PY_SSIZE_T_MAX, &stop)) {
        return 0;
    }
    region->count = PySlice_AdjustIndices(region->count, &start, &stop, step);
    region->start += start * region->step;
    region->step *= region->count > 1 ? step : 1; /* of one element it may be beyond all bounds */
    return 1;
}

/* Read an index into `length` elements, as a place from 0 on. */
static inline int
read_place(PyObject *key, npy_intp length, npy_intp *place)
{
    npy_int64 number;
    if (!read_number(key, &number) || number < -length || number >= length) {
        return 0;
    }
    *place = number < 0 ? number + length : number;
    return 1;
}

/* Return 1 and the row that a slice cuts out of a row, or of a table [row], [row, slice] or
   [slice, column]; 0: the key is something else. */
static inline int
read_region(PyObject *self, PyObject *key, Region *region)
{
    PyArrayObject_fields *array = FIELDS(self);
    npy_intp size = size_of(array->descr), place;
    if (array->nd == 1) {
        *region = (Region){0, array->dimensions[0], array->strides[0] / size};
        return cut(key, region);
    }
    if (array->nd != 2) {
        return 0;
    }
    Region down = {0, array->dimensions[0], array->strides[0] / size};
    Region along = {0, array->dimensions[1], array->strides[1] / size};
    PyObject *first = key, *second = NULL;
    if (PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == 2) {
        first = PyTuple_GET_ITEM(key, 0);
        second = PyTuple_GET_ITEM(key, 1);
    }
    if (read_place(first, down.count, &place)) {
        *region = along;
        region->start = place * down.step;
        return second == NULL || cut(second, region);
    }
    if (second != NULL && read_place(second, along.count, &place)) {
        *region = down;
        region->start = place * along.step;
        return cut(first, region);
    }
    return 0;
}

/* Whether places lie within `length` elements: no, yes, or counted from the end some of them. */
typedef enum { OUTSIDE, WITHIN, FROM_END } Where;

/* Whether some places are not between 0 and `last`: a difference has a sign. */
WIDE static int
some_outside(npy_int64 const *places, npy_intp count, npy_intp step, npy_int64 last)
{
    npy_uint64 signs = 0;
    if (step == 1) {
        UNROLLED
        for (npy_intp k = 0; k < count; k++) {
            signs |= UNSIGNED(places[k]) | (UNSIGNED(last) - UNSIGNED(places[k]));
        }
    }
    else {
        for (npy_intp k = 0; k < count; k++) {
            signs |= UNSIGNED(places[k * step]) | (UNSIGNED(last) - UNSIGNED(places[k * step]));
        }
    }
    return signs >> 63;
}

static inline Where
where(Operand const *places, npy_intp length)
{
    npy_int64 least = 0, last = -1;
    npy_intp rows = places->shape[0], count = places->shape[1], step = places->step[1];
    Where found = WITHIN;
    if (step == 1 && places->step[0] == count) { /* a table like a row */
        count *= rows;
        rows = 1;
    }
    for (npy_intp r = 0; r < rows; r++) {
        npy_int64 const *row = places->data + r * places->step[0];
        if (some_outside(row, count, step, length - 1)) {
            for (npy_intp k = 0; k < count; k++) {
                least = row[k * step] < least ? row[k * step] : least;
                last = row[k * step] > last ? row[k * step] : last;
            }
            found = FROM_END;
        }
    }
    return least >= -length && last < length ? found : OUTSIDE;
}

static inline npy_intp
wrapped(npy_int64 place, npy_intp length)
{
    return place < 0 ? place + length : place;
}

static inline npy_intp
count_true(npy_bool const *mask, npy_intp length)
{
    npy_intp count = 0;
    for (npy_intp k = 0; k < length; k++) {
        count += mask[k] != 0;
    }
    return count;
}

static inline npy_intp
count_nonzero(npy_int64 const *numbers, npy_intp length)
{
    npy_intp count = 0;
    for (npy_intp k = 0; k < length; k++) {
        count += numbers[k] != 0;
    }
    return count;
}

/* Copy elements at places. Nearly always they are places from the begin in what lies side by side,
   and of the blocks of a prompt there are hundreds. */
#define GATHER(type)                                                                              \
    do {                                                                                          \
        type const *from = (type const *)FIELDS(self)->data;                                      \
        type *to = (type *)FIELDS(result)->data;                                                  \
        npy_intp step = FIELDS(self)->strides[0] / (npy_intp)sizeof(type);                        \
        if (keep != NULL) {                                                                       \
            for (npy_intp k = 0; k < length; k++) {                                               \
                if (keep[k]) {                                                                    \
                    *to++ = from[k * step];                                                       \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        else if (found == WITHIN && step == 1 && at_step == 1) {                                  \
            UNROLLED                                                                              \
            for (npy_intp k = 0; k < count; k++) {                                                \
                to[k] = from[at[k]];                                                              \
            }                                                                                     \
        }                                                                                         \
        else {                                                                                    \
            for (npy_intp k = 0; k < count; k++) {                                                \
                to[k] = from[wrapped(at[k * at_step], length) * step];                            \
            }                                                                                     \
        }                                                                                         \
    } while (0)

/* Return the elements of a row at places, or where a mask is true; NULL without an error: the key
   is neither, or no good. */
static inline PyObject *
gather(PyObject *self, PyObject *key)
{
    PyArray_Descr *descr = FIELDS(self)->descr;
    npy_intp length = FIELDS(self)->dimensions[0], count;
    npy_bool const *keep = NULL;
    npy_int64 const *at = NULL;
    npy_intp at_step = 0;
    Operand places;
    Where found = OUTSIDE;
    if (is_row(key, boolean)) {
        keep = AS_MASK(key);
        if (FIELDS(key)->dimensions[0] != length) {
            return NULL;
        }
        count = count_true(keep, length);
    }
    else {
        if (!read_operand(key, &places) || places.nd != 1 ||
            (found = where(&places, length)) == OUTSIDE) {
            return NULL;
        }
        count = places.shape[1];
        at = places.data;
        at_step = places.step[1];
    }
    PyObject *result = new_row(descr, count);
    if (result == NULL) {
        return NULL;
    }
    if (descr == int64) {
        GATHER(npy_int64);
    }
    else {
        GATHER(npy_bool);
    }
    return result;
}

static PyObject *
array_subscript(PyObject *self, PyObject *key)
{
    PyArrayObject_fields *array = FIELDS(self);
    PyArray_Descr *descr = array->descr;
    if ((descr == int64 || descr == boolean) && (array->flags & NPY_ARRAY_ALIGNED)) {
        Region region;
        npy_intp place;
        if (array->nd == 1 && is_array(key)) {
            PyObject *result = gather(self, key);
            if (result != NULL || PyErr_Occurred()) {
                return result;
            }
        }
        else if (read_region(self, key, &region)) {
            return view_of(self, region.start, region.count, region.step);
        }
        else if (array->nd == 1 && read_place(key, array->dimensions[0], &place)) {
            char *element = array->data + place * array->strides[0];
            return descr == int64 ? int64_scalar(*(npy_int64 *)element) : bool_scalar(*element);
        }
    }
    return PyArray_Type.tp_as_mapping->mp_subscript(self, key);
}

/* Write `value` to the elements of a row at places, or where a mask is true; 0: left to NumPy. */
static inline int
scatter(PyObject *self, PyObject *key, Operand const *value)
{
    npy_intp length = FIELDS(self)->dimensions[0];
    npy_intp step = FIELDS(self)->strides[0] / (npy_intp)sizeof(npy_int64);
    npy_int64 *to = AS_INTS(self);
    npy_int64 const *from = value->data;
    Operand places;
    if (may_overlap(self, key)) {
        return 0;
    }
    if (is_row(key, boolean)) {
        npy_bool const *keep = AS_MASK(key);
        if (FIELDS(key)->dimensions[0] != length ||
            (value->nd != 0 && value->shape[1] != count_true(keep, length))) {
            return 0;
        }
        for (npy_intp k = 0; k < length; k++) {
            if (keep[k]) {
                to[k * step] = *from;
                from += value->step[1];
            }
        }
        return 1;
    }
    Where found;
    if (!read_operand(key, &places) || places.nd != 1 ||
        (value->nd != 0 && value->shape[1] != places.shape[1]) ||
        (found = where(&places, length)) == OUTSIDE) {
        return 0;
    }
    npy_int64 const *at = places.data;
    npy_intp count = places.shape[1], at_step = places.step[1], value_step = value->step[1];
    int side_by_side = found == WITHIN && step == 1 && at_step == 1;
    if (side_by_side && value_step == 1) {
        UNROLLED
        for (npy_intp k = 0; k < count; k++) {
            to[at[k]] = from[k];
        }
    }
    else if (side_by_side && value_step == 0) {
        npy_int64 number = *from;
        UNROLLED
        for (npy_intp k = 0; k < count; k++) {
            to[at[k]] = number;
        }
    }
    else {
        for (npy_intp k = 0; k < count; k++) {
            to[wrapped(at[k * at_step], length) * step] = from[k * value_step];
        }
    }
    return 1;
}

/* The same for a table, at pairs of rows and columns that go along with each other. */
static inline int
scatter_pairs(PyObject *self, PyObject *rows, PyObject *columns, Operand const *value)
{
    PyArrayObject_fields *array = FIELDS(self);
    Operand down, along;
    int nd;
    npy_intp shape[2];
    if (!is_array(rows) || !is_array(columns) || may_overlap(self, rows) ||
        may_overlap(self, columns) || !read_operand(rows, &down) ||
        !read_operand(columns, &along) || !broadcast(&down, &along, &nd, shape) ||
        where(&down, array->dimensions[0]) == OUTSIDE ||
        where(&along, array->dimensions[1]) == OUTSIDE ||
        (value->nd != 0 && (value->nd != nd || value->shape[0] != shape[0] ||
                            value->shape[1] != shape[1]))) {
        return 0;
    }
    npy_intp length = array->dimensions[0], width = array->dimensions[1];
    npy_intp row_step = array->strides[0] / (npy_intp)sizeof(npy_int64);
    npy_intp column_step = array->strides[1] / (npy_intp)sizeof(npy_int64);
    npy_intp count = shape[1], down_step = down.step[1], along_step = along.step[1];
    npy_intp value_step = value->step[1];
    npy_int64 *to = AS_INTS(self);
    for (npy_intp r = 0; r < shape[0]; r++) {
        npy_int64 const *rows_at = down.data + r * down.step[0];
        npy_int64 const *columns_at = along.data + r * along.step[0];
        npy_int64 const *from = value->data + r * value->step[0];
        for (npy_intp k = 0; k < count; k++) {
            npy_int64 row = wrapped(rows_at[k * down_step], length);
            npy_int64 column = wrapped(columns_at[k * along_step], width);
            to[row * row_step + column * column_step] = from[k * value_step];
        }
    }
    return 1;
}

/* Write a value, and return 1; or return 0 and leave all of it to NumPy. */
static inline int
assign(PyObject *self, PyObject *key, PyObject *object)
{
    PyArrayObject_fields *array = FIELDS(self);
    int const needed = NPY_ARRAY_ALIGNED | NPY_ARRAY_WRITEABLE;
    Operand value;
    Region region;
    npy_intp place;
    if (object == NULL || array->descr != int64 || (array->flags & needed) != needed ||
        !read_value(object, &value) || (is_array(object) && may_overlap(self, object))) {
        return 0;
    }
    if (array->nd == 1 && is_array(key)) {
        return value.nd < 2 && scatter(self, key, &value);
    }
    if (read_region(self, key, &region)) {
        if (value.nd > 1 || (value.nd == 1 && value.shape[1] != region.count)) {
            return 0;
        }
        npy_int64 *to = AS_INTS(self) + region.start;
        if (region.step == 1 && value.step[1] == 1) {
            memcpy(to, value.data, region.count * sizeof(npy_int64));
            return 1;
        }
        for (npy_intp k = 0; k < region.count; k++) {
            to[k * region.step] = value.data[k * value.step[1]];
        }
        return 1;
    }
    if (array->nd == 1 && value.nd == 0 && read_place(key, array->dimensions[0], &place)) {
        *(npy_int64 *)(array->data + place * array->strides[0]) = *value.data;
        return 1;
    }
    return array->nd == 2 && PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == 2 &&
           scatter_pairs(self, PyTuple_GET_ITEM(key, 0), PyTuple_GET_ITEM(key, 1), &value);
}

static int
array_assign(PyObject *self, PyObject *key, PyObject *value)
{
    if (assign(self, key, value)) {
        return 0;
    }
    return PyArray_Type.tp_as_mapping->mp_ass_subscript(self, key, value);
}

/* -- arithmetic and comparisons ---------------------------------------------------------------- */

typedef enum {
    ADD, SUBTRACT, MULTIPLY, FLOOR_DIVIDE, AND, OR, SHIFT_LEFT, SHIFT_RIGHT, MAXIMUM, MINIMUM
} Operation;

/* Two operands that go along with each other, and the steps from one pair of numbers to the next. */
typedef struct {
    npy_intp rows, count, x_row_step, y_row_step, x_step, y_step;
    npy_int64 const *xs, *ys;
} Pairs;

static inline int
is_joined(Operand const *operand, npy_intp count)
{
    return operand->step[0] == count * operand->step[1];
}

/* Where a table of either is as good as a row, or has one column only, the pairs are a row. */
static inline Pairs
pairs_of(Operand const *one, Operand const *two, npy_intp const shape[2])
{
    int across = shape[1] == 1;
    Pairs pairs = {shape[0], shape[1], one->step[0], two->step[0], one->step[across ? 0 : 1],
                   two->step[across ? 0 : 1], one->data, two->data};
    if (across || (is_joined(one, shape[1]) && is_joined(two, shape[1]))) {
        pairs.count *= pairs.rows;
        pairs.rows = 1;
    }
    return pairs;
}

/* For each pair of numbers x and y. Those that lie side by side are apart from the rest, so that a
   compiler can take several at once; of a few that is no gain. */
#define ALONG(left, right, expression)                                                            \
    for (npy_intp k = 0; k < count; k++) {                                                        \
        npy_int64 x = (left), y = (right);                                                        \
        to[k] = (expression);                                                                     \
    }

#define EACH(expression)                                                                          \
    for (npy_intp r = 0; r < pairs.rows; r++, to += count) {                                      \
        npy_int64 const *xs = pairs.xs + r * pairs.x_row_step;                                    \
        npy_int64 const *ys = pairs.ys + r * pairs.y_row_step;                                    \
        if (count > FEW && pairs.x_step == 1 && pairs.y_step == 1) {                              \
            UNROLLED                                                                              \
            ALONG(xs[k], ys[k], expression)                                                       \
        }                                                                                         \
        else if (count > FEW && pairs.x_step == 1 && pairs.y_step == 0) {                         \
            npy_int64 const same = *ys;                                                           \
            UNROLLED                                                                              \
            ALONG(xs[k], same, expression)                                                        \
        }                                                                                         \
        else {                                                                                    \
            ALONG(xs[k * pairs.x_step], ys[k * pairs.y_step], expression)                         \
        }                                                                                         \
    }                                                                                             \
    break

/* Write the results side by side. `to` may be where one of the operands lies side by side, too. */
WIDE static void
calculate(Operation operation, npy_int64 *to, Pairs pairs)
{
    npy_intp const count = pairs.count;
    switch (operation) {
    case ADD:
        EACH((npy_int64)(UNSIGNED(x) + UNSIGNED(y)));
    case SUBTRACT:
        EACH((npy_int64)(UNSIGNED(x) - UNSIGNED(y)));
    case MULTIPLY:
        EACH((npy_int64)(UNSIGNED(x) * UNSIGNED(y)));
    case FLOOR_DIVIDE:
        EACH(x / y - (x % y < 0));
    case AND:
        EACH(x & y);
    case OR:
        EACH(x | y);
    case SHIFT_LEFT:
        EACH((npy_int64)(UNSIGNED(x) << y));
    case SHIFT_RIGHT:
        EACH(x >> y);
    case MAXIMUM:
        EACH(x > y ? x : y);
    case MINIMUM:
        EACH(x < y ? x : y);
    }
}

/* Tell whether the operation is defined in C for these right operands, whatever the left ones. */
static inline int
is_defined(Operation operation, Operand const *right)
{
    if (operation == FLOOR_DIVIDE) {
        return right->nd == 0 && *right->data > 0;
    }
    if (operation == SHIFT_LEFT || operation == SHIFT_RIGHT) {
        return right->nd == 0 && *right->data >= 0 && *right->data < 64;
    }
    return 1;
}

static inline int
are_masks_alike(PyObject *one, PyObject *two)
{
    return is_array(one) && is_array(two) && is_solid(one, boolean) && is_solid(two, boolean) &&
           (FIELDS(one)->nd == 1 || FIELDS(one)->nd == 2) &&
           PyArray_SAMESHAPE((PyArrayObject *)one, (PyArrayObject *)two);
}

static inline void
combine_masks(Operation operation, npy_bool *to, PyObject *one, PyObject *two)
{
    npy_bool const *x = AS_MASK(one), *y = AS_MASK(two);
    npy_intp count = count_of(one);
    for (npy_intp k = 0; k < count; k++) {
        to[k] = operation == AND ? x[k] && y[k] : x[k] || y[k];
    }
}

/* Return the result; NULL without an error: left to NumPy. */
static inline PyObject *
operate(Operation operation, PyObject *left, PyObject *right)
{
    Operand one, two;
    PyObject *result = NULL;
    int nd;
    npy_intp shape[2];
    if (read_operand(left, &one) && read_operand(right, &two)) {
        if (is_defined(operation, &two) && broadcast(&one, &two, &nd, shape)) {
            result = new_of_shape(int64, nd, shape);
            if (result != NULL) {
                calculate(operation, AS_INTS(result), pairs_of(&one, &two, shape));
            }
        }
    }
    else if ((operation == AND || operation == OR) && are_masks_alike(left, right)) {
        result = new_array(boolean, FIELDS(left)->nd, FIELDS(left)->dimensions);
        if (result != NULL) {
            combine_masks(operation, AS_MASK(result), left, right);
        }
    }
    return result;
}

/* Write the result over the left operand and return 1; or return 0 and leave it to NumPy. */
static inline int
operate_in_place(Operation operation, PyObject *left, PyObject *right)
{
    Operand one, two;
    int nd;
    npy_intp shape[2];
    if (!is_array(left) || !(FIELDS(left)->flags & NPY_ARRAY_WRITEABLE) ||
        (is_array(right) && right != left && may_overlap(left, right))) {
        return 0;
    }
    if (is_solid(left, int64) && read_operand(left, &one) && read_operand(right, &two)) {
        if (!is_defined(operation, &two) || !broadcast(&one, &two, &nd, shape) || nd != one.nd ||
            shape[0] != one.shape[0] || shape[1] != one.shape[1]) {
            return 0;
        }
        calculate(operation, AS_INTS(left), pairs_of(&one, &two, shape));
        return 1;
    }
    if ((operation == AND || operation == OR) && are_masks_alike(left, right)) {
        combine_masks(operation, AS_MASK(left), left, right);
        return 1;
    }
    return 0;
}

#define BINARY(name, operation)                                                                   \
    static PyObject *array_##name(PyObject *left, PyObject *right)                                \
    {                                                                                             \
        PyObject *result = operate(operation, left, right);                                       \
        if (result != NULL || PyErr_Occurred()) {                                                 \
            return result;                                                                        \
        }                                                                                         \
        return PyArray_Type.tp_as_number->nb_##name(left, right);                                 \
    }

#define IN_PLACE(name, operation)                                                                 \
    static PyObject *array_inplace_##name(PyObject *left, PyObject *right)                        \
    {                                                                                             \
        if (operate_in_place(operation, left, right)) {                                           \
            return Py_NewRef(left);                                                               \
        }                                                                                         \
        return PyArray_Type.tp_as_number->nb_inplace_##name(left, right);                         \
    }

BINARY(add, ADD)
BINARY(subtract, SUBTRACT)
BINARY(multiply, MULTIPLY)
BINARY(floor_divide, FLOOR_DIVIDE)
BINARY(and, AND)
BINARY(or, OR)
BINARY(lshift, SHIFT_LEFT)
BINARY(rshift, SHIFT_RIGHT)
IN_PLACE(add, ADD)
IN_PLACE(subtract, SUBTRACT)
IN_PLACE(and, AND)
IN_PLACE(or, OR)
IN_PLACE(rshift, SHIFT_RIGHT)

static PyObject *
array_negative(PyObject *self)
{
    PyObject *zero = PyLong_FromLong(0);
    PyObject *result = zero == NULL ? NULL : operate(SUBTRACT, zero, self);
    Py_XDECREF(zero);
    if (result != NULL || PyErr_Occurred()) {
        return result;
    }
    return PyArray_Type.tp_as_number->nb_negative(self);
}

static PyObject *
array_invert(PyObject *self)
{
    if (!is_row(self, boolean)) {
        return PyArray_Type.tp_as_number->nb_invert(self);
    }
    npy_intp count = FIELDS(self)->dimensions[0];
    PyObject *result = new_row(boolean, count);
    for (npy_intp k = 0; result != NULL && k < count; k++) {
        AS_MASK(result)[k] = !AS_MASK(self)[k];
    }
    return result;
}

WIDE static void
compare(int operation, npy_bool *to, Pairs pairs)
{
    npy_intp const count = pairs.count;
    switch (operation) {
    case Py_LT:
        EACH(x < y);
    case Py_LE:
        EACH(x <= y);
    case Py_EQ:
        EACH(x == y);
    case Py_NE:
        EACH(x != y);
    case Py_GT:
        EACH(x > y);
    case Py_GE:
        EACH(x >= y);
    }
}

static PyObject *
array_richcompare(PyObject *self, PyObject *other, int operation)
{
    Operand one, two;
    int nd;
    npy_intp shape[2];
    if (!read_operand(self, &one) || !read_operand(other, &two) ||
        !broadcast(&one, &two, &nd, shape)) {
        return PyArray_Type.tp_richcompare(self, other, operation);
    }
    PyObject *result = new_of_shape(boolean, nd, shape);
    if (result != NULL) {
        compare(operation, AS_MASK(result), pairs_of(&one, &two, shape));
    }
    return result;
}

/* -- methods ----------------------------------------------------------------------------------- */

/* Those that have a fast path. ndarray's own are looked up once and called with what was given. */
#define METHODS(EACH_OF)                                                                          \
    EACH_OF(__array_wrap__) EACH_OF(all) EACH_OF(any) EACH_OF(argmax) EACH_OF(argmin)             \
    EACH_OF(argsort) EACH_OF(copy) EACH_OF(cumsum) EACH_OF(fill) EACH_OF(item) EACH_OF(nonzero)   \
    EACH_OF(ravel) EACH_OF(repeat) EACH_OF(searchsorted) EACH_OF(sum) EACH_OF(tobytes)            \
    EACH_OF(tolist)

#define OWN(name) static PyObject *numpy_##name;
METHODS(OWN)

#define METHOD(name)                                                                              \
    static PyObject *array_##name(PyObject *self, PyObject *const *args, Py_ssize_t given,        \
                                  PyObject *names)
#define BARE (given == 0 && names == NULL)
#define ONE_ARGUMENT (given == 1 && names == NULL)
#define LEFT_TO_NUMPY(name) return by_numpy(numpy_##name, self, args, given, names)

static PyObject *
by_numpy(PyObject *method, PyObject *self, PyObject *const *args, Py_ssize_t given,
         PyObject *names)
{
    Py_ssize_t count = given + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject **all = PyMem_New(PyObject *, count + 1);
    if (all == NULL) {
        return PyErr_NoMemory();
    }
    all[0] = self;
    for (Py_ssize_t place = 0; place < count; place++) {
        all[place + 1] = args[place];
    }
    PyObject *result = PyObject_Vectorcall(method, all, given + 1, names);
    PyMem_Free(all);
    return result;
}

/* What NumPy gives a result to before it returns it. Of a subclass it would leave a single number an
   array without axes; here it becomes a scalar, as it does of an ndarray. */
METHOD(__array_wrap__)
{
    if (given == 3 && names == NULL && PyArray_CheckExact(args[0])) {
        if (args[2] == Py_True && FIELDS(args[0])->nd == 0) {
            return PyArray_Return((PyArrayObject *)Py_NewRef(args[0]));
        }
        return PyArray_View((PyArrayObject *)args[0], NULL, &FastArray);
    }
    LEFT_TO_NUMPY(__array_wrap__);
}

METHOD(all)
{
    if (BARE && is_solid(self, boolean)) {
        npy_intp count = count_of(self);
        return bool_scalar(count_true(AS_MASK(self), count) == count);
    }
    LEFT_TO_NUMPY(all);
}

METHOD(any)
{
    if (BARE && is_solid(self, boolean)) {
        return bool_scalar(count_true(AS_MASK(self), count_of(self)) > 0);
    }
    LEFT_TO_NUMPY(any);
}

/* Return the place of the first number for which no other is better; the count is at least 1. */
#define FIRST_BEST(name, better)                                                                  \
    WIDE static npy_intp name(npy_int64 const *numbers, npy_intp count)                           \
    {                                                                                             \
        npy_intp place = 0;                                                                       \
        npy_int64 best = numbers[0];                                                              \
        for (npy_intp at = 0; at < count; at += BLOCK) {                                          \
            npy_int64 its = numbers[at];                                                          \
            npy_intp end = count - at < BLOCK ? count : at + BLOCK;                               \
            UNROLLED                                                                              \
            for (npy_intp k = at; k < end; k++) {                                                 \
                its = numbers[k] better its ? numbers[k] : its;                                   \
            }                                                                                     \
            if (its better best) {                                                                \
                best = its;                                                                       \
                place = at;                                                                       \
            }                                                                                     \
        }                                                                                         \
        while (numbers[place] != best) {                                                          \
            place++;                                                                              \
        }                                                                                         \
        return place;                                                                             \
    }

FIRST_BEST(first_most, >)
FIRST_BEST(first_least, <)

/* Return the place of the first that is as `truth` says, or 0. */
static inline npy_intp
first_like(npy_bool const *mask, npy_intp count, int truth)
{
    for (npy_intp k = 0; k < count; k++) {
        if ((mask[k] != 0) == truth) {
            return k;
        }
    }
    return 0;
}

METHOD(argmax)
{
    npy_intp count = count_of(self);
    if (BARE && count && is_solid(self, int64)) {
        return int64_scalar(first_most(AS_INTS(self), count));
    }
    if (BARE && count && is_solid(self, boolean)) {
        return int64_scalar(first_like(AS_MASK(self), count, 1));
    }
    LEFT_TO_NUMPY(argmax);
}

METHOD(argmin)
{
    npy_intp count = count_of(self);
    if (BARE && count && is_solid(self, int64)) {
        return int64_scalar(first_least(AS_INTS(self), count));
    }
    if (BARE && count && is_solid(self, boolean)) {
        return int64_scalar(first_like(AS_MASK(self), count, 0));
    }
    LEFT_TO_NUMPY(argmin);
}

/* Sort places by insertion. Where equals may come in any order, what they come in is NumPy's
   affair: return 0 if there are any and `stable` is not asked for. */
static inline int
sort_places(npy_int64 *places, npy_int64 const *numbers, npy_intp count, int stable)
{
    for (npy_intp k = 0; k < count; k++) {
        npy_intp to = k;
        while (to > 0 && numbers[places[to - 1]] > numbers[k]) {
            places[to] = places[to - 1];
            to--;
        }
        if (!stable && to > 0 && numbers[places[to - 1]] == numbers[k]) {
            return 0;
        }
        places[to] = k;
    }
    return 1;
}

METHOD(argsort)
{
    int stable = given == 0 && names != NULL && PyTuple_GET_SIZE(names) == 1 &&
                 PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "kind") == 0 &&
                 PyUnicode_Check(args[0]) &&
                 PyUnicode_CompareWithASCIIString(args[0], "stable") == 0;
    if ((BARE || stable) && is_row(self, int64) && count_of(self) <= LISTED_MAX) {
        npy_intp count = count_of(self);
        PyObject *result = new_row(int64, count);
        if (result == NULL || sort_places(AS_INTS(result), AS_INTS(self), count, stable)) {
            return result;
        }
        Py_DECREF(result);
    }
    LEFT_TO_NUMPY(argsort);
}

METHOD(copy)
{
    PyArray_Descr *descr = FIELDS(self)->descr;
    Operand numbers;
    if (BARE && (is_row(self, int64) || is_row(self, boolean))) {
        npy_intp count = count_of(self);
        PyObject *result = new_row(descr, count);
        if (result != NULL) {
            memcpy(FIELDS(result)->data, FIELDS(self)->data, count * size_of(descr));
        }
        return result;
    }
    if (BARE && read_operand(self, &numbers) && numbers.nd == 1) {
        npy_int64 const *from = numbers.data;
        npy_intp count = numbers.shape[1], step = numbers.step[1];
        PyObject *result = new_row(int64, count);
        npy_int64 *to = result == NULL ? NULL : AS_INTS(result);
        for (npy_intp k = 0; to != NULL && k < count; k++) {
            to[k] = from[k * step];
        }
        return result;
    }
    LEFT_TO_NUMPY(copy);
}

METHOD(cumsum)
{
    if (BARE && is_row(self, int64)) {
        npy_intp count = count_of(self);
        npy_uint64 sum = 0;
        PyObject *result = new_row(int64, count);
        for (npy_intp k = 0; result != NULL && k < count; k++) {
            sum += UNSIGNED(AS_INTS(self)[k]);
            AS_INTS(result)[k] = (npy_int64)sum;
        }
        return result;
    }
    LEFT_TO_NUMPY(cumsum);
}

METHOD(fill)
{
    npy_int64 number;
    if (ONE_ARGUMENT && is_solid(self, int64) && (FIELDS(self)->flags & NPY_ARRAY_WRITEABLE) &&
        read_number(args[0], &number)) {
        npy_intp count = count_of(self);
        for (npy_intp k = 0; k < count; k++) {
            AS_INTS(self)[k] = number;
        }
        Py_RETURN_NONE;
    }
    LEFT_TO_NUMPY(fill);
}

METHOD(item)
{
    if (is_solid(self, int64)) {
        npy_intp count = count_of(self), place = 0;
        if (BARE ? count == 1 : ONE_ARGUMENT && read_place(args[0], count, &place)) {
            return PyLong_FromLongLong(AS_INTS(self)[place]);
        }
    }
    LEFT_TO_NUMPY(item);
}

METHOD(nonzero)
{
    int is_mask = is_row(self, boolean);
    if (BARE && (is_mask || is_row(self, int64))) {
        npy_intp length = count_of(self);
        PyObject *places = new_row(int64, is_mask ? count_true(AS_MASK(self), length)
                                                  : count_nonzero(AS_INTS(self), length));
        if (places == NULL) {
            return NULL;
        }
        npy_int64 *to = AS_INTS(places);
        for (npy_intp k = 0; k < length; k++) {
            if (is_mask ? AS_MASK(self)[k] != 0 : AS_INTS(self)[k] != 0) {
                *to++ = k;
            }
        }
        PyObject *result = PyTuple_Pack(1, places);
        Py_DECREF(places);
        return result;
    }
    LEFT_TO_NUMPY(nonzero);
}

METHOD(ravel)
{
    if (BARE && is_solid(self, int64)) {
        return view_of(self, 0, count_of(self), 1);
    }
    LEFT_TO_NUMPY(ravel);
}

METHOD(repeat)
{
    Operand times;
    if (ONE_ARGUMENT && is_row(self, int64) && read_value(args[0], &times) && times.nd < 2) {
        npy_intp count = count_of(self), total = 0;
        int good = times.nd == 0 || times.shape[1] == count;
        for (npy_intp k = 0; good && k < count; k++) {
            npy_int64 more = times.data[k * times.step[1]];
            good = more >= 0 && more <= NPY_MAX_INT32 && (total += more) <= NPY_MAX_INT32;
        }
        PyObject *result = good ? new_row(int64, total) : NULL;
        if (result != NULL) {
            npy_int64 *to = AS_INTS(result);
            for (npy_intp k = 0; k < count; k++) {
                npy_int64 number = AS_INTS(self)[k], *end = to + times.data[k * times.step[1]];
                while (to < end) {
                    *to++ = number;
                }
            }
        }
        if (good) {
            return result;
        }
    }
    LEFT_TO_NUMPY(repeat);
}

/* Return the place before which `number` belongs, between `low` and `high`. */
static inline npy_intp
search(npy_int64 const *sorted, npy_int64 number, npy_intp low, npy_intp high)
{
    while (low < high) {
        npy_intp middle = low + (high - low) / 2;
        if (sorted[middle] < number) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

METHOD(searchsorted)
{
    Operand wanted;
    if (ONE_ARGUMENT && is_row(self, int64) && read_operand(args[0], &wanted) && wanted.nd < 2) {
        npy_intp count = count_of(self);
        if (wanted.nd == 0) {
            return int64_scalar(search(AS_INTS(self), *wanted.data, 0, count));
        }
        PyObject *result = new_row(int64, wanted.shape[1]);
        npy_int64 last = NPY_MIN_INT64;
        npy_intp place = 0;
        for (npy_intp k = 0; result != NULL && k < wanted.shape[1]; k++) {
            npy_int64 number = wanted.data[k * wanted.step[1]];
            /* What is ascending is found near what was found last. */
            npy_intp low = number < last ? 0 : place, reach = 1;
            while (low + reach < count && AS_INTS(self)[low + reach] < number) {
                low += reach;
                reach *= 2;
            }
            place = search(AS_INTS(self), number, low, low + reach < count ? low + reach : count);
            AS_INTS(result)[k] = place;
            last = number;
        }
        return result;
    }
    LEFT_TO_NUMPY(searchsorted);
}

METHOD(sum)
{
    if (BARE && is_solid(self, int64)) {
        npy_intp count = count_of(self);
        npy_uint64 sum = 0;
        for (npy_intp k = 0; k < count; k++) {
            sum += UNSIGNED(AS_INTS(self)[k]);
        }
        return int64_scalar((npy_int64)sum);
    }
    LEFT_TO_NUMPY(sum);
}

METHOD(tobytes)
{
    PyArray_Descr *descr = FIELDS(self)->descr;
    if (BARE && (is_solid(self, int64) || is_solid(self, boolean))) {
        return PyBytes_FromStringAndSize(FIELDS(self)->data, count_of(self) * size_of(descr));
    }
    LEFT_TO_NUMPY(tobytes);
}

/* Return the numbers of a row, or of each row of a table, as a list. */
static PyObject *
list_of(npy_int64 const *numbers, int nd, npy_intp const *shape)
{
    PyObject *result = PyList_New(shape[0]);
    for (npy_intp k = 0; result != NULL && k < shape[0]; k++) {
        PyObject *item = nd == 1 ? PyLong_FromLongLong(numbers[k])
                                 : list_of(numbers + k * shape[1], 1, shape + 1);
        if (item == NULL) {
            Py_CLEAR(result);
        }
        else {
            PyList_SET_ITEM(result, k, item);
        }
    }
    return result;
}

METHOD(tolist)
{
    int nd = FIELDS(self)->nd;
    if (BARE && (nd == 1 || nd == 2) && is_solid(self, int64)) {
        return list_of(AS_INTS(self), nd, FIELDS(self)->dimensions);
    }
    LEFT_TO_NUMPY(tolist);
}

/* -- functions --------------------------------------------------------------------------------- */

/* NumPy's functions of these names, with a fast path before them. */
#define FUNCTIONS(EACH_OF)                                                                        \
    EACH_OF(arange) EACH_OF(concatenate) EACH_OF(count_nonzero) EACH_OF(maximum) EACH_OF(minimum)

#define OWN_FUNCTION(name) static PyObject *numpy_function_##name;
FUNCTIONS(OWN_FUNCTION)

#define FUNCTION(name)                                                                            \
    static PyObject *fast_##name(PyObject *Py_UNUSED(module), PyObject *const *args,              \
                                 Py_ssize_t given, PyObject *names)
#define CALL_NUMPY(name) return PyObject_Vectorcall(numpy_function_##name, args, given, names)

FUNCTION(arange)
{
    npy_int64 bounds[3] = {0, 0, 1}; /* start, stop, step */
    int good = names == NULL && 0 < given && given <= 3;
    for (Py_ssize_t place = 0; good && place < given; place++) {
        good = read_number(args[place], &bounds[given == 1 ? 1 : place]);
    }
    npy_int64 start = bounds[0], stop = bounds[1], step = bounds[2];
    if (good && start >= 0 && stop >= 0 && step > 0) {
        npy_intp count = stop > start ? (stop - start - 1) / step + 1 : 0;
        PyObject *result = new_row(int64, count);
        npy_int64 *to = result == NULL ? NULL : AS_INTS(result);
        UNROLLED
        for (npy_intp k = 0; to != NULL && k < count; k++) {
            to[k] = start + k * step;
        }
        return result;
    }
    CALL_NUMPY(arange);
}

FUNCTION(concatenate)
{
    PyObject *parts = given == 1 && names == NULL ? args[0] : Py_None;
    if (PyList_CheckExact(parts) || PyTuple_CheckExact(parts)) {
        Py_ssize_t many = PySequence_Fast_GET_SIZE(parts);
        npy_intp total = 0;
        int good = many > 0;
        for (Py_ssize_t place = 0; good && place < many; place++) {
            PyObject *part = PySequence_Fast_GET_ITEM(parts, place);
            good = is_array(part) && is_row(part, int64);
            total += good ? count_of(part) : 0;
        }
        PyObject *result = good ? new_row(int64, total) : NULL;
        if (result != NULL) {
            npy_int64 *to = AS_INTS(result);
            for (Py_ssize_t place = 0; place < many; place++) {
                PyObject *part = PySequence_Fast_GET_ITEM(parts, place);
                memcpy(to, AS_INTS(part), count_of(part) * sizeof(npy_int64));
                to += count_of(part);
            }
        }
        if (good) {
            return result;
        }
    }
    CALL_NUMPY(concatenate);
}

static int counts_are_scalars; /* NumPy's were Python's numbers before 2.4 */

FUNCTION(count_nonzero)
{
    PyObject *array = given == 1 && names == NULL ? args[0] : Py_None;
    int is_mask = is_array(array) && is_solid(array, boolean);
    if (is_mask || (is_array(array) && is_solid(array, int64))) {
        npy_intp count = is_mask ? count_true(AS_MASK(array), count_of(array))
                                 : count_nonzero(AS_INTS(array), count_of(array));
        return counts_are_scalars ? int64_scalar(count) : PyLong_FromSsize_t(count);
    }
    CALL_NUMPY(count_nonzero);
}

#define PAIRWISE(name, operation)                                                                 \
    FUNCTION(name)                                                                                \
    {                                                                                             \
        PyObject *result = NULL;                                                                  \
        if (given == 2 && names == NULL) {                                                        \
            result = operate(operation, args[0], args[1]);                                        \
        }                                                                                         \
        if (result != NULL || PyErr_Occurred()) {                                                 \
            return result;                                                                        \
        }                                                                                         \
        CALL_NUMPY(name);                                                                         \
    }

PAIRWISE(maximum, MAXIMUM)
PAIRWISE(minimum, MINIMUM)

/* Return the same memory as a FastArray. */
static PyObject *
fast_quick(PyObject *Py_UNUSED(module), PyObject *array)
{
    if (Py_IS_TYPE(array, &FastArray)) {
        return Py_NewRef(array);
    }
    if (is_array(array) && (is_row(array, int64) || is_row(array, boolean))) {
        return view_of(array, 0, count_of(array), 1);
    }
    if (!PyArray_Check(array)) {
        return PyErr_Format(PyExc_TypeError, "quick() takes an array, not %s",
                            Py_TYPE(array)->tp_name);
    }
    return PyArray_View((PyArrayObject *)array, NULL, &FastArray);
}

/* Return an array for so many numbers, with anything in it. */
static PyObject *
fast_ints(PyObject *Py_UNUSED(module), PyObject *count)
{
    Py_ssize_t number = PyNumber_AsSsize_t(count, PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return new_row(int64, number);
}

/* -- module ------------------------------------------------------------------------------------ */

#define KEYWORDS METH_FASTCALL | METH_KEYWORDS
#define METHOD_ENTRY(name) {#name, (PyCFunction)(void (*)(void))array_##name, KEYWORDS, NULL},
#define FUNCTION_ENTRY(name) {#name, (PyCFunction)(void (*)(void))fast_##name, KEYWORDS, NULL},

static PyMethodDef array_methods[] = {METHODS(METHOD_ENTRY){NULL, NULL, 0, NULL}};

static PyNumberMethods array_as_number = {
    .nb_add = array_add,
    .nb_subtract = array_subtract,
    .nb_multiply = array_multiply,
    .nb_floor_divide = array_floor_divide,
    .nb_and = array_and,
    .nb_or = array_or,
    .nb_lshift = array_lshift,
    .nb_rshift = array_rshift,
    .nb_negative = array_negative,
    .nb_invert = array_invert,
    .nb_inplace_add = array_inplace_add,
    .nb_inplace_subtract = array_inplace_subtract,
    .nb_inplace_and = array_inplace_and,
    .nb_inplace_or = array_inplace_or,
    .nb_inplace_rshift = array_inplace_rshift,
};

static PyMappingMethods array_as_mapping = {
    .mp_subscript = array_subscript,
    .mp_ass_subscript = array_assign,
};

/* Its size and its base are known when NumPy is there. */
static PyTypeObject FastArray = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stepahead._fast.FastArray",
    .tp_doc = PyDoc_STR("An ndarray that is quick where it holds a few int64."),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = array_dealloc,
    .tp_as_number = &array_as_number,
    .tp_as_mapping = &array_as_mapping,
    .tp_richcompare = array_richcompare,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_methods = array_methods,
};

static PyMethodDef functions[] = {
    FUNCTIONS(FUNCTION_ENTRY){"ints", fast_ints, METH_O, NULL},
    {"quick", fast_quick, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "stepahead._fast",
    .m_doc = PyDoc_STR("NumPy for a handful of numbers; see the head of _fast.c."),
    .m_size = -1, /* one type and one store of dead arrays for the process */
    .m_methods = functions,
};

static int
prepare(void)
{
    int64 = PyArray_DescrFromType(NPY_INT64);
    boolean = PyArray_DescrFromType(NPY_BOOL);
    PyDataMem_Handler *handler = PyCapsule_GetPointer(PyDataMem_DefaultHandler, "mem_handler");
    if (handler == NULL) {
        return 0;
    }
    allocator = &handler->allocator;
    /* NumPy says how large its part of the object is. */
    inside_at = (PyArray_Type.tp_basicsize + 15) / 16 * 16;
    FastArray.tp_base = &PyArray_Type;
    FastArray.tp_basicsize = inside_at + INSIDE;
    if (PyType_Ready(&FastArray) < 0) {
        return 0;
    }
#define LOOK_UP(name)                                                                             \
    if ((numpy_##name = PyObject_GetAttrString((PyObject *)&PyArray_Type, #name)) == NULL) {      \
        return 0;                                                                                 \
    }
    METHODS(LOOK_UP)
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL) {
        return 0;
    }
#define LOOK_UP_FUNCTION(name)                                                                    \
    numpy_function_##name = PyObject_GetAttrString(numpy, #name);                                 \
    found = found && numpy_function_##name != NULL;
    int found = 1;
    FUNCTIONS(LOOK_UP_FUNCTION)
    Py_DECREF(numpy);
    if (!found) {
        return 0;
    }
    PyObject *count = PyObject_CallOneArg(numpy_function_count_nonzero, Py_None);
    counts_are_scalars = count != NULL && !PyLong_CheckExact(count);
    Py_XDECREF(count);
    return count != NULL;
}

PyMODINIT_FUNC
PyInit__fast(void)
{
    import_array();
    if (!prepare()) {
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "FastArray", (PyObject *)&FastArray) < 0) {
        Py_CLEAR(made);
    }
    return made;
}
