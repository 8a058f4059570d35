"""The compiled loops over JSON lines: finding the wanted values, and making whole numbers and texts of them.

`find` checks the grammar of every line (RFC 8259, and one object on each line) and notes where the wanted values are.
Invariant: it refuses what readers of JSON may disagree about: names with escapes and wanted names that occur twice,
non-finite numbers, blanks other than spaces and tabs, and what exceeds the limits of Jackson, with which Spark parses.
Limit: the bytes are Unicode, fewer than 2**31, and end with the end of a line, so that no loop passes it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from anabranch.engine.kernels import ByteArray, Int64Array

MISSING, NULL, WHOLE, BROKEN, TEXT, ESCAPED, TRUE, FALSE, OBJECT = range(9)
"""What stands for a value: nothing, null, a number without or with a fraction or exponent, a text without or with
escapes, a truth value, an object."""
DEEPEST, LONGEST_NUMBER, LONGEST_NAME, LONGEST_TEXT = 100, 1_000, 50_000, 20_000_000
"""Within the limits of Jackson: objects in objects, and bytes."""
_REFUSED = -1
_NOBODY, _ARRAY = -1, -2
"""In place of a wanted object: one that nobody wants, and an array."""
_NAME, _NAME_OR_END, _VALUE, _VALUE_OR_END, _NEXT = range(5)
"""What may come next inside of an object or an array."""
_Bytes = numba.types.Array(numba.uint8, 1, "C", readonly=True)
_Numbers = numba.types.Array(numba.int64, 1, "C", readonly=True)


@numba.njit(numba.uint8(_Bytes, numba.int64), cache=True, inline="always")
def _byte(data: Any, at: Any) -> Any:
    """Returns a byte; numba asks of a signed position whether it counts from the end."""
    return data[np.uint64(at)]


@numba.njit("int64(uint8)", cache=True, inline="always")
def _digit(byte: Any) -> Any:
    """Returns the value of a hexadecimal digit, or -1."""
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    if 65 <= byte <= 70:
        return np.int64(byte) - 55
    if 97 <= byte <= 102:
        return np.int64(byte) - 87
    return np.int64(-1)


@numba.njit("uint8(uint8)", cache=True, inline="always")
def _unescaped(kind: Any) -> Any:
    """Returns the byte for which a short escape stands, or 0."""
    if kind == 34 or kind == 92 or kind == 47:
        return np.uint8(kind)
    if kind == 98:
        return np.uint8(8)
    if kind == 102:
        return np.uint8(12)
    if kind == 110:
        return np.uint8(10)
    if kind == 114:
        return np.uint8(13)
    if kind == 116:
        return np.uint8(9)
    return np.uint8(0)


@numba.njit(numba.int64(_Bytes, numba.int64), cache=True, nogil=True)
def _code(data: ByteArray, at: int) -> Any:
    """Returns the code of the escape \\uXXXX at a position."""
    found = np.int64(0)
    for place in range(at + 2, at + 6):
        found = found * 16 + _digit(_byte(data, place))
    return found


@numba.njit(numba.int64(_Bytes, numba.int64), cache=True, nogil=True)
def _after_text(data: ByteArray, at: int) -> int:
    """Returns the position after the text that begins after a quote at `at`; negative if it has escapes, 0 if wrong."""
    has_escapes = False
    while True:
        byte = _byte(data, at)
        if byte == 34:
            return -(at + 1) if has_escapes else at + 1
        if byte < 32:
            return 0
        at += 1
        if byte == 92:
            has_escapes = True
            kind = _byte(data, at)
            at += 1
            if kind == 117:  # u
                for _ in range(4):
                    if _digit(_byte(data, at)) < 0:
                        return 0
                    at += 1
            elif _unescaped(kind) == 0:
                return 0


@numba.njit(numba.int64(_Bytes, numba.int64), cache=True, nogil=True)
def _after_digits(data: ByteArray, at: int) -> int:
    while 48 <= _byte(data, at) <= 57:
        at += 1
    return at


@numba.njit(numba.int64(_Bytes, numba.int64), cache=True, nogil=True)
def _after_number(data: ByteArray, at: int) -> int:
    """Returns the position after the number at `at`; negative if it has a fraction or an exponent, 0 if wrong."""
    first, is_broken = at, False
    if _byte(data, at) == 45:
        at += 1
    leading = at
    at = _after_digits(data, at)
    if at == leading or (_byte(data, leading) == 48 and at > leading + 1):
        return 0
    if _byte(data, at) == 46:
        is_broken, leading = True, at + 1
        at = _after_digits(data, leading)
        if at == leading:
            return 0
    if _byte(data, at) == 69 or _byte(data, at) == 101:
        is_broken = True
        at += 1
        if _byte(data, at) == 43 or _byte(data, at) == 45:
            at += 1
        leading = at
        at = _after_digits(data, at)
        if at == leading:
            return 0
    if at - first > LONGEST_NUMBER:
        return 0
    return -at if is_broken else at


@numba.njit(numba.int64(_Bytes, numba.int64), cache=True, nogil=True)
def _word(data: ByteArray, at: int) -> int:
    """Returns which of null, true and false is at a position, or MISSING."""
    first = _byte(data, at)
    # One byte after the other, so that the end of the line ends it.
    if first == 110 and _byte(data, at + 1) == 117 and _byte(data, at + 2) == 108 and _byte(data, at + 3) == 108:
        return NULL
    if first == 116 and _byte(data, at + 1) == 114 and _byte(data, at + 2) == 117 and _byte(data, at + 3) == 101:
        return TRUE
    if first == 102 and _byte(data, at + 1) == 97 and _byte(data, at + 2) == 108 and _byte(data, at + 3) == 115:
        return FALSE if _byte(data, at + 4) == 101 else MISSING
    return MISSING


@numba.njit(numba.int64(_Bytes, numba.int64, numba.int64, _Bytes, _Numbers, numba.int64), cache=True, nogil=True)
def _is_named(data: ByteArray, start: int, length: int, names: ByteArray, bounds: Int64Array, node: int) -> int:
    first = bounds[node]
    if bounds[node + 1] - first != length:
        return 0
    for place in range(length):
        if _byte(data, start + place) != names[first + place]:
            return 0
    return 1


@numba.njit(
    numba.int64(
        _Bytes,
        _Bytes,
        _Numbers,
        _Numbers,
        _Numbers,
        _Bytes,
        numba.int32[:, ::1],
        numba.int32[:, ::1],
        numba.uint8[:, ::1],
    ),
    cache=True,
    nogil=True,
)
def find(
    data: ByteArray,
    names: ByteArray,
    bounds: Int64Array,
    first: Int64Array,
    following: Int64Array,
    is_object: ByteArray,
    starts: Any,
    stops: Any,
    sorts: Any,
) -> int:
    """Notes what stands for each wanted value of each line and where; returns the number of lines that are not empty,
    or -1 if a line is refused.

    Wanted values are the nodes of a tree: `first` has the first child of each node, and of the whole line at its end;
    `following` the next child of the same parent, in a circle.
    """
    stop, at, row = data.shape[0], 0, 0
    open_nodes = np.empty(DEEPEST, dtype=np.int64)
    guesses = first.copy()
    whole = first.shape[0] - 1
    while True:
        while at < stop and (_byte(data, at) == 10 or (_byte(data, at) == 13 and _byte(data, at + 1) == 10)):
            at += 1
        if at == stop:
            return row
        if _byte(data, at) != 123:
            return _REFUSED
        at += 1
        depth, parent, node, expected = 1, whole, _NOBODY, _NAME_OR_END
        open_nodes[0] = whole
        while depth:
            while _byte(data, at) == 32 or _byte(data, at) == 9:
                at += 1
            byte = _byte(data, at)
            if expected == _NEXT:
                if byte == 44:
                    expected = _VALUE if parent == _ARRAY else _NAME
                    at += 1
                    continue
                if byte != (93 if parent == _ARRAY else 125):
                    return _REFUSED
            if expected == _NAME or (expected == _NAME_OR_END and byte != 125):
                if byte != 34:
                    return _REFUSED
                start = at + 1
                at = _after_text(data, start)
                if at < 0 and parent < 0:
                    at = -at
                length = at - 1 - start
                if at <= 0 or length > LONGEST_NAME:
                    return _REFUSED
                node = _NOBODY
                if parent >= 0 and first[parent] >= 0:
                    guess = guesses[parent]
                    tried = guess
                    while True:
                        if _is_named(data, start, length, names, bounds, tried):
                            if sorts[tried, row] != MISSING:
                                return _REFUSED
                            node = tried
                            guesses[parent] = following[tried]
                            break
                        tried = following[tried]
                        if tried == guess:
                            break
                while _byte(data, at) == 32 or _byte(data, at) == 9:
                    at += 1
                if _byte(data, at) != 58:
                    return _REFUSED
                at += 1
                expected = _VALUE
                continue
            if expected == _VALUE or (expected == _VALUE_OR_END and byte != 93):
                start, sort = at, NULL
                expected = _NEXT
                if byte == 34:
                    start += 1
                    at = _after_text(data, start)
                    sort = TEXT
                    if at < 0:
                        at, sort = -at, ESCAPED
                    if at == 0 or at - start > LONGEST_TEXT:
                        return _REFUSED
                elif byte == 45 or 48 <= byte <= 57:
                    at = _after_number(data, at)
                    sort = WHOLE
                    if at < 0:
                        at, sort = -at, BROKEN
                    if at == 0:
                        return _REFUSED
                elif byte == 123 or byte == 91:
                    if depth == DEEPEST or (node >= 0 and (byte == 91 or is_object[node] == 0)):
                        return _REFUSED
                    at += 1
                    parent = _ARRAY if byte == 91 else node
                    expected = _VALUE_OR_END if byte == 91 else _NAME_OR_END
                    open_nodes[depth] = parent
                    depth += 1
                    sort = OBJECT
                else:
                    sort = _word(data, at)
                    if sort == MISSING:
                        return _REFUSED
                    at += 5 if sort == FALSE else 4
                if node >= 0:
                    starts[node, row] = start
                    stops[node, row] = at - (1 if sort in (TEXT, ESCAPED) else 0)
                    sorts[node, row] = sort
                node = _NOBODY
                continue
            # The end of an object or an array.
            at += 1
            depth -= 1
            parent = open_nodes[depth - 1] if depth else whole
            expected = _NEXT
        while _byte(data, at) == 32 or _byte(data, at) == 9:
            at += 1
        at += 1 if _byte(data, at) == 13 else 0
        if _byte(data, at) != 10:
            return _REFUSED
        row += 1


_Places = numba.types.Array(numba.int32, 1, "C", readonly=True)


@numba.njit(numba.boolean(_Bytes, _Places, _Places, _Bytes, numba.int64[::1]), cache=True, nogil=True)
def whole_numbers(data: ByteArray, starts: Any, stops: Any, sorts: ByteArray, found: Int64Array) -> bool:
    """Reads whole numbers; returns False if one does not fit."""
    for row in range(found.shape[0]):
        if sorts[row] != WHOLE:
            continue
        at = np.int64(starts[row])
        is_negative = _byte(data, at) == 45
        at += 1 if is_negative else 0
        if stops[row] - at > 19:
            return False
        value = np.uint64(0)
        while at < stops[row]:
            value = value * np.uint64(10) + np.uint64(_byte(data, at) - 48)
            at += 1
        if value > np.uint64(9223372036854775807) + np.uint64(1 if is_negative else 0):
            return False
        found[row] = -np.int64(value) if is_negative else np.int64(value)
    return True


@numba.njit(numba.int64(_Bytes, _Places, _Places, _Bytes, numba.int32[::1], numba.uint8[::1]), cache=True, nogil=True)
def texts(data: ByteArray, starts: Any, stops: Any, sorts: ByteArray, offsets: Any, found: ByteArray) -> Any:
    """Copies texts and numbers one behind the other; returns their bytes, or -1 if one is half a surrogate pair."""
    end = np.int64(0)
    for row in range(starts.shape[0]):
        offsets[row] = end
        sort = sorts[row]
        if sort in (TEXT, WHOLE, BROKEN):
            for at in range(starts[row], stops[row]):
                found[end] = _byte(data, at)
                end += 1
        elif sort == ESCAPED:
            at = starts[row]
            while at < stops[row]:
                if _byte(data, at) != 92:
                    found[end] = _byte(data, at)
                    end += 1
                    at += 1
                elif _byte(data, at + 1) != 117:
                    found[end] = _unescaped(_byte(data, at + 1))
                    end += 1
                    at += 2
                else:
                    code = _code(data, at)
                    at += 6
                    if 0xDC00 <= code < 0xE000:
                        return _REFUSED
                    if 0xD800 <= code < 0xDC00:
                        if at + 6 > stops[row] or _byte(data, at) != 92 or _byte(data, at + 1) != 117:
                            return _REFUSED
                        low = _code(data, at)
                        if low < 0xDC00 or low > 0xDFFF:
                            return _REFUSED
                        at += 6
                        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                    if code < 0x80:
                        found[end] = code
                        end += 1
                        continue
                    if code < 0x800:
                        found[end] = 0xC0 | (code >> 6)
                        end += 1
                    else:
                        if code < 0x10000:
                            found[end] = 0xE0 | (code >> 12)
                            end += 1
                        else:
                            found[end] = 0xF0 | (code >> 18)
                            found[end + 1] = 0x80 | ((code >> 12) & 63)
                            end += 2
                        found[end] = 0x80 | ((code >> 6) & 63)
                        end += 1
                    found[end] = 0x80 | (code & 63)
                    end += 1
    offsets[starts.shape[0]] = end
    return end
