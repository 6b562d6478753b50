/* One-sided operations. */

#include "translate.h"

int imb_MPI_Win_create(void *base, MPI_Aint bytes, int unit, Info i, Comm c, Win *made) {
    MPI_Win ours = MPI_WIN_NULL;
    int code = MPI_Win_create(base, bytes, unit, info(i), comm(c), &ours);
    *made = ours == MPI_WIN_NULL ? MPICH_WIN_NULL : MPI_Win_c2f(ours);
    return result(code);
}

int imb_MPI_Win_free(Win *w) {
    MPI_Win ours = win(*w);
    int code = MPI_Win_free(&ours);
    *w = code == MPI_SUCCESS ? MPICH_WIN_NULL : *w;
    return result(code);
}

static int assertion(int theirs) { return theirs & MPICH_MODE_NOCHECK ? MPI_MODE_NOCHECK : 0; }

int imb_MPI_Win_lock(int lock, int target, int assertions, Win w) {
    int ours = lock == MPICH_LOCK_EXCLUSIVE ? MPI_LOCK_EXCLUSIVE : lock == MPICH_LOCK_SHARED ? MPI_LOCK_SHARED : -1;
    return result(MPI_Win_lock(ours, rank(target), assertion(assertions), win(w)));
}

int imb_MPI_Win_lock_all(int assertions, Win w) { return result(MPI_Win_lock_all(assertion(assertions), win(w))); }

int imb_MPI_Win_unlock(int target, Win w) { return result(MPI_Win_unlock(rank(target), win(w))); }

int imb_MPI_Win_unlock_all(Win w) { return result(MPI_Win_unlock_all(win(w))); }

int imb_MPI_Win_flush(int target, Win w) { return result(MPI_Win_flush(rank(target), win(w))); }

int imb_MPI_Win_flush_all(Win w) { return result(MPI_Win_flush_all(win(w))); }

int imb_MPI_Win_flush_local(int target, Win w) { return result(MPI_Win_flush_local(rank(target), win(w))); }

int imb_MPI_Win_flush_local_all(Win w) { return result(MPI_Win_flush_local_all(win(w))); }

int imb_MPI_Put(const void *from, int from_count, Type from_type, int target, MPI_Aint to, int to_count, Type to_type, Win w) {
    return result(MPI_Put(from, from_count, type(from_type), rank(target), to, to_count, type(to_type), win(w)));
}

int imb_MPI_Get(void *to, int to_count, Type to_type, int target, MPI_Aint from, int from_count, Type from_type, Win w) {
    return result(MPI_Get(to, to_count, type(to_type), rank(target), from, from_count, type(from_type), win(w)));
}

int imb_MPI_Accumulate(const void *from, int from_count, Type from_type, int target, MPI_Aint to, int to_count, Type to_type,
                       Op o, Win w) {
    return result(MPI_Accumulate(from, from_count, type(from_type), rank(target), to, to_count, type(to_type), op(o), win(w)));
}

int imb_MPI_Get_accumulate(const void *from, int from_count, Type from_type, void *found, int found_count, Type found_type,
                           int target, MPI_Aint to, int to_count, Type to_type, Op o, Win w) {
    return result(MPI_Get_accumulate(from, from_count, type(from_type), found, found_count, type(found_type), rank(target), to,
                                     to_count, type(to_type), op(o), win(w)));
}

int imb_MPI_Fetch_and_op(const void *from, void *found, Type t, int target, MPI_Aint to, Op o, Win w) {
    return result(MPI_Fetch_and_op(from, found, type(t), rank(target), to, op(o), win(w)));
}

int imb_MPI_Compare_and_swap(const void *from, const void *expected, void *found, Type t, int target, MPI_Aint to, Win w) {
    return result(MPI_Compare_and_swap(from, expected, found, type(t), rank(target), to, win(w)));
}
