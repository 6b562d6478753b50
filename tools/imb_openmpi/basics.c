/* Beginning and end, communicators, types and operations. */

#include "translate.h"
#include <stdio.h>

int imb_MPI_Init(int *count, char ***words) { return result(MPI_Init(count, words)); }

int imb_MPI_Init_thread(int *count, char ***words, int required, int *provided) {
    return result(MPI_Init_thread(count, words, required, provided));
}

int imb_MPI_Finalize(void) { return result(MPI_Finalize()); }

int imb_MPI_Abort(Comm c, int code) { return result(MPI_Abort(comm(c), code)); }

int imb_MPI_Get_version(int *version, int *subversion) { return result(MPI_Get_version(version, subversion)); }

double imb_MPI_Wtime(void) { return MPI_Wtime(); }

int imb_MPI_Error_string(int code, char *text, int *length) {
    return result(MPI_Error_string(error_of(code), text, length));
}

int imb_MPI_Alloc_mem(MPI_Aint bytes, Info i, void *address) { return result(MPI_Alloc_mem(bytes, info(i), address)); }

int imb_MPI_Free_mem(void *address) { return result(MPI_Free_mem(address)); }

/* Communicators and groups. */

int imb_MPI_Comm_rank(Comm c, int *found) { return result(MPI_Comm_rank(comm(c), found)); }

int imb_MPI_Comm_size(Comm c, int *found) { return result(MPI_Comm_size(comm(c), found)); }

int imb_MPI_Comm_compare(Comm one, Comm other, int *found) {
    return result(MPI_Comm_compare(comm(one), comm(other), found));
}

int imb_MPI_Comm_split(Comm c, int colour, int key, Comm *made) {
    MPI_Comm ours = MPI_COMM_NULL;
    int code = MPI_Comm_split(comm(c), colour, key, &ours);
    *made = ours == MPI_COMM_NULL ? MPICH_COMM_NULL : MPI_Comm_c2f(ours);
    return result(code);
}

int imb_MPI_Comm_free(Comm *c) {
    MPI_Comm ours = comm(*c);
    int code = MPI_Comm_free(&ours);
    *c = code == MPI_SUCCESS ? MPICH_COMM_NULL : *c;
    return result(code);
}

int imb_MPI_Comm_group(Comm c, Group *made) {
    MPI_Group ours = MPI_GROUP_NULL;
    int code = MPI_Comm_group(comm(c), &ours);
    *made = ours == MPI_GROUP_NULL ? MPICH_GROUP_NULL : ours == MPI_GROUP_EMPTY ? MPICH_GROUP_EMPTY : MPI_Group_c2f(ours);
    return result(code);
}

int imb_MPI_Group_translate_ranks(Group from, int count, const int ranks[], Group to, int found[]) {
    for (int i = 0; i < count; i++) {
        int ours = rank(ranks[i]);
        int code = MPI_Group_translate_ranks(group(from), 1, &ours, group(to), &found[i]);
        if (code != MPI_SUCCESS)
            return result(code);
        found[i] = rank_for_program(found[i]);
    }
    return MPI_SUCCESS;
}

/* Types and operations. */

int imb_MPI_Type_size(Type t, int *bytes) { return result(MPI_Type_size(type(t), bytes)); }

int imb_MPI_Type_get_extent(Type t, MPI_Aint *lower, MPI_Aint *extent) {
    return result(MPI_Type_get_extent(type(t), lower, extent));
}

static int result_and_type(int code, Type *made, MPI_Datatype ours) {
    if (code == MPI_SUCCESS)
        *made = handle_of_type(ours);
    return result(code);
}

int imb_MPI_Type_vector(int count, int length, int stride, Type t, Type *made) {
    MPI_Datatype ours;
    int code = MPI_Type_vector(count, length, stride, type(t), &ours);
    return result_and_type(code, made, ours);
}

int imb_MPI_Type_create_resized(Type t, MPI_Aint lower, MPI_Aint extent, Type *made) {
    MPI_Datatype ours;
    int code = MPI_Type_create_resized(type(t), lower, extent, &ours);
    return result_and_type(code, made, ours);
}

int imb_MPI_Type_commit(Type *t) {
    MPI_Datatype ours = type(*t);
    return result(MPI_Type_commit(&ours));
}

int imb_MPI_Type_free(Type *t) {
    MPI_Datatype ours = type(*t);
    int code = MPI_Type_free(&ours);
    return result_and_type(code, t, ours);
}

/* Open MPI calls an operation of the program with its own type, and does not say which operation it is. So each operation has
 * a function of its own here. */
typedef void Function(void *in, void *inout, int *length, Type *type);
static Function *functions[8];
#define CALL(slot) \
    static void call_##slot(void *in, void *inout, int *length, MPI_Datatype *ours) { \
        Type theirs = handle_of_type(*ours); \
        functions[slot](in, inout, length, &theirs); \
    }
CALL(0) CALL(1) CALL(2) CALL(3) CALL(4) CALL(5) CALL(6) CALL(7)
static MPI_User_function *const calls[] = {call_0, call_1, call_2, call_3, call_4, call_5, call_6, call_7};

int imb_MPI_Op_create(Function *function, int is_commutative, Op *made) {
    MPI_Op ours;
    int slot = 0;
    while (slot < 8 && functions[slot] && functions[slot] != function)
        slot++;
    if (slot == 8) {
        fprintf(stderr, "imb_openmpi: at most 8 operations of the program are possible\n");
        return MPICH_ERR_INTERN;
    }
    functions[slot] = function;
    int code = MPI_Op_create(calls[slot], is_commutative, &ours);
    if (code == MPI_SUCCESS)
        *made = MPI_Op_c2f(ours);
    return result(code);
}
